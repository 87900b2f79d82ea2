"""Whether a metric had settled: a mark for runs whose one number hides that they were still on their way.

The rule looks at up to 256 values, evenly spread over the run without its warm-up, as 32 medians of neighbours, which spikes do
not move. A series is marked where Pettitt's test (Applied Statistics 1979) finds a change in it, and where that is of importance:
more than the metric's tolerance, and more than 2 % of its level. Neighbours resemble each other, so what chance explains is
widened by how much they do. Few values are not judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bai_agent.job.descriptor import Metric
from bai_agent.job.interval import median_of
from executor.records.points import PointSeries
from executor.records.statistics import Trend

FEWEST = 100
"""Values below which nothing is said."""
_BLOCKS = 32
_LEVEL = 0.02
"""Of Pettitt's test; chosen by simulation, so that at most 4 % of noise that is like its neighbours is marked."""
_SURE = 4.5
"""Standard errors beyond which the slope at the end is called one."""
_LEAST_SHARE = 0.02


@dataclass(frozen=True)
class Unsteady:
    """Why a series is not steady."""

    trends: bool
    """It still rises or falls at its end; else it changed before."""
    change: float
    """From before the change to after it, or over the last half; in the metric's units."""
    level: float
    """The median after the change."""
    share: float
    """How much of the run was over when it changed."""

    @property
    def sentence(self) -> str:
        # Relative to where the change begins: a value that falls to a tenth falls by 90 %.
        start = self.level - (self.change / 2 if self.trends else self.change)
        share = abs(self.change / start) if start else math.inf
        amount = f" by {share:.0%}" if share < 10 else " many times over"
        direction = "rises" if self.change > 0 else "falls"
        if self.trends:
            return f"not steady: it still {direction} at the end,{amount} over the second half"
        return f"not steady: it {direction}{amount}, {self.share:.0%} into its values"


def unsteady(values: Sequence[float], *, tolerance: float | None = None) -> Unsteady | None:
    """Return why a series, without its warm-up, is not steady; None where it is, or has too few values to say."""
    if len(values) < FEWEST:
        return None
    scale = max(abs(value) for value in values)
    if not scale:
        return None
    blocks = _medians([value / scale for value in values])
    at, score = _pettitt(blocks)
    before, after = blocks[:at], blocks[at:]
    level = median_of(after)
    least = max(_LEAST_SHARE, tolerance or 0.0) * abs(level)
    step = level - median_of(before)
    count = len(blocks)
    residuals = _residuals(max(before, after, key=len))
    # Beside a step that is a hundred times as large, the noise explains nothing.
    small = max(map(abs, residuals)) < abs(step) / 100
    likeness = 1.0 if small else _inflation(residuals)
    p = 2 * math.exp(-6 * score**2 / (count**3 + count**2) / likeness)
    if abs(step) <= least or p > _LEVEL:
        return None
    slope, error = _slope(blocks[count // 2 :])
    if abs(slope) > least and abs(slope) > _SURE * error:
        return Unsteady(True, slope * scale, level * scale, at / count)
    return Unsteady(False, step * scale, level * scale, at / count)


def series_unsteady(series: PointSeries, metric: Metric | None, values: Sequence[float]) -> Unsteady | None:
    """Return why a series of a job, whose `values` are without warm-up, is not steady."""
    trend = Trend()
    trend.add_all(values)
    return unsteady(trend.points, tolerance=metric.tolerance if metric is not None else None)


def _medians(values: Sequence[float]) -> list[float]:
    edges = [len(values) * i // _BLOCKS for i in range(_BLOCKS + 1)]
    return [median_of(values[a:b]) for a, b in pairwise(edges)]


def _pettitt(values: Sequence[float]) -> tuple[int, int]:
    """Return where values change most, as the number before that, and Pettitt's statistic there."""
    best, score, places = 1, 0, 0
    for i, value in enumerate(values[:-1]):
        places += sum((value > other) - (value < other) for other in values)
        if abs(places) > score:
            best, score = i + 1, abs(places)
    return best, score


def _residuals(values: Sequence[float]) -> list[float]:
    """Return how far values lie from a line through them."""
    times = _times(len(values))
    middle, slope = _mean(values), _slope_of(values)
    return [value - middle - slope * time for time, value in zip(times, values, strict=True)]


def _slope(values: Sequence[float]) -> tuple[float, float]:
    """Return how far a line through the values rises from the first to the last, and the standard error of that."""
    count = len(values)
    residuals = _residuals(values)
    variance = math.fsum(value**2 for value in residuals) / (count - 2)
    spread = math.fsum(time**2 for time in _times(count))
    error = math.sqrt(variance / spread * _inflation(residuals))
    return _slope_of(values) * (count - 1), error * (count - 1)


def _slope_of(values: Sequence[float]) -> float:
    times = _times(len(values))
    products = math.fsum(time * value for time, value in zip(times, values, strict=True))
    return products / math.fsum(time**2 for time in times)


def _times(count: int) -> list[float]:
    return [i - (count - 1) / 2 for i in range(count)]


def _inflation(residuals: Sequence[float]) -> float:
    """Return by how much the variance of a mean grows because neighbours resemble each other: (1 + r) / (1 - r)."""
    squares = math.fsum(value**2 for value in residuals)
    if not squares:
        return 1.0
    products = math.fsum(a * b for a, b in pairwise(residuals))
    # The line that was fitted makes neighbours look less alike than they are.
    correlation = products / squares
    correlation += (2 + 3 * max(correlation, 0.0)) / len(residuals)
    correlation = min(max(correlation, 0.0), 0.9)
    return (1 + correlation) / (1 - correlation)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
