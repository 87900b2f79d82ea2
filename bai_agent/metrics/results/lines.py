"""Reads files line by line: CSV, and the log of MLPerf's mllog."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

from bai_agent.job.descriptor import Results
from bai_agent.metrics.results.measured import Found, Measured, Problem, WrongFormatError, items

_LONGEST_LINE = 2**20
"""Characters of a line; a file with a longer one is no text."""
_MOST_COLUMNS = 1000
_COLUMNS_SHOWN = 500
_MARK = ":::MLLOG"
_STEPS = ("step_num", "epoch_num", "samples_count")
"""Keys of mllog's metadata that say where in the training a value is from."""


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
                short += bool(row)  # an empty line is none
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
            continue  # this row has no such value
        yield Measured(
            cells[table.name_from] if table.name_from is not None else table.name or column,
            cells[column],
            cells[table.units_from] if table.units_from is not None else table.units,
            labels,
            cells[table.step] or None if table.step is not None else None,
        )


def mllog(file: io.BufferedReader) -> Found:
    """Yield the numbers in `:::MLLOG` lines; what only marks a moment has none."""
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
    """Yield the lines as text. Raises WrongFormatError for what cannot be one."""
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
    while line := text.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE or "\0" in line:
            raise WrongFormatError("it is not text")
        yield line


def _again(first: list[str], rows: Iterable[list[str]]) -> Iterator[list[str]]:
    yield first
    yield from rows
