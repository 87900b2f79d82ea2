"""What runs in order of time say of the next one: their scatter, their band, their drift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from bai_agent.job.interval import mean_of
from executor.analysis.effect import ALPHA, bounded, deviation, is_relative, on_scale, student


def successive_scatter(values: Sequence[float]) -> float | None:
    """Return the relative standard deviation of runs, in order of time; None where it cannot be known.

    By the median step from one run to the next: what was changed between two of many runs, and a slow drift, are no scatter.
    """
    if len(values) < 2 or not is_relative(*values):
        return None
    logs = on_scale(values, relative=True)
    # The median distance of two normal values is 0.954 of their standard deviation.
    return median(abs(b - a) for a, b in pairwise(logs)) / 0.954


def prediction(values: Sequence[float], runs: int = 1) -> tuple[float, float]:
    """Return between which bounds the centre of so many further runs is expected, in `CONFIDENCE` of all cases.

    Of two or more values; Student's t, on logarithms where all are positive.
    """
    relative = is_relative(*values)
    scaled = on_scale(values, relative=relative)
    middle = mean_of(scaled)
    factor = student(len(values) - 1, 1 - ALPHA / 2) * math.sqrt(1 / runs + 1 / len(values))
    half = factor * deviation(scaled)
    ends = (bounded(middle - half), bounded(middle + half))
    return (_exp(ends[0]), _exp(ends[1])) if relative else ends


def drift(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the change from a run to the next (Theil and Sen's slope), and Kendall's p; None of fewer than five.

    On the scale of `is_relative`.
    """
    from scipy import stats

    if len(values) < 5:
        return None
    relative = is_relative(*values)
    scaled = on_scale(values, relative=relative)
    if len(set(scaled)) == 1:
        return 0.0, 1.0
    order = range(len(scaled))
    # The distance of two large values would overflow.
    size = max(abs(value) for value in scaled)
    slope = bounded(float(stats.theilslopes([value / size for value in scaled], list(order))[0]) * size)
    p = float(stats.kendalltau(list(order), scaled).pvalue)
    return (bounded(math.expm1(min(slope, 700.0))) if relative else slope), p


def _exp(value: float) -> float:
    return math.exp(min(value, 709.0))
