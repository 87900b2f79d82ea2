"""Whether numbers rise or fall in their order: Kendall's test, for one series or for several together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import combinations

_EXACT = 30
"""Largest series whose score's exact distribution is counted; for longer ones it is normal to four digits."""


def trend_p(*series: Sequence[float]) -> float:
    """Return the two-sided p value for no common trend within `series`.

    Each series has a score of its own: the number of rising pairs minus that of falling pairs (Kendall,
    Biometrika 1938). The distribution of their sum is exact without equal values, else approximately normal
    with the variance corrected for those. 1 if there is nothing to judge.
    """
    score = abs(sum(map(_score, series)))
    if all(len(set(each)) == len(each) <= _EXACT for each in series):
        chances = [1.0]
        for each in series:
            chances = _added(chances, _distribution(len(each)))
        # A score is twice its rising pairs, less all pairs.
        pairs = len(chances) - 1
        return min(1.0, math.fsum(chance for i, chance in enumerate(chances) if abs(2 * i - pairs) >= score))
    variance = sum(map(_variance, series))
    if not variance or score < 1:
        return 1.0
    return math.erfc((score - 1) / math.sqrt(2 * variance))


def _score(values: Sequence[float]) -> int:
    return sum((y > x) - (y < x) for x, y in combinations(values, 2))


def _variance(values: Sequence[float]) -> float:
    counts = [len(values), *(-count for count in Counter(values).values())]
    return sum(math.copysign(n * n - abs(n), n) * (2 * abs(n) + 5) for n in counts) / 18


@cache
def _distribution(count: int) -> list[float]:
    """Return the probability of each number of rising pairs among this number of values in random order."""
    chances = [1.0]
    for size in range(2, count + 1):
        chances = _added(chances, [1 / size] * size)
    return chances


def _added(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Return the distribution of the sum of two numbers."""
    sums = [0.0] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            sums[i + j] += x * y
    return sums
