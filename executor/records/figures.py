"""Computes statistical figures of one series: location, scatter, and headline."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bai_agent.job.descriptor.metric_tables import Headline, Metric
from bai_agent.job.figures import deviation, mean_of
from bai_agent.job.job_headlines import headline_of
from bai_agent.light_dataclass import dataclass

# `points` is imported for type checks only, because `bai list` does not need it at run time.
if TYPE_CHECKING:
    from executor.records.points import PointSeries, SeriesKey


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of one or more values in their order. No value may be beyond `LIMIT`."""

    count: int
    mean: float
    median: float
    stdev: float | None
    """Sample standard deviation (n - 1); None for one value."""
    p5: float
    p95: float
    """95th percentile. Quantiles are interpolated between the two nearest values, as in numpy."""
    minimum: float
    maximum: float
    first: float
    last: float

    def as_table(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        names = {"minimum": "min", "maximum": "max"}
        return {names.get(name, name): value for name, value in self.__dict__.items()}


def figures(values: Sequence[float]) -> Figures | None:
    """Return the figures of any number of `values`; None if there are no values."""
    if not values:
        return None
    stdev = deviation(values) if len(values) > 1 else None
    ordered = sorted(values)
    return Figures(
        count=len(values),
        mean=mean_of(values),
        median=quantile(ordered, 0.5),
        stdev=stdev,
        p5=quantile(ordered, 0.05),
        p95=quantile(ordered, 0.95),
        minimum=ordered[0],
        maximum=ordered[-1],
        first=values[0],
        last=values[-1],
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return an interpolated quantile of sorted values (Hyndman and Fan's type 7)."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    part = position - low
    if not part:
        return ordered[low]
    between = ordered[low] * (1 - part) + ordered[low + 1] * part
    return min(max(between, ordered[low]), ordered[low + 1])


def headline(series: PointSeries, metric: Metric | None, *, started: int | None = None) -> float | None:
    """Return the headline of a run, computed without the warm-up; None if no values are left."""
    values = measured(series, metric, started=started)
    return headline_of(metric.headline if metric is not None else Headline.LAST, values) if values else None


def measured(series: PointSeries, metric: Metric | None, *, started: int | None = None) -> Sequence[float]:
    """Return the values of a series without its warm-up.

    started: start of the benchmark, or of this repeat (ms UTC). Without a start, the warm-up begins with the
    first value.
    """
    return series.values[warmup_count(series, metric, started=started) :]


def warmup_count(series: PointSeries, metric: Metric | None, *, started: int | None = None) -> int:
    """Return the number of values in the warm-up of a series."""
    if metric is None:
        return 0
    if metric.warmup is None:
        return min(metric.warmup_values, len(series))
    if not series.timestamps:
        return 0
    begin = series.timestamps[0] if started is None else started
    return bisect_left(series.timestamps, begin + round(metric.warmup.total_seconds() * 1000))


def start_of(key: SeriesKey, starts: Mapping[int | None, int]) -> int | None:
    """Return the start of the run or generation of a series (ms UTC). starts: as returned by
    `benchmark_starts`."""
    return starts.get(key.part, starts.get(None))


def metric_of(series: PointSeries, metrics: Mapping[str, Metric]) -> Metric | None:
    """Return the descriptor's metric for a series; None for metrics of the machine or of the run itself."""
    return None if series.key.is_own else metrics.get(series.key.name)
