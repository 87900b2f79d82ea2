"""Whether the machine drifted while the two sides of a comparison ran one after the other: then it is not the programs that differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, median

from bai_agent.job.trend import trend_p

FEWEST = 5
"""Runs of a side in which a drift can be seen."""
DRIFTS = 0.01
"""The level at which a trend is called one, over all metrics."""


@dataclass(frozen=True, kw_only=True)
class SidesDrift:
    """The trends within two sides, of which one ran after the other, on the scale that their change is judged on."""

    both_p: float
    """Of a common trend within the sides."""
    each_p: tuple[float, float]
    explained: float
    """The change from the first side to the second that the trend alone would make."""

    def explains(self, change: float) -> bool:
        """Return whether the trend is of the size of a change, half of it or more: then nobody knows the programs' part."""
        return abs(self.explained) >= abs(change) / 2


def one_after_the_other(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether all runs of one side started before those of the other. a, b: times (ms UTC); 0 where that is unknown."""
    return all((*a, *b)) and (max(a) < min(b) or max(b) < min(a))


def sides_drift(a: Sequence[tuple[int, float]], b: Sequence[tuple[int, float]]) -> SidesDrift | None:
    """Return the trends of two sides' numbers, each with the time at which its run started; None if nothing can be seen.

    The slope is Theil and Sen's, over the pairs of runs within the sides.
    """
    if min(len(a), len(b)) < FEWEST or not one_after_the_other([t for t, _ in a], [t for t, _ in b]):
        return None
    sides = [sorted(side) for side in (a, b)]
    numbers = [[value for _, value in side] for side in sides]
    slopes = [
        (y / 2 - x / 2) / (later - earlier) * 2
        for side in sides
        for (earlier, x), (later, y) in combinations(side, 2)
        if later > earlier
    ]
    distance = mean(time for time, _ in b) - mean(time for time, _ in a)
    explained = median(slopes) * distance if slopes else 0.0
    return SidesDrift(
        both_p=trend_p(*numbers),
        each_p=(trend_p(numbers[0]), trend_p(numbers[1])),
        explained=explained if math.isfinite(explained) else 0.0,
    )
