"""The one number of each metric that stands for a run, for those who list many runs and read no records of them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bai_agent.job.descriptor import Headline, Metric
from bai_agent.job.interval import mean_of, median_of

MOST_BYTES = 32 * 2**20
"""Of records, which are read once after the run: about half a second."""
_MOST_METRICS = 16


def headlines(
    path: Path,
    metrics: Sequence[Metric],
    *,
    began: int | None,
    stopping: Callable[[], bool] = lambda: False,
) -> dict[str, dict[str, Any]]:
    """Return {name: {"value", "units"}} of the first metrics that have one series of values, without their warm-up.

    began: when the benchmark began (ms UTC). stopping: whether nobody waits for them any more; then {}. A metric whose records
    have several sets of labels has no single number, and one of several repeats is the median of theirs. {} where there are more
    records than are read for this.
    """
    wanted = {metric.name: metric for metric in metrics[:_MOST_METRICS]}
    try:
        if not wanted or path.stat().st_size > MOST_BYTES:
            return {}
        series = _series(path, wanted, began, stopping)
    except OSError:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for name, metric in wanted.items():
        labels = {label for label, _ in series.get(name, {})}
        values = [
            headline_of(metric.headline, each[metric.warmup_values :])
            for each in series.get(name, {}).values()
            if len(each) > metric.warmup_values
        ]
        if len(labels) == 1 and values:
            found[name] = {"value": median_of(values), "units": metric.units}
    return found


def _series(
    path: Path, wanted: Mapping[str, Metric], began: int | None, stopping: Callable[[], bool]
) -> dict[str, dict[tuple[str, int | None], array[float]]]:
    """Return the values of each metric, by labels and repeat."""
    series: dict[str, dict[tuple[str, int | None], array[float]]] = {}
    starts: dict[int | None, int] = {}
    for record in _records(path):
        if stopping():
            return {}
        metric = wanted.get(record["name"])
        if metric is None:
            continue
        repeat = record.get("repeat")
        # Of a repeat only its records say when it was under way.
        start = starts.setdefault(repeat, record["timestamp"] if began is None or repeat else began)
        if metric.warmup is not None and record["timestamp"] - start < metric.warmup.total_seconds() * 1000:
            continue
        labels = json.dumps(record.get("labels"), sort_keys=True)
        series.setdefault(metric.name, {}).setdefault((labels, repeat), array("d")).append(record["value"])
    return series


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield our own records of what the benchmark printed or emitted."""
    with path.open("rb") as file:
        for line in file:
            if b'"src":"host"' not in line and b'"src":"run"' not in line and line.endswith(b"\n"):
                yield json.loads(line)


def headline_of(how: Headline, values: Sequence[float]) -> float:
    """Return which of one or more values stands for all."""
    match how:
        case Headline.MIN:
            return min(values)
        case Headline.MAX:
            return max(values)
        case Headline.MEAN:
            return mean_of(values)
        case Headline.MEDIAN:
            return median_of(values)
        case Headline.LAST:
            return values[-1]
