"""One number for each metric of a job, in the forms that other programs read.

- bmf: Bencher Metric Format, https://bencher.dev/docs/reference/bencher-metric-format
- gha: the custom tools of github-action-benchmark, https://github.com/benchmark-action/github-action-benchmark
- openmetrics: https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bai_agent.job.descriptor import Better
from executor.analysis.figures import Figures, figures
from executor.analysis.runs import JobRuns, RunValue
from executor.errors import UsageError

_TOOLS = {Better.LOWER: "customSmallerIsBetter", Better.HIGHER: "customBiggerIsBetter"}
"""What github-action-benchmark is told of a whole file."""
_PREFIX = "BAI_METRICS_"
"""As the Prometheus sink calls metrics, so that one dashboard fits both."""
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


@dataclass(frozen=True, kw_only=True)
class HeadlineNumber:
    """What stands for one metric of a job."""

    name: str
    labels: tuple[tuple[str, str], ...]
    units: str
    better: Better | None
    runs: Figures
    """Of the runs' headlines: one, or those of all repeats."""

    @property
    def value(self) -> float:
        return self.runs.median

    @property
    def labelled(self) -> str:
        return f"{self.name}{_in_braces(self.labels)}"


def headlines_of(runs: JobRuns, names: Sequence[str]) -> list[HeadlineNumber]:
    """Return the numbers of a job's runs, of the metrics `names`, or all.

    Raises UsageError where no run succeeded, or none has such a metric.
    """
    if not runs.runs:
        raise UsageError(
            f"{'; '.join(runs.left_out)}: only runs that succeeded have numbers for other programs"
        )
    found: dict[tuple[str | None, str], list[float]] = {}
    first: dict[tuple[str | None, str], RunValue] = {}
    for run in runs.runs:
        for labelled, value in run.values.items():
            found.setdefault((run.arm, labelled), []).append(value.value)
            first.setdefault((run.arm, labelled), value)
    known = dict.fromkeys(value.name for value in first.values())
    for name in names:
        if name not in known:
            raise UsageError(f'--name: {runs.job_id} has no metric "{name}"; it has {", ".join(known)}')
    headlines = []
    for (arm, labelled), values in found.items():
        said, of_runs = first[arm, labelled], figures(values)
        if of_runs is not None and (not names or said.name in names):
            headlines.append(
                HeadlineNumber(
                    name=said.name,
                    labels=said.labels if arm is None else (*said.labels, ("arm", arm)),
                    units=said.units,
                    better=said.metric.better if said.metric is not None else None,
                    runs=of_runs,
                )
            )
    return headlines


def text_of(
    form: str, headlines: Sequence[HeadlineNumber], *, job_id: str, benchmark: str
) -> tuple[bytes, list[str]]:
    """Return the text of one of the forms, and sentences for a person. Raises UsageError."""
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
        benchmarks.setdefault(f"{benchmark}{_in_braces(each.labels)}", {})[each.name] = measure
    return benchmarks


def _of_one_direction(headlines: Sequence[HeadlineNumber]) -> tuple[list[HeadlineNumber], list[str]]:
    """Return the metrics that have a direction, which is one for a whole file."""
    by_direction = {
        direction: [each for each in headlines if each.better is direction] for direction in _TOOLS
    }
    taken = {direction: every for direction, every in by_direction.items() if every}
    if not taken:
        raise UsageError(
            '--format gha: no metric has better = "lower" or "higher", without which it cannot be judged'
        )
    if len(taken) > 1:
        listed = "; ".join(
            f"{direction.value} is better for {', '.join(dict.fromkeys(each.name for each in every))}"
            for direction, every in taken.items()
        )
        raise UsageError(f"--format gha: one file has one direction, and {listed}; choose with --name")
    ((direction, every),) = taken.items()
    notes = [f"tool: {_TOOLS[direction]}"]
    if left := dict.fromkeys(each.name for each in headlines if each.better is None):
        notes.append(f"left out, as they have no better: {', '.join(left)}")
    return every, notes


def _gha(each: HeadlineNumber, job_id: str) -> dict[str, Any]:
    entry = {"name": each.labelled, "unit": each.units, "value": each.value}
    if each.runs.stdev is not None:
        entry["range"] = f"± {each.runs.stdev:.4g}"
    runs = "1 run" if each.runs.count == 1 else f"the median of {each.runs.count} runs"
    return {**entry, "extra": f"job {job_id}, {runs}"}


def _openmetrics(headlines: Iterable[HeadlineNumber], job_id: str) -> bytes:
    # Only here: it takes time to load, and most commands print none.
    from prometheus_client.metrics_core import Metric
    from prometheus_client.openmetrics.exposition import generate_latest

    families: dict[str, Metric] = {}
    for each in headlines:
        name = _PREFIX + _NOT_IN_A_NAME.sub("_", each.name)
        labels = dict(_labels(each, job_id, renamed=name != _PREFIX + each.name))
        units = f", {_valid(each.units)}" if each.units else ""
        family = families.setdefault(name, Metric(name, f"{_valid(each.name)}{units}", "gauge"))
        family.add_sample(name, labels, each.value)

    class Collected:
        def collect(self) -> Iterator[Metric]:
            yield from families.values()

    return bytes(generate_latest(Collected()))  # type: ignore[no-untyped-call]


def _labels(each: HeadlineNumber, job_id: str, *, renamed: bool) -> Iterator[tuple[str, str]]:
    """Yield labels under names that Prometheus takes; those of ours win."""
    for key, value in each.labels:
        name = _NOT_IN_A_NAME.sub("_", key)
        yield (
            (f"label_{name}" if not name or name[0].isdigit() or name.startswith("__") else name),
            _valid(value),
        )
    if renamed:
        # Two metrics may have become one name.
        yield "metric", _valid(each.name)
    yield "job_id", job_id


def _in_braces(labels: tuple[tuple[str, str], ...]) -> str:
    return f"{{{','.join(f'{key}={value}' for key, value in labels)}}}" if labels else ""


def _valid(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
