"""Whether a metric had settled: a mark for runs whose one number hides that they were still on their way.

The rule looks at up to 256 values, evenly spread over the run without its warm-up, as 32 means of neighbours. A series is
marked where these say, by more than chance explains, that the second half lies elsewhere than the first, or that the last half
still rises or falls; and where that is of importance: more than the metric's tolerance, and more than 2 % of its level.
Neighbours resemble each other, so what chance explains is widened by how much they do. Few values are not judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bai_agent.job.descriptor import Metric
from executor.records.points import PointSeries
from executor.records.statistics import Trend

FEWEST = 32
"""Values below which nothing is said."""
_MEANS = 32
_SURE = 4.5
"""Standard errors beyond which a change is no chance; chosen by simulation, with noise that is like its neighbours."""
_LEAST_SHARE = 0.02


@dataclass(frozen=True)
class Unsteady:
    """Why a series is not steady."""

    trends: bool
    """It still rises or falls at its end; else its halves differ."""
    change: float
    """From the first half's mean to the second's, or over the last half; in the metric's units."""
    level: float
    """The mean of the second half."""

    @property
    def sentence(self) -> str:
        share = abs(self.change / self.level) if self.level else math.inf
        amount = f" by {share:.0%}" if share < 10 else " many times over"
        direction = "rises" if self.change > 0 else "falls"
        if self.trends:
            return f"not steady: it still {direction} at the end,{amount} over the second half"
        return f"not steady: its halves differ{amount}"


def unsteady(values: Sequence[float], *, tolerance: float | None = None) -> Unsteady | None:
    """Return why a series, without its warm-up, is not steady; None where it is, or has too few values to say."""
    if len(values) < FEWEST:
        return None
    scale = max(abs(value) for value in values)
    if not scale:
        return None
    means = _means([value / scale for value in values])
    half = len(means) // 2
    level = _mean(means[half:])
    least = max(_LEAST_SHARE, tolerance or 0.0) * abs(level)
    step, step_error = _step(means)
    slope, slope_error = _trend(means[half:])
    if abs(slope) > least and abs(slope) > _SURE * slope_error:
        return Unsteady(True, slope * scale, level * scale)
    if abs(step) > least and abs(step) > _SURE * step_error:
        return Unsteady(False, step * scale, level * scale)
    return None


def series_unsteady(series: PointSeries, metric: Metric | None, values: Sequence[float]) -> Unsteady | None:
    """Return why a series of a job, whose `values` are without warm-up, is not steady."""
    trend = Trend()
    trend.add_all(values)
    return unsteady(trend.points, tolerance=metric.tolerance if metric is not None else None)


def _means(values: Sequence[float]) -> list[float]:
    edges = [len(values) * i // _MEANS for i in range(_MEANS + 1)]
    return [_mean(values[a:b]) for a, b in pairwise(edges)]


def _step(means: Sequence[float]) -> tuple[float, float]:
    """Return how far the second half lies from the first, and the standard error of that."""
    half = len(means) // 2
    first, second = means[:half], means[half:]
    # What is settled, if anything is, comes last: its scatter is the noise, and a warm-up's fall is none of it.
    residuals = [value - _mean(second) for value in second]
    variance = math.fsum(value**2 for value in residuals) / (half - 1)
    error = math.sqrt(variance * 2 / half * _inflation(residuals, fitted=1))
    return _mean(second) - _mean(first), error


def _trend(means: Sequence[float]) -> tuple[float, float]:
    """Return how far a line through the values rises from the first to the last, and the standard error of that."""
    count = len(means)
    times = [i - (count - 1) / 2 for i in range(count)]
    spread = math.fsum(time**2 for time in times)
    middle = _mean(means)
    slope = math.fsum(time * value for time, value in zip(times, means, strict=True)) / spread
    residuals = [value - middle - slope * time for time, value in zip(times, means, strict=True)]
    variance = math.fsum(value**2 for value in residuals) / (count - 2)
    error = math.sqrt(variance / spread * _inflation(residuals, fitted=2))
    return slope * (count - 1), error * (count - 1)


def _inflation(residuals: Sequence[float], *, fitted: int) -> float:
    """Return by how much the variance of a mean grows because neighbours resemble each other: (1 + r) / (1 - r)."""
    squares = math.fsum(value**2 for value in residuals)
    if not squares:
        return 1.0
    products = math.fsum(a * b for a, b in pairwise(residuals))
    count = len(residuals)
    # What was fitted makes neighbours look less alike than they are.
    correlation = products / squares
    correlation += (fitted + 3 * max(correlation, 0.0)) / count
    correlation = min(max(correlation, 0.0), 0.9)
    return (1 + correlation) / (1 - correlation)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
