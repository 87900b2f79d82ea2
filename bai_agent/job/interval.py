"""The confidence interval of a mean over runs: for deciding whether there are enough, and for telling it."""

from __future__ import annotations

import math
from collections.abc import Sequence

_NORMAL = 1.959963984540054
"""The normal distribution's quantile at 0.975."""
_STUDENT = (
    12.706205,
    4.302653,
    3.182446,
    2.776445,
    2.570582,
    2.446912,
    2.364624,
    2.306004,
    2.262157,
    2.228139,
)
"""Student's t at 0.975 for 1, 2, … 10 degrees of freedom."""


def student_975(freedom: int) -> float:
    """Return Student's t at 0.975 for so many degrees of freedom, to five digits.

    Beyond the table: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.5.
    """
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    x = _NORMAL
    return (
        x
        + (x**3 + x) / (4 * freedom)
        + (5 * x**5 + 16 * x**3 + 3 * x) / (96 * freedom**2)
        + (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / (384 * freedom**3)
        + (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / (92160 * freedom**4)
    )


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of one or more finite values: finite, and between the least and the greatest."""
    # Of halves of shares: the sum of large values would overflow, rounded up even that of their shares.
    half = math.fsum(value / 2 / len(values) for value in values)
    return min(max(half * 2, min(values)), max(values))


def median_of(values: Sequence[float]) -> float:
    """Return the median of one or more finite values: finite."""
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    # Halved only where it has to be, as half of the least number is none.
    between = (low + high) / 2
    return between if math.isfinite(between) else low / 2 + high / 2


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95 % confidence interval of the mean of `values`; infinite for fewer than two."""
    count = len(values)
    if count < 2:
        return math.inf
    mean = mean_of(values)
    deviation = math.hypot(*(value - mean for value in values)) / math.sqrt(count - 1)
    return student_975(count - 1) * deviation / math.sqrt(count)


def relative_half_width(values: Sequence[float]) -> float:
    """Return the same as a share of the mean; infinite where that is zero and values differ."""
    half = half_width(values)
    if half in (0, math.inf):
        return half
    mean = mean_of(values)
    return half / abs(mean) if mean else math.inf
