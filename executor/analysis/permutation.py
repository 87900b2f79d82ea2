"""Second opinions that assume less than Student's t: permutations of runs between sides, and of signs within blocks.

Each returns None if so few runs can find nothing. They never decide a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from typing import Any

LEVEL = 0.05
_EXACT = 20_000
"""Arrangements up to which each one is looked at: up to eight runs a side, or 14 blocks."""
_RANDOM = 9_999


def permutation_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the p of the studentised difference of means under arrangements of the runs.

    Divided by its standard error the difference keeps the rate of false alarms also if the sides scatter unequally
    (Janssen, Statistics & Probability Letters 1997).
    """
    import numpy

    arranged = _arranged(a, b)
    if arranged is None or min(len(a), len(b)) < 2:
        return None
    first, second = arranged
    error = first.var(axis=1, ddof=1) / len(a) + second.var(axis=1, ddof=1) / len(b)
    apart = abs(first.mean(axis=1) - second.mean(axis=1))
    # Of two sides that do not scatter any difference is infinitely many errors.
    with numpy.errstate(divide="ignore", invalid="ignore"):
        distances = numpy.where(apart > 1e-12, apart / numpy.sqrt(error), 0.0)
    return _share(distances)


def rank_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the p of the rank test of Mann and Whitney; equal values share a rank."""
    ranks = _ranks([*a, *b])
    arranged = _arranged(ranks[: len(a)], ranks[len(a) :])
    if arranged is None:
        return None
    first, second = arranged
    return _share(abs(first.mean(axis=1) - second.mean(axis=1)))


def sign_flip_p(differences: Sequence[float]) -> float | None:
    """Return the p of the mean of within-block differences under all signs; from six blocks on."""
    import numpy

    count = len(differences)
    if 2 / 2**count > LEVEL:
        return None
    values = numpy.array(differences) / (max(map(abs, differences)) or 1.0)
    if 2**count <= _EXACT:
        signs = _signs(count)
    else:
        signs = numpy.random.default_rng(0).choice((-1.0, 1.0), size=(_RANDOM, count))
        signs = numpy.vstack([numpy.ones(count), signs])
    return _share(abs(signs @ values) / count)


def signed_rank_p(differences: Sequence[float]) -> float | None:
    """Return the p of Wilcoxon's signed ranks of within-block differences; differences of zero are left out."""
    kept = [each for each in differences if each]
    ranks = _ranks([abs(each) for each in kept])
    return sign_flip_p([math.copysign(rank, each) for rank, each in zip(ranks, kept, strict=True)])


def _arranged(a: Sequence[float], b: Sequence[float]) -> tuple[Any, Any] | None:
    """Return both sides of all arrangements, or of random ones, a row each; the first row is what was seen."""
    import numpy

    count = len(a) + len(b)
    arrangements = math.comb(count, len(a))
    # Of n and n runs the most extreme arrangement has a mirror image.
    if (2 if len(a) == len(b) else 1) / arrangements > LEVEL:
        return None
    size = max(abs(value) for value in (*a, *b)) or 1.0
    values = numpy.array([*a, *b]) / size
    values = values - values.mean()
    values /= abs(values).max() or 1.0
    if arrangements <= _EXACT:
        first, second = _places(count, len(a))
        return values[first], values[second]
    # The same runs give the same answer.
    rows = numpy.random.default_rng(0).permuted(numpy.tile(values, (_RANDOM, 1)), axis=1)
    rows = numpy.vstack([values, rows])
    return rows[:, : len(a)], rows[:, len(a) :]


def _share(distances: Any) -> float:
    """Return which share of all distances is as large as the first, which was seen."""
    seen = distances[0]
    # Of the same runs in another order the sums may differ in their last digits.
    return float((distances >= seen - 1e-9 * max(1.0, seen if math.isfinite(seen) else 1.0)).mean())


@cache
def _places(count: int, chosen: int) -> tuple[Any, Any]:
    """Return the indexes of each choice of so many of `count` things, and of the others, a row each."""
    import numpy

    first = numpy.array(list(combinations(range(count), chosen)))
    others = numpy.ones((len(first), count), dtype=bool)
    numpy.put_along_axis(others, first, False, axis=1)
    return first, numpy.nonzero(others)[1].reshape(len(first), count - chosen)


@cache
def _signs(count: int) -> Any:
    """Return every choice of `count` signs, a row each, all positive first."""
    import numpy

    bits = numpy.arange(2**count)[:, None] >> numpy.arange(count) & 1
    return 1.0 - 2.0 * bits


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the place of each value in their order, from 1; equal values have the mean of theirs."""
    order = sorted(values)
    places: dict[float, list[int]] = {}
    for place, value in enumerate(order, 1):
        places.setdefault(value, []).append(place)
    return [sum(places[value]) / len(places[value]) for value in values]
