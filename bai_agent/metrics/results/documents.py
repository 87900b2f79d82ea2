"""Reads result files: JSON documents by paths, JSON files of benchmark tools, CSV files, and `:::MLLOG` lines of MLPerf's mllog.

docs/extraction.md lists the metrics and labels that each format provides.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from bai_agent.errors import WrongFormatError
from bai_agent.job.descriptor.metric_tables import ResultFormat, Results
from bai_agent.job.schema.json_path import differing_keys, read_star_path

_NO_LABELS: Mapping[str, Any] = MappingProxyType({})


class Measured(NamedTuple):
    """A value in a result file, of any type."""

    name: Any
    value: Any
    units: Any = ""
    labels: Mapping[str, Any] = _NO_LABELS
    step: Any = None
    time: Any = None
    """Time of the measurement (ms UTC). None if the file does not give a time."""


class Problem(NamedTuple):
    """A part of the file from which no value was read. The message is the end of a sentence about the file."""

    text: str
    quoted: str = ""
    """Text quoted from the file."""


Found = Iterator[Measured | Problem]


def tables(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list; yield nothing if the value is not a list."""
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, dict))


def items(value: Any) -> Iterable[tuple[str, Any]]:
    """Return the members of a JSON object; nothing if the value is not an object."""
    return value.items() if isinstance(value, dict) else ()


def series(value: Any) -> Iterable[tuple[int, Any]]:
    """Return the items of a JSON list with their indexes; nothing if the value is not a list."""
    return enumerate(value) if isinstance(value, list) else ()


def require(there: bool, what: str) -> None:
    """Raise WrongFormatError if a result file lacks a part. there: whether the file has the part. what: name of the part."""
    if not there:
        raise WrongFormatError(f"it has no {what}")


def _required_list(document: Any, key: str) -> Any:
    """Return the list at `key` of the file's object. Raises WrongFormatError."""
    found = document.get(key) if isinstance(document, dict) else None
    require(isinstance(found, list), f'list "{key}"')
    return found


DOCUMENT_LIMIT = 16 * 2**20
"""Size limit of a JSON document (bytes), because a parsed document takes several times as much memory."""
LINES_LIMIT = 256 * 2**20
"""Size limit of a file that is read line by line (bytes)."""
_LONGEST_LINE = 2**20
"""Longest line (characters). A file with a longer line is not regarded as text."""
_MOST_COLUMNS = 1000
_COLUMNS_SHOWN = 500
_MARK = ":::MLLOG"
_STEPS = ("step_num", "epoch_num", "samples_count")
"""Keys of the metadata in an mllog line that give the position in the training."""


def size_limit(table: Results) -> int:
    """Return the largest size (bytes) of a file of this format."""
    return LINES_LIMIT if table.format in (ResultFormat.CSV, ResultFormat.MLLOG) else DOCUMENT_LIMIT


def values_in(file: io.BufferedReader, table: Results) -> Found:
    """Yield the values of a file, in the file's order. Raises WrongFormatError, OSError."""
    if table.format is ResultFormat.CSV:
        yield from csv_rows(file, table)
    elif table.format is ResultFormat.MLLOG:
        yield from mllog(file)
    elif table.format is ResultFormat.JSON:
        yield from _by_path(_document(file), table)
    else:
        yield from _TOOLS[table.format](_document(file))


def _document(file: io.BufferedReader) -> Any:
    try:
        return json.loads(file.read(DOCUMENT_LIMIT))
    except (ValueError, RecursionError) as error:
        said = f": {error}" if isinstance(error, json.JSONDecodeError) else ""
        raise WrongFormatError(f"it is not a whole JSON document{said}") from error


def _by_path(document: Any, table: Results) -> Found:
    paths = [read_star_path(text) for text in table.values]
    # No label is added, because names from the document already distinguish the values.
    differing = differing_keys(paths) if table.name_from is None else [""] * len(paths)
    for text, path, keys in zip(table.values, paths, differing, strict=True):
        found = False
        for picks, value in path.find(document):
            found = True
            members = [key for key in picks if isinstance(key, str)] if table.name_from is None else []
            members += [keys] if keys else []
            labels = {"member": ".".join(members)} if members else {}
            labels |= {
                name: read_star_path(place).pick(document, picks) for name, place in table.labels.items()
            }
            name, units, step = (
                read_star_path(place).pick(document, picks) if place is not None else None
                for place in (table.name_from, table.units_from, table.step)
            )
            yield Measured(
                (table.name or path.name) if table.name_from is None else name,
                value,
                table.units if table.units_from is None else units,
                labels,
                step,
            )
        if not found:
            yield Problem(f'has nothing at "{text}"')


_HYPERFINE = ("mean", "stddev", "median", "user", "system", "min", "max")
_GOOGLE_FACTS = frozenset(
    {
        *("family_index", "per_family_instance_index", "repetitions", "repetition_index"),
        *("threads", "iterations", "error_occurred", "skipped"),
    }
)
_GOOGLE_UNITS = {"bytes_per_second": "B/s", "items_per_second": "1/s"}
_PYTEST_SECONDS = ("min", "max", "mean", "stddev", "median", "iqr", "q1", "q3", "total")
_PYTEST_UNITS = {"ops": "1/s", "rounds": "", "iterations": ""}


def hyperfine(document: Any) -> Found:
    """Yield the values of hyperfine's `--export-json`: the statistics of each command, and the time of each
    run."""
    for each in tables(_required_list(document, "results")):
        labels = {"command": each.get("command"), **dict(items(each.get("parameters")))}
        for name in _HYPERFINE:
            if each.get(name) is not None:  # a single run has no deviation
                yield Measured(name, each[name], "s", labels)
        for run, seconds in series(each.get("times")):
            yield Measured("time", seconds, "s", labels, run)
        for run, size in series(each.get("memory_usage_byte")):
            yield Measured("memory", size, "bytes", labels, run)


def google_benchmark(document: Any) -> Found:
    """Yield the values of google-benchmark's `--benchmark_out`: times and counters of each repetition, and
    aggregates. An aggregate's name is appended to the metric's name."""
    for each in tables(_required_list(document, "benchmarks")):
        name = each.get("run_name", each.get("name"))
        if each.get("error_occurred") is True or each.get("skipped"):
            said = each.get("error_message", each.get("skip_message"))
            yield Problem("has a benchmark that gave no value", f"{name}: {said}")
            continue
        aggregate = each.get("aggregate_name")
        labels = {"benchmark": name, "label": each.get("label")}
        repeated = aggregate is None and each.get("repetitions") not in (None, 1)
        for key, value in each.items():
            if key in _GOOGLE_FACTS or isinstance(value, (str, bool)):
                continue
            units = each.get("time_unit") if key in ("real_time", "cpu_time") else _GOOGLE_UNITS.get(key, "")
            if each.get("aggregate_unit") == "percentage":
                units = ""
            yield Measured(
                key if aggregate is None else f"{key}_{aggregate}",
                value,
                units,
                labels,
                each.get("repetition_index") if repeated else None,
            )


def pytest_benchmark(document: Any) -> Found:
    """Yield the values of pytest-benchmark's `--benchmark-json`: the statistics of each test, and with
    `--benchmark-save-data` the time of each round."""
    for each in tables(_required_list(document, "benchmarks")):
        labels = {"benchmark": each.get("fullname", each.get("name")), "group": each.get("group")}
        stats = dict(items(each.get("stats")))
        for name in _PYTEST_SECONDS:
            if name in stats:
                yield Measured(name, stats[name], "s", labels)
        for name, units in _PYTEST_UNITS.items():
            if name in stats:
                yield Measured(name, stats[name], units, labels)
        for turn, seconds in series(stats.get("data")):
            yield Measured("time", seconds, "s", labels, turn)


def bmf(document: Any) -> Found:
    """Yield the values of the Bencher Metric Format: the measures of each benchmark, with bounds if the file
    has bounds."""
    require(isinstance(document, dict), "object of benchmarks")
    for benchmark, measures in document.items():
        for measure, said in items(measures):
            for key, value in items(said):
                if key in ("value", "lower_value", "upper_value"):
                    name = measure if key == "value" else f"{measure}_{key}"
                    yield Measured(name, value, "", {"benchmark": benchmark})


def jmh(document: Any) -> Found:
    """Yield the values of JMH's `-rf json`: score, error, percentiles and iterations of each benchmark, and
    the scores of profilers."""
    require(isinstance(document, list), "list of benchmarks")
    for each in tables(document):
        labels = {
            "benchmark": each.get("benchmark"),
            "mode": each.get("mode"),
            **dict(items(each.get("params"))),
        }
        primary = dict(items(each.get("primaryMetric")))
        units = primary.get("scoreUnit")
        if "score" in primary:
            yield Measured("score", primary["score"], units, labels)
        # With few iterations, the error is the string "NaN".
        if isinstance(primary.get("scoreError"), (int, float)):
            yield Measured("score_error", primary["scoreError"], units, labels)
        for percentile, value in items(primary.get("scorePercentiles")):
            yield Measured(f"score_p{percentile.removesuffix('.0')}", value, units, labels)
        iteration = 0
        for _, fork in series(primary.get("rawData")):
            for _, value in series(fork):
                yield Measured("iteration", value, units, labels, iteration)
                iteration += 1
        for name, metric in items(each.get("secondaryMetrics")):
            said = dict(items(metric))
            if "score" in said and said["score"] != "NaN":
                yield Measured(name.strip("·"), said["score"], said.get("scoreUnit"), labels)


_TOOLS = {
    ResultFormat.HYPERFINE: hyperfine,
    ResultFormat.GOOGLE_BENCHMARK: google_benchmark,
    ResultFormat.PYTEST_BENCHMARK: pytest_benchmark,
    ResultFormat.BMF: bmf,
    ResultFormat.JMH: jmh,
}


def csv_rows(file: io.BufferedReader, table: Results) -> Found:
    """Yield the values of the columns that `table` names, row by row."""
    rows = csv.reader(_lines(file), delimiter=table.delimiter, skipinitialspace=True)
    try:
        first = next(rows, None)
        if first is None:
            raise WrongFormatError("it is empty")
        columns = (
            [each.strip() for each in first] if table.header else [str(n + 1) for n in range(len(first))]
        )
        if len(columns) > _MOST_COLUMNS:
            raise WrongFormatError(f"it has more than {_MOST_COLUMNS} columns")
        place = {name: at for at, name in reversed(list(enumerate(columns)))}
        wanted = (*table.values, *(each for each in table.places if each is not None))
        for missing in (each for each in wanted if each not in place):
            yield Problem(f'has no column "{missing}"; its columns are', ", ".join(columns)[:_COLUMNS_SHOWN])
            return
        short = 0
        for row in rows if table.header else _again(first, rows):
            if len(row) < len(columns):
                short += bool(row)  # empty lines do not count
                continue
            cells = {name: row[at].strip() for name, at in place.items()}
            yield from _of_row(cells, table)
        if short:
            yield Problem(f"has {short} rows with fewer cells than columns, which were left out")
    except csv.Error as error:
        raise WrongFormatError(f"its line {rows.line_num} is not CSV: {error}") from error


def _of_row(cells: dict[str, str], table: Results) -> Iterator[Measured]:
    labels = {name: cells[column] for name, column in table.labels.items()}
    for column in table.values:
        if not cells[column]:
            continue
        yield Measured(
            cells[table.name_from] if table.name_from is not None else table.name or column,
            cells[column],
            cells[table.units_from] if table.units_from is not None else table.units,
            labels,
            cells[table.step] or None if table.step is not None else None,
        )


def mllog(file: io.BufferedReader) -> Found:
    """Yield the numbers in `:::MLLOG` lines. Events without a number are skipped."""
    seen = bad = 0
    for line in _lines(file):
        at = line.find(_MARK)
        if at < 0:
            continue
        seen += 1
        try:
            said = json.loads(line[at + len(_MARK) :])
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            bad += 1
            continue
        yield from _of_event(said)
    if not seen:
        raise WrongFormatError(f"it has no line with {_MARK}")
    if bad:
        yield Problem(f"has {bad} lines whose text after {_MARK} is not a JSON object")


def _of_event(said: dict[str, Any]) -> Iterator[Measured]:
    metadata = dict(items(said.get("metadata")))
    step = next((metadata[key] for key in _STEPS if metadata.get(key) is not None), None)
    key, value = said.get("key"), said.get("value")
    named = (
        [(f"{key}.{name}", each) for name, each in value.items()]
        if isinstance(value, dict)
        else [(key, value)]
    )
    for name, each in named:
        if isinstance(each, (int, float)) and not isinstance(each, bool):
            yield Measured(name, each, "", {"namespace": said.get("namespace")}, step, said.get("time_ms"))


def _lines(file: io.BufferedReader) -> Iterator[str]:
    """Yield the lines of a text file. Raises WrongFormatError if the file is not text."""
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
    while line := text.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE or "\0" in line:
            raise WrongFormatError("it is not text")
        yield line


def _again(first: list[str], rows: Iterable[list[str]]) -> Iterator[list[str]]:
    yield first
    yield from rows
