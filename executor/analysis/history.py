"""Computes statistics of runs in order of time: the scatter of the runs, the band for the next runs, and
drifts of one or two sides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, combinations, pairwise
from statistics import mean, median

from bai_agent.job.figures import deviation, mean_of, trend_p
from bai_agent.light_dataclass import dataclass
from executor.analysis.effect import (
    interval,
    is_relative,
    least_step,
    on_scale,
    rounding,
)

FEWEST = 5
"""Minimum number of runs that can show a drift."""
DRIFTS = 0.01
"""Significance level, over all metrics, at which a trend is called a drift."""


def successive_scatter(values: Sequence[float]) -> float | None:
    """Return the relative standard deviation of runs that are given in order of time; None if it cannot be
    computed.

    The deviation is computed from the median step between consecutive runs, so neither a single change among
    many runs nor a slow drift affects the deviation.
    """
    if len(values) < 2 or not is_relative(*values):
        return None
    logs = on_scale(values, relative=True)
    # The median distance of two normally distributed values is 0.954 standard deviations.
    return median(abs(b - a) for a, b in pairwise(logs)) / 0.954


@dataclass(frozen=True)
class Band:
    """The band in which the centre of further runs is expected."""

    low: float
    high: float
    """Ends of the interval that contains the centre in `CONFIDENCE` of all cases."""
    p: float
    """p value of the observed centre."""


def prediction(values: Sequence[float], newest: Sequence[float]) -> Band:
    """Return the band in which the centre of `newest` is expected if the newest runs are like the earlier
    runs, and the p value of the actual centre.

    values: the numbers of the earlier runs, two or more. Student's t distribution is used, on logarithms if
    all values are positive. The scatter is assumed to be at least the scatter that rounding causes.
    """
    relative = is_relative(*values, *newest)
    scaled, seen = on_scale(values, relative=relative), mean_of(on_scale(newest, relative=relative))
    middle = mean_of(scaled)
    scatter = max(deviation(scaled), rounding(values, step=least_step(values, newest), relative=relative))
    error = scatter * math.sqrt(1 / len(newest) + 1 / len(values))
    low, high, p = interval(seen - middle, error, freedom=len(values) - 1)
    # The band is centred on the history, so of the interval of the difference only the width is used.
    half = (high - low) / 2
    ends = (middle - half, middle + half)
    return Band(*((_exp(ends[0]), _exp(ends[1])) if relative else ends), p)


def drift(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the typical change from one run to the next (Theil and Sen's slope), and Kendall's p value of
    the trend; None for fewer than five runs.

    The change is on the scale that `is_relative` decides.
    """
    if len(values) < FEWEST:
        return None
    relative = is_relative(*values)
    scaled = on_scale(values, relative=relative)
    slopes = [(y - x) / (j - i) for (i, x), (j, y) in combinations(enumerate(scaled), 2)]
    slope = median(slopes)
    return (math.expm1(min(slope, 700.0)) if relative else slope), trend_p(scaled)


def _exp(value: float) -> float:
    return math.exp(min(value, 709.0))


@dataclass(frozen=True, kw_only=True)
class SidesDrift:
    """The trends within two sides that ran one after the other: trends of the logarithms if changes are
    relative, otherwise of the numbers."""

    both_p: float
    """p value of the trend that both sides have in common."""
    each_p: tuple[float, float]
    explained: float
    """Change from the first side to the second that the common trend alone would cause."""

    def explains(self, change: float) -> bool:
        """Return whether the trend explains at least half of a change. If so, the effect of the compared
        programs is unknown."""
        return abs(self.explained) >= abs(change) / 2


def one_after_the_other(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether all runs of one side started before all runs of the other side. a, b: times (ms UTC); 0
    if unknown."""
    return all((*a, *b)) and (max(a) < min(b) or max(b) < min(a))


def sides_drift(a: Sequence[tuple[int, float]], b: Sequence[tuple[int, float]]) -> SidesDrift | None:
    """Return the trends of two sides' numbers, each with the start time of its run; None if no trend can be
    determined.

    The slope is Theil and Sen's, over all pairs of runs within the same side.
    """
    if min(len(a), len(b)) < FEWEST or not one_after_the_other([t for t, _ in a], [t for t, _ in b]):
        return None
    sides = [sorted(side) for side in (a, b)]
    numbers = [[value for _, value in side] for side in sides]
    slopes = list(chain.from_iterable(map(_slopes, sides)))
    distance = mean(time for time, _ in b) - mean(time for time, _ in a)
    explained = median(slopes) * distance if slopes else 0.0
    return SidesDrift(
        both_p=trend_p(*numbers),
        each_p=(trend_p(numbers[0]), trend_p(numbers[1])),
        explained=explained if math.isfinite(explained) else 0.0,
    )


def _slopes(side: Sequence[tuple[int, float]]) -> Iterator[float]:
    """Yield the slope between each two runs of a side. side: the runs in order of time."""
    for (earlier, x), (later, y) in combinations(side, 2):
        if later > earlier:
            yield (y - x) / (later - earlier)
