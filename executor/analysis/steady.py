"""Checks whether the values of a metric were steady. Runs whose values were still changing are marked,
because a single headline hides the change.

The check uses up to 256 values, evenly spread over the run without its warm-up. The values are reduced to 32
medians of neighbouring values, so that spikes have no effect. A series is marked as unsteady if Pettitt's
test (Applied Statistics 1979) finds a change that is larger than the metric's tolerance and larger than 2 %
of its level. The test takes the correlation of neighbours into account. Short series are not judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

from bai_agent.job.descriptor.metric_tables import Metric
from bai_agent.light_dataclass import dataclass
from executor.records.points import PointSeries
from executor.records.series import Trend

FEWEST = 100
"""Minimum number of values for a judgement."""
_BLOCKS = 32
_LEVEL = 0.02
"""Significance level of Pettitt's test. The level was chosen by simulation, so that at most 4 % of series of
correlated noise are marked."""
_SURE = 4.5
"""Number of standard errors that the slope at the end of a series must exceed to be significant."""
_LEAST_SHARE = 0.02


@dataclass(frozen=True)
class Unsteady:
    """The reason why a series is not steady."""

    trends: bool
    """Whether the series still rises or falls at its end; if not, the series changed earlier."""
    change: float
    """Size of the change, or of the trend over the last half, in the metric's units."""
    level: float
    """Median after the change."""
    share: float
    """Share of the run that precedes the change."""

    @property
    def sentence(self) -> str:
        # The change is divided by the level before it, so that a fall to a tenth is a fall by 90 %.
        start = self.level - (self.change / 2 if self.trends else self.change)
        share = abs(self.change / start) if start else math.inf
        amount = f" by {share:.0%}" if share < 10 else " many times over"
        direction = "rises" if self.change > 0 else "falls"
        if self.trends:
            return f"not steady: still {direction} at the end,{amount} over the second half"
        return f"not steady: {direction}{amount} after {self.share:.0%} of its values"


def unsteady(values: Sequence[float], *, tolerance: float | None = None) -> Unsteady | None:
    """Return why a series, without its warm-up, is not steady; None if the series is steady, or has too few
    values."""
    if len(values) < FEWEST:
        return None
    scale = max(abs(value) for value in values)
    if not scale:
        return None
    blocks = _medians([value / scale for value in values])
    at, score = _pettitt(blocks)
    before, after = blocks[:at], blocks[at:]
    level = median(after)
    step = level - median(before)
    least = max(_LEAST_SHARE, tolerance or 0.0) * abs(level)
    if abs(step) <= least or _chance(blocks, before, after, score=score, step=step) > _LEVEL:
        return None
    count = len(blocks)
    slope, error = _slope(blocks[count // 2 :])
    if abs(slope) > least and abs(slope) > _SURE * error:
        return Unsteady(True, slope * scale, level * scale, at / count)
    return Unsteady(False, step * scale, level * scale, at / count)


def _chance(
    blocks: Sequence[float], before: Sequence[float], after: Sequence[float], *, score: int, step: float
) -> float:
    """Return the p value of a change by Pettitt's statistic, corrected for the correlation of neighbouring
    values."""
    count = len(blocks)
    residuals = _residuals(max(before, after, key=len))
    # The correlation of the noise is ignored if a step is more than a hundred times as large as the noise.
    small = max(map(abs, residuals)) < abs(step) / 100
    likeness = 1.0 if small else _inflation(residuals)
    return 2 * math.exp(-6 * score**2 / (count**3 + count**2) / likeness)


def series_unsteady(series: PointSeries, metric: Metric | None, values: Sequence[float]) -> Unsteady | None:
    """Return why a series of a job is not steady; None if the series is steady. values: the series' values
    without warm-up."""
    trend = Trend()
    trend.add_all(values)
    return unsteady(trend.points, tolerance=metric.tolerance if metric is not None else None)


def _medians(values: Sequence[float]) -> list[float]:
    edges = [len(values) * i // _BLOCKS for i in range(_BLOCKS + 1)]
    return [median(values[a:b]) for a, b in pairwise(edges)]


def _pettitt(values: Sequence[float]) -> tuple[int, int]:
    """Return the number of values before the largest change, and Pettitt's statistic at that place."""
    best, score, places = 1, 0, 0
    for i, value in enumerate(values[:-1]):
        places += sum((value > other) - (value < other) for other in values)
        if abs(places) > score:
            best, score = i + 1, abs(places)
    return best, score


def _residuals(values: Sequence[float]) -> list[float]:
    """Return the distances of values from a line through the values."""
    times = _times(len(values))
    middle, slope = fmean(values), _slope_of(values)
    return [value - middle - slope * time for time, value in zip(times, values, strict=True)]


def _slope(values: Sequence[float]) -> tuple[float, float]:
    """Return the rise of a line through the values from the first to the last, and its standard error."""
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
    """Return the factor by which correlated neighbours increase the variance of a mean: (1 + r) / (1 - r)."""
    squares = math.fsum(value**2 for value in residuals)
    if not squares:
        return 1.0
    products = math.fsum(a * b for a, b in pairwise(residuals))
    # The estimated correlation is corrected, because the fitted line makes neighbouring residuals look less
    # similar than the values are.
    correlation = products / squares
    correlation += (2 + 3 * max(correlation, 0.0)) / len(residuals)
    correlation = min(max(correlation, 0.0), 0.9)
    return (1 + correlation) / (1 - correlation)
