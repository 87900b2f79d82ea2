"""What runs in order of time say of the next one: their scatter, their band, their drift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median

from bai_agent.job.interval import mean_of
from bai_agent.job.trend import trend_p
from executor.analysis.effect import (
    bounded,
    deviation,
    interval,
    is_relative,
    least_step,
    on_scale,
    rounding,
)


def successive_scatter(values: Sequence[float]) -> float | None:
    """Return the relative standard deviation of runs, in order of time; None where it cannot be known.

    By the median step from one run to the next: what was changed between two of many runs, and a slow drift, are no scatter.
    """
    if len(values) < 2 or not is_relative(*values):
        return None
    logs = on_scale(values, relative=True)
    # The median distance of two normal values is 0.954 of their standard deviation.
    return median(abs(b - a) for a, b in pairwise(logs)) / 0.954


@dataclass(frozen=True)
class Band:
    """Where the centre of further runs is expected."""

    low: float
    high: float
    """Between these in `CONFIDENCE` of all cases."""
    p: float
    """Of the centre that was seen."""


def prediction(values: Sequence[float], newest: Sequence[float]) -> Band:
    """Return the band in which the centre of so many further runs as `newest` is expected, and how likely theirs is.

    Of two or more values; Student's t, on logarithms where all are positive. Runs scatter at least as rounding does.
    """
    relative = is_relative(*values, *newest)
    scaled, seen = on_scale(values, relative=relative), mean_of(on_scale(newest, relative=relative))
    middle = mean_of(scaled)
    scatter = max(deviation(scaled), rounding(values, step=least_step(values, newest), relative=relative))
    error = bounded(scatter * math.sqrt(1 / len(newest) + 1 / len(values)))
    low, high, p = interval(bounded(seen - middle), error, freedom=len(values) - 1)
    # The interval of the distance, seen from the middle.
    half = bounded(high / 2 - low / 2)
    ends = (bounded(middle - half), bounded(middle + half))
    return Band(*((_exp(ends[0]), _exp(ends[1])) if relative else ends), p)


def drift(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the change from a run to the next (Theil and Sen's slope), and Kendall's p; None of fewer than five.

    On the scale of `is_relative`.
    """
    if len(values) < 5:
        return None
    relative = is_relative(*values)
    scaled = on_scale(values, relative=relative)
    # Halved: the distance of two large values would overflow.
    slopes = [(y / 2 - x / 2) / (j - i) for (i, x), (j, y) in combinations(enumerate(scaled), 2)]
    slope = bounded(2 * median(slopes))
    return (bounded(math.expm1(min(slope, 700.0))) if relative else slope), trend_p(scaled)


def _exp(value: float) -> float:
    return math.exp(min(value, 709.0))
