"""The headlines of a job, as its agent leaves them in the result, for those who list many jobs and read no records of them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bai_agent.job.descriptor import Metric
from bai_agent.job.job_headlines import SeriesNumber, headline_of, headline_values
from bai_agent.job.record_types import HeadlineValue

MOST_BYTES = 32 * 2**20
"""Of records, which are read once after the run: about half a second."""
_MOST_METRICS = 16
_MOST_NUMBERS = 4096
"""Of all series and runs; where there are more, a list says nothing of them."""
_PLACES = ("rank", "process_rank")

_Key = tuple[str, tuple[tuple[str, str], ...], "str | None", "int | None"]
"""Metric, labels, process, repeat."""


def headlines(
    path: Path,
    metrics: Sequence[Metric],
    *,
    began: int | None,
    starts: Mapping[int | None, int] | None = None,
    arms: Sequence[str] = (),
    failed: Collection[int | None] = (),
    of_several_nodes: bool = False,
    stopping: Callable[[], bool] = lambda: False,
) -> dict[str, HeadlineValue]:
    """Return the headlines of the first metrics by their names with labels, for a node.

    began: when the benchmark began (ms UTC). starts: the same of each repeat. arms: the arm of each repeat, in a job that compares
    some. failed: repeats that do not count. of_several_nodes: with the numbers of each run, of which those of the job are made.
    stopping: whether nobody waits for them any more; then {}. {} where there are more records than are read for this.
    """
    wanted = {metric.name: metric for metric in metrics[:_MOST_METRICS]}
    try:
        if not wanted or path.stat().st_size > MOST_BYTES:
            return {}
        known = dict(starts or {})
        if began is not None:
            known[None] = began
        series = _series(path, wanted, known, stopping)
    except OSError:
        return {}
    numbers = []
    for (name, labels, _, repeat), values in series.items():
        metric = wanted[name]
        if len(values) > metric.warmup_values:
            numbers.append(
                SeriesNumber(
                    name=name,
                    labels=labels,
                    arm=arms[repeat] if repeat is not None and repeat < len(arms) else None,
                    repeat=repeat,
                    value=headline_of(metric.headline, values[metric.warmup_values :]),
                    units=metric.units,
                )
            )
    if len(numbers) > _MOST_NUMBERS:
        return {}
    order = list(wanted)
    numbers.sort(key=lambda each: order.index(each.name))
    return headline_values(numbers, wanted, failed=failed, with_runs=of_several_nodes)


def _series(
    path: Path,
    wanted: Mapping[str, Metric],
    starts: dict[int | None, int],
    stopping: Callable[[], bool],
) -> dict[_Key, array[float]]:
    """Return the values of each series, without a warm-up that is a time."""
    series: dict[_Key, array[float]] = {}
    keys: dict[str, tuple[tuple[tuple[str, str], ...], str | None]] = {}
    for record in _records(path):
        if stopping():
            return {}
        metric = wanted.get(record["name"])
        if metric is None:
            continue
        repeat = record.get("repeat")
        if metric.warmup is not None:
            # Where nobody has noted when a repeat began, its first record says it.
            first = starts.get(None) if not repeat else None
            start = starts.setdefault(repeat, record["timestamp"] if first is None else first)
            if record["timestamp"] - start < metric.warmup.total_seconds() * 1000:
                continue
        text = json.dumps(record.get("labels"), sort_keys=True)
        if text not in keys:
            labels = record.get("labels") or {}
            own = tuple(sorted((name, value) for name, value in labels.items() if name not in _PLACES))
            keys[text] = own, labels.get("process_rank")
        labels, process = keys[text]
        series.setdefault((metric.name, labels, process, repeat), array("d")).append(record["value"])
    return series


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield our own records of what the benchmark printed or emitted."""
    with path.open("rb") as file:
        for line in file:
            if b'"src":"host"' not in line and b'"src":"run"' not in line and line.endswith(b"\n"):
                yield json.loads(line)
