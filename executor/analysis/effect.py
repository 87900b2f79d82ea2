"""How far two samples of runs lie apart, and how sure that is: Welch's interval, a permutation test, Holm's correction.

A sample holds one number for each run, never the values within one: those of one run resemble each other, and taken for
independent they find differences where there are none (Abedi and Brecht, ICPE 2017).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from statistics import median
from typing import Any

from bai_agent.job.interval import mean_of

CONFIDENCE = 0.95
"""Of every interval; what is called a difference is one by chance in 5 % of comparisons of equals."""
ALPHA = 1 - CONFIDENCE
POWER = 0.8
"""With so many runs as we advise, a difference of the size that is named is found four times of five."""

_EXACT = 20_000
"""Arrangements of which a permutation test looks at each one: up to eight runs a side."""
_RANDOM = 9_999
_MOST_RUNS = 10_000


@dataclass(frozen=True, kw_only=True)
class Effect:
    """How far side B lies from side A."""

    relative: bool
    """Whether it is a share of A (-0.2: 20 % less), or a difference in the metric's units."""
    change: float
    low: float | None
    high: float | None
    """Of the confidence interval; None where nothing is known of the scatter: one run on a side."""
    p: float | None
    """By Welch's test, which the interval agrees with."""
    permutation_p: float | None
    """By a permutation test; None where too few runs make it unable to find anything."""
    scatter: float | None
    """The standard deviation of runs within a side, as a share or in the metric's units."""
    notes: tuple[str, ...] = ()

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def within(self, bound: float) -> bool:
        """Return whether the whole interval lies between -bound and bound."""
        return self.low is not None and self.high is not None and -bound <= self.low and self.high <= bound


def effect(a: Sequence[float], b: Sequence[float], *, permutation: bool = True) -> Effect:
    """Return how far the runs `b` lie from the runs `a`: one or more finite numbers each.

    permutation: whether a permutation test is made as well, which takes milliseconds where runs are many.

    Relative where all numbers are positive: then it is the ratio of the geometric means, from a test of the logarithms, in
    which the scatter of both sides is taken into account. Absolute, of the means, where a share would mean nothing.
    """
    relative = is_relative(*a, *b)
    first, second = (_on_scale(side, relative=relative) for side in (a, b))
    difference = mean_of(second) - mean_of(first)
    notes: tuple[str, ...] = ()
    if not relative:
        notes = (
            "not all of its values are positive: the change is in its units, as a share of them means nothing",
        )

    def back(value: float) -> float:
        return bounded(math.expm1(min(value, 700.0))) if relative else bounded(value)

    deviations = [_deviation(side) for side in (first, second)]
    scatter = _pooled(first, second)
    if len(a) < 2 or len(b) < 2:
        return Effect(
            relative=relative, change=back(difference), low=None, high=None, p=None, permutation_p=None,
            scatter=scatter, notes=notes,
        )  # fmt: skip
    if not any(deviations):
        equal = not difference
        return Effect(
            relative=relative, change=back(difference), low=back(difference), high=back(difference),
            p=1.0 if equal else 0.0, permutation_p=_permutation_p(first, second) if permutation else None, scatter=0.0,
            notes=(
                *notes,
                "all runs of both sides gave the same number"
                if equal
                else "the runs of each side gave one and the same number: it does not scatter, so the interval has no width",
            ),
        )  # fmt: skip
    if not all(deviations):
        notes = (
            *notes,
            f"all runs of side {'A' if not deviations[0] else 'B'} gave the same number: its scatter is taken as none",
        )
    low, high, p = _welch(first, second)
    return Effect(
        relative=relative, change=back(difference), low=back(low), high=back(high), p=p,
        permutation_p=_permutation_p(first, second) if permutation else None, scatter=scatter, notes=notes,
    )  # fmt: skip


def bounded(value: float) -> float:
    """Return `value`, which overflow has perhaps made infinite, as a finite number."""
    return min(max(value, -1.7e308), 1.7e308)


def is_relative(*values: float) -> bool:
    """Return whether differences of these values are shares: all are positive."""
    return all(value > 0 for value in values)


def centre(values: Sequence[float], *, relative: bool) -> float:
    """Return the number that stands for a side: the geometric mean, or the mean where changes are absolute."""
    if not relative:
        return mean_of(values)
    size = math.exp(mean_of([math.log(value) for value in values]))
    return min(max(size, min(values)), max(values))


def holm(ps: Sequence[float]) -> list[float]:
    """Return p values corrected for their number (Holm 1979), in the given order."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    corrected = [0.0] * len(ps)
    highest = 0.0
    for place, i in enumerate(order):
        highest = max(highest, min(1.0, ps[i] * (len(ps) - place)))
        corrected[i] = highest
    return corrected


def runs_needed(*, scatter: float, difference: float) -> int | None:
    """Return how many runs a side find a difference of that size, both on one scale; None: more than 10,000.

    By the usual approximation of a t test's power: `POWER`, with a false alarm in `ALPHA` of all cases.
    """
    from scipy import special

    share = scatter / difference
    # Not `**`, which raises where this is infinite.
    ratio = 2 * share * share
    if not scatter:
        return 2
    if not ratio < _MOST_RUNS:
        return None
    runs = max(2, math.ceil(ratio * float(special.ndtri(1 - ALPHA / 2) + special.ndtri(POWER)) ** 2))
    while runs <= _MOST_RUNS:
        freedom = 2 * runs - 2
        if runs >= ratio * float(_t(freedom, 1 - ALPHA / 2) + _t(freedom, POWER)) ** 2:
            return runs
        runs += 1
    return None


def successive_scatter(values: Sequence[float]) -> float | None:
    """Return the relative standard deviation of runs, in order of time; None where it cannot be known.

    By the median step from one run to the next: what was changed between two of many runs, and a slow drift, are no scatter.
    """
    if len(values) < 2 or not is_relative(*values):
        return None
    logs = _on_scale(values, relative=True)
    # The median distance of two normal values is 0.954 of their standard deviation.
    return median(abs(b - a) for a, b in pairwise(logs)) / 0.954


def prediction(values: Sequence[float], runs: int = 1) -> tuple[float, float]:
    """Return between which bounds the centre of so many further runs is expected, in `CONFIDENCE` of all cases.

    Of two or more values; Student's t, on logarithms where all are positive.
    """
    relative = is_relative(*values)
    scaled = _on_scale(values, relative=relative)
    middle = mean_of(scaled)
    factor = _t(len(values) - 1, 1 - ALPHA / 2) * math.sqrt(1 / runs + 1 / len(values))
    half = factor * _deviation(scaled)
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
    scaled = _on_scale(values, relative=relative)
    if len(set(scaled)) == 1:
        return 0.0, 1.0
    order = range(len(scaled))
    # The distance of two large values would overflow.
    size = max(abs(value) for value in scaled)
    slope = bounded(float(stats.theilslopes([value / size for value in scaled], list(order))[0]) * size)
    p = float(stats.kendalltau(list(order), scaled).pvalue)
    return (bounded(math.expm1(min(slope, 700.0))) if relative else slope), p


def _welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """Return the ends of the interval of the difference of means, b less a, and the p of Welch's test. One of the two scatters, at least."""
    from scipy import special

    # The difference as a share of the largest value, the variances as shares of the larger one: else squares overflow or vanish.
    size = max(abs(value) for value in (*a, *b))
    deviations = [_deviation(side) for side in (a, b)]
    largest = max(deviations)
    first, second = ((each / largest) ** 2 / len(side) for each, side in zip(deviations, (a, b), strict=True))
    error = largest / size * math.sqrt(first + second)
    # Welch and Satterthwaite's degrees of freedom.
    part = first / (first + second)
    freedom = 1 / (part**2 / (len(a) - 1) + (1 - part) ** 2 / (len(b) - 1))
    difference = mean_of(b) / size - mean_of(a) / size
    half = _t(freedom, 1 - ALPHA / 2) * error
    # A scatter that is no number beside the values.
    p = 2 * float(special.stdtr(freedom, -abs(difference) / error)) if error else 0.0
    return (difference - half) * size, (difference + half) * size, p


def _t(freedom: float, share: float) -> float:
    """Return a quantile of Student's t distribution."""
    # Of scipy the part that loads in a moment: its `stats` takes seconds.
    from scipy import special

    return float(special.stdtrit(freedom, share))


def _permutation_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the p of the difference of means under all arrangements of the runs, or under many random ones."""
    arrangements = math.comb(len(a) + len(b), len(a))
    # Of n and n runs the most extreme arrangement has a mirror image.
    if (2 if len(a) == len(b) else 1) / arrangements > ALPHA:
        return None
    import numpy

    size = max(abs(value) for value in (*a, *b)) or 1.0
    values = numpy.array([*a, *b]) / size
    if exact := arrangements <= _EXACT:
        sums = values[_arrangements(len(values), len(a))].sum(axis=1)
    else:
        # The same runs give the same answer.
        rows = numpy.tile(values, (_RANDOM, 1))
        sums = numpy.random.default_rng(0).permuted(rows, axis=1)[:, : len(a)].sum(axis=1)
    distances = abs(sums / len(a) - (values.sum() - sums) / len(b))
    seen = abs(values[: len(a)].mean() - values[len(a) :].mean())
    # Of the same runs in another order the sums may differ in their last digit.
    as_far = int((distances >= seen - 1e-12).sum())
    return as_far / arrangements if exact else (as_far + 1) / (_RANDOM + 1)


@cache
def _arrangements(count: int, chosen: int) -> Any:
    """Return every choice of so many of `count` things, a row each."""
    import numpy

    return numpy.array(list(combinations(range(count), chosen)))


def _on_scale(values: Sequence[float], *, relative: bool) -> list[float]:
    return [math.log(value) for value in values] if relative else list(values)


def _exp(value: float) -> float:
    return math.exp(min(value, 709.0))


def _deviation(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    middle = mean_of(values)
    largest = max(abs(value / 2 - middle / 2) for value in values)
    # Rounding alone makes no scatter.
    if largest <= 1e-15 * abs(middle):
        return 0.0
    squares = math.fsum(((value / 2 - middle / 2) / largest) ** 2 for value in values)
    return bounded(largest * (2 * math.sqrt(squares / (len(values) - 1))))


def _pooled(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the standard deviation within the two sides; None where each has one run."""
    freedom = len(a) + len(b) - 2
    if not freedom:
        return None
    parts = [_deviation(side) * math.sqrt((len(side) - 1) / freedom) for side in (a, b)]
    return bounded(math.hypot(*parts))
