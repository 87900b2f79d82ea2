"""Exports numbers of a job in the formats of other programs: one number per metric, or the times of timed
commands.

- bmf: Bencher Metric Format, https://bencher.dev/docs/reference/bencher-metric-format
- gha: the custom tools of github-action-benchmark, https://github.com/benchmark-action/github-action-benchmark
- openmetrics: https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
- times of commands: the files of hyperfine, https://github.com/sharkdp/hyperfine
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bai_agent.job.descriptor.metric_tables import Better
from bai_agent.job.job_headlines import labelled_name, with_arm
from bai_agent.light_dataclass import dataclass
from executor.analysis.measured_runs import JobRuns, RunValue
from executor.analysis.timing_analysis import CommandTimes
from executor.documents.text import as_utf8
from executor.errors import UsageError
from executor.records.figures import Figures, figures

_TOOLS = {Better.LOWER: "customSmallerIsBetter", Better.HIGHER: "customBiggerIsBetter"}
"""Better direction of a metric → name of the tool in github-action-benchmark. A file is for one tool, so all
metrics in a file have the same direction."""
_PREFIX = "BAI_METRICS_"
"""Prefix of metric names. The Prometheus sink also uses this prefix, so that one dashboard works for exports
and for the sink."""
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


@dataclass(frozen=True, kw_only=True)
class HeadlineNumber:
    """The headline of one metric of a job."""

    name: str
    labels: tuple[tuple[str, str], ...]
    units: str
    better: Better | None
    runs: Figures
    """Figures of the headlines of one or more runs."""

    @property
    def value(self) -> float:
        return self.runs.median

    @property
    def labelled(self) -> str:
        return labelled_name(self.name, self.labels)


def headlines_of(runs: JobRuns, names: Sequence[str]) -> list[HeadlineNumber]:
    """Return the numbers of a job's runs for the metrics `names`, or for all metrics. Raises UsageError if no
    run succeeded, or if no run has a metric in `names`.
    """
    if not runs.runs:
        raise UsageError(
            f"{'; '.join(runs.left_out)}: only runs that succeeded have numbers for other programs"
        )
    every = [_headline(arm, values) for (_, arm), values in runs.by_metric().items()]
    known = dict.fromkeys(each.name for each in every)
    for name in names:
        if name not in known:
            raise UsageError(f'--name: {runs.job_id} has no metric "{name}"; it has {", ".join(known)}')
    return [each for each in every if not names or each.name in names]


def _headline(arm: str | None, values: Sequence[RunValue]) -> HeadlineNumber:
    """Return the headline of a metric over one or more runs."""
    first, of_runs = values[0], figures([each.value for each in values])
    assert of_runs is not None
    return HeadlineNumber(
        name=first.name,
        labels=with_arm(first.labels, arm),
        units=first.units,
        better=first.better,
        runs=of_runs,
    )


def text_of(
    form: str, headlines: Sequence[HeadlineNumber], *, job_id: str, benchmark: str
) -> tuple[bytes, list[str]]:
    """Return the numbers as text in one of the formats, and notes for the user. Raises UsageError."""
    if form == "bmf":
        return _json(_bmf(headlines, benchmark)), []
    if form == "gha":
        taken, notes = _of_one_direction(headlines)
        return _json([_gha(each, job_id) for each in taken]), notes
    return _openmetrics(headlines, job_id), []


def _bmf(headlines: Iterable[HeadlineNumber], benchmark: str) -> dict[str, dict[str, dict[str, float]]]:
    benchmarks: dict[str, dict[str, dict[str, float]]] = {}
    for each in headlines:
        measure = {"value": each.value}
        if each.runs.count > 1:
            measure |= {"lower_value": each.runs.minimum, "upper_value": each.runs.maximum}
        benchmarks.setdefault(labelled_name(benchmark, each.labels), {})[each.name] = measure
    return benchmarks


def _of_one_direction(headlines: Sequence[HeadlineNumber]) -> tuple[list[HeadlineNumber], list[str]]:
    """Return the headlines of metrics whose better direction is the same, because a file can have only one
    direction."""
    taken: dict[Better, list[HeadlineNumber]] = {}
    for each in headlines:
        if each.better is not None:
            taken.setdefault(each.better, []).append(each)
    if not taken:
        raise UsageError('--format gha: no metric has better = "lower" or "higher", which this format needs')
    if len(taken) > 1:
        listed = "; ".join(
            f"{direction.value} is better for {_names(taken[direction])}"
            for direction in _TOOLS
            if direction in taken
        )
        raise UsageError(
            f"--format gha: all metrics of a file must have one better direction, but {listed}; choose metrics with --name"
        )
    ((direction, every),) = taken.items()
    notes = [f"tool: {_TOOLS[direction]}"]
    if left := _names(each for each in headlines if each.better is None):
        notes.append(f"left out, because they have no better direction: {left}")
    return every, notes


def _names(headlines: Iterable[HeadlineNumber]) -> str:
    return ", ".join(dict.fromkeys(each.name for each in headlines))


def _gha(each: HeadlineNumber, job_id: str) -> dict[str, Any]:
    entry = {"name": each.labelled, "unit": each.units, "value": each.value}
    if each.runs.stdev is not None:
        entry["range"] = f"± {each.runs.stdev:.4g}"
    runs = "1 run" if each.runs.count == 1 else f"the median of {each.runs.count} runs"
    return {**entry, "extra": f"job {job_id}, {runs}"}


def _openmetrics(headlines: Iterable[HeadlineNumber], job_id: str) -> bytes:
    # The library is imported here because it is slow to load, and most commands do not need the library.
    from prometheus_client.metrics_core import Metric
    from prometheus_client.openmetrics.exposition import generate_latest

    families: dict[str, Metric] = {}
    for each in headlines:
        name = _PREFIX + _NOT_IN_A_NAME.sub("_", each.name)
        labels = dict(_labels(each, job_id, renamed=name != _PREFIX + each.name))
        units = f", {as_utf8(each.units)}" if each.units else ""
        family = families.setdefault(name, Metric(name, f"{as_utf8(each.name)}{units}", "gauge"))
        family.add_sample(name, labels, each.value)

    class Collected:
        def collect(self) -> Iterator[Metric]:
            yield from families.values()

    return bytes(generate_latest(Collected()))  # type: ignore[no-untyped-call]


def _labels(each: HeadlineNumber, job_id: str, *, renamed: bool) -> Iterator[tuple[str, str]]:
    """Yield the labels with names that Prometheus accepts. If another label has the same name as a label of
    bai, bai's label is used."""
    for key, value in each.labels:
        name = _NOT_IN_A_NAME.sub("_", key)
        yield (
            (f"label_{name}" if not name or name[0].isdigit() or name.startswith("__") else name),
            as_utf8(value),
        )
    if renamed:
        # Two metrics may have the same name after the conversion to Prometheus names.
        yield "metric", as_utf8(each.name)
    yield "job_id", job_id


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


@dataclass(frozen=True, kw_only=True)
class ExportedTimes:
    """The times of one timed command, with the command's parameters."""

    command: str
    parameters: Mapping[str, str]
    times: CommandTimes


def as_json(every: Sequence[ExportedTimes], *, job_id: str) -> str:
    """Return JSON in the form of hyperfine's `--export-json`, with the job's id added. Times are in seconds,
    memory in bytes."""
    return json.dumps({"results": [_table(each) for each in every], "job_id": job_id}, indent=2) + "\n"


def as_csv(every: Sequence[ExportedTimes]) -> str:
    """Return CSV in the form of hyperfine's `--export-csv`, with one line for each command. Times are in
    seconds."""
    names = list(every[0].parameters) if every else []
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    figures = ["mean", "stddev", "median", "user", "system", "min", "max"]
    writer.writerow(["command", *figures, *(f"parameter_{name}" for name in names)])
    for each in every:
        table = _table(each)
        values = [table[name] if table[name] is not None else 0.0 for name in figures]
        writer.writerow([each.command, *values, *(each.parameters[name] for name in names)])
    return stream.getvalue()


def as_markdown(every: Sequence[ExportedTimes]) -> str:
    """Return a table like hyperfine's `--export-markdown`, in milliseconds or seconds, relative to the first command."""
    in_seconds = any(each.times.mean >= 1 for each in every)
    factor, unit = (1.0, "s") if in_seconds else (1e3, "ms")
    lines = [
        f"| Command | Mean [{unit}] | Min [{unit}] | Max [{unit}] | Relative |",
        "|:---|---:|---:|---:|---:|",
    ]
    for each in every:
        times, first = each.times, every[0].times
        # The number after ± is the standard deviation, as in hyperfine's own table.
        mean = f"{times.mean * factor:.3f}" + (
            f" ± {times.deviation * factor:.3f}" if times.deviation is not None else ""
        )
        lines.append(
            f"| `{_escaped(each.command)}` | {mean} | {min(times.walls) * factor:.3f} | {max(times.walls) * factor:.3f} "
            f"| {times.mean / first.mean:.2f} |"
        )
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _table(each: ExportedTimes) -> dict[str, Any]:
    times = each.times
    return {
        "command": each.command,
        "mean": times.mean,
        "stddev": times.deviation,
        "median": times.median,
        "user": times.user,
        "system": times.system,
        "min": min(times.walls),
        "max": max(times.walls),
        "times": list(times.walls),
        "memory_usage_byte": list(times.memory),
        "exit_codes": list(times.exit_codes),
        **({"parameters": dict(each.parameters)} if each.parameters else {}),
    }
