"""Runs in order of time: their scatter, the band of the next runs, and drifts of one or two sides."""

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
"""Smallest number of runs that can show a drift."""
DRIFTS = 0.01
"""Level at which a trend is called a drift, over all metrics."""


def successive_scatter(values: Sequence[float]) -> float | None:
    """Return the relative standard deviation of runs, in order of time; None if it is unknown.

    It is computed from the median step between consecutive runs, so a single change among many runs, and a
    slow drift, do not count.
    """
    if len(values) < 2 or not is_relative(*values):
        return None
    logs = on_scale(values, relative=True)
    # The median distance of two normal values is 0.954 of their standard deviation.
    return median(abs(b - a) for a, b in pairwise(logs)) / 0.954


@dataclass(frozen=True)
class Band:
    """Band in which the centre of further runs is expected."""

    low: float
    high: float
    """Ends of the interval that contains it in `CONFIDENCE` of all cases."""
    p: float
    """p value of the centre that was seen."""


def prediction(values: Sequence[float], newest: Sequence[float]) -> Band:
    """Return the band in which the centre of as many further runs as `newest` is expected, and the p value of theirs.

    values: two or more. Student's t, on logarithms if all are positive. Runs scatter at least as rounding does.
    """
    relative = is_relative(*values, *newest)
    scaled, seen = on_scale(values, relative=relative), mean_of(on_scale(newest, relative=relative))
    middle = mean_of(scaled)
    scatter = max(deviation(scaled), rounding(values, step=least_step(values, newest), relative=relative))
    error = scatter * math.sqrt(1 / len(newest) + 1 / len(values))
    low, high, p = interval(seen - middle, error, freedom=len(values) - 1)
    # The interval of the distance, seen from the middle.
    half = (high - low) / 2
    ends = (middle - half, middle + half)
    return Band(*((_exp(ends[0]), _exp(ends[1])) if relative else ends), p)


def drift(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the change from one run to the next (Theil and Sen's slope), and Kendall's p value; None for
    fewer than five runs.

    On the scale of `is_relative`.
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
    """The trends within two sides, one of which ran after the other, on the scale on which their change is
    judged."""

    both_p: float
    """p value of a common trend within the sides."""
    each_p: tuple[float, float]
    explained: float
    """The change from the first side to the second that the trend alone would cause."""

    def explains(self, change: float) -> bool:
        """Return whether the trend explains at least half of a change, so that the programs' part of it is
        unknown."""
        return abs(self.explained) >= abs(change) / 2


def one_after_the_other(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether all runs of one side started before those of the other. a, b: times (ms UTC); 0 if unknown."""
    return all((*a, *b)) and (max(a) < min(b) or max(b) < min(a))


def sides_drift(a: Sequence[tuple[int, float]], b: Sequence[tuple[int, float]]) -> SidesDrift | None:
    """Return the trends of two sides' numbers, each with the start time of its run; None if no trend can be
    determined.

    The slope is Theil and Sen's, over the pairs of runs within the sides.
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
    """Yield the slope between each two runs of a side, which are in order of time."""
    for (earlier, x), (later, y) in combinations(side, 2):
        if later > earlier:
            yield (y - x) / (later - earlier)
