"""The figures of one series: where its values lie, how far they scatter, and which one number stands for its run."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bai_agent.job.descriptor import Headline, Metric
from bai_agent.job.interval import mean_of
from bai_agent.job.job_headlines import headline_of
from executor.records.points import PointSeries
from executor.records.statistics import quantile


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What is known of one or more finite values, in the order in which they came."""

    count: int
    mean: float
    median: float
    stdev: float | None
    """Of a sample: with n - 1. None of one value."""
    p5: float
    p95: float
    """Quantiles are interpolated between the two nearest values, as numpy's are."""
    minimum: float
    maximum: float
    first: float
    last: float

    def as_table(self) -> dict[str, Any]:
        """Return them as JSON values."""
        names = {"minimum": "min", "maximum": "max"}
        return {names.get(name, name): value for name, value in self.__dict__.items()}


def figures(values: Sequence[float]) -> Figures | None:
    """Return the figures of finite `values`; None where there are none. None of them is NaN or infinite."""
    if not values:
        return None
    ordered = sorted(values)
    mean = mean_of(values)
    return Figures(
        count=len(values),
        mean=mean,
        median=quantile(ordered, 0.5),
        stdev=_stdev(values, mean),
        p5=quantile(ordered, 0.05),
        p95=quantile(ordered, 0.95),
        minimum=ordered[0],
        maximum=ordered[-1],
        first=values[0],
        last=values[-1],
    )


def headline(series: PointSeries, metric: Metric | None, *, started: int | None = None) -> float | None:
    """Return the number that stands for the run, without the warm-up; None where nothing is left."""
    values = measured(series, metric, started=started)
    return headline_of(metric.headline if metric is not None else Headline.LAST, values) if values else None


def measured(series: PointSeries, metric: Metric | None, *, started: int | None = None) -> Sequence[float]:
    """Return the values of a series without its warm-up.

    started: when the benchmark, or this repeat of it, was started (ms UTC); unset: the first value's time stands for it.
    """
    return series.values[warmup_count(series, metric, started=started) :]


def warmup_count(series: PointSeries, metric: Metric | None, *, started: int | None = None) -> int:
    """Return how many values a series' warm-up has."""
    if metric is None:
        return 0
    if metric.warmup is None:
        return min(metric.warmup_values, len(series))
    if not series.timestamps:
        return 0
    begin = series.timestamps[0] if started is None else started
    return bisect_left(series.timestamps, begin + round(metric.warmup.total_seconds() * 1000))


def metric_of(series: PointSeries, metrics: Mapping[str, Metric]) -> Metric | None:
    """Return what the descriptor says of a series; nothing of what the machine or the run itself measures."""
    return None if series.key.src in ("host", "run") else metrics.get(series.key.name)


def _stdev(values: Sequence[float], mean: float) -> float | None:
    if len(values) < 2:
        return None
    # Scaled, as the square of a large value would overflow, and that of a small one vanish.
    largest = max(abs(value / 2 - mean / 2) for value in values)
    if not largest:
        return 0.0
    squares = math.fsum(((value / 2 - mean / 2) / largest) ** 2 for value in values)
    return min(largest * (2 * math.sqrt(squares / (len(values) - 1))), sys.float_info.max)
