"""How far two samples of runs lie apart, and how sure that is: Welch's interval, or Student's of the differences within blocks.

A sample holds one number for each run, never the values within one: those of one run resemble each other, and taken for
independent they find differences where there are none (Abedi and Brecht, ICPE 2017).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bai_agent.job.interval import mean_of
from executor.analysis.permutation import permutation_p, rank_p, sign_flip_p, signed_rank_p

CONFIDENCE = 0.95
"""Of every interval; what is called a difference is one by chance in 5 % of comparisons of equals."""
ALPHA = 1 - CONFIDENCE


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
    """By the t test that the interval agrees with."""
    permutation_p: float | None = None
    """By a permutation test; None where too few runs make it unable to find anything."""
    rank_p: float | None = None
    """By a rank test, in the same way."""
    scatter: float | None = None
    """The standard deviation of runs within a side, as a share or in the metric's units; of `paired` ones that of the differences."""
    paired: bool = False
    """Whether it was made of the differences within blocks."""
    notes: tuple[str, ...] = ()

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def within(self, bound: float) -> bool:
        """Return whether the whole interval lies between -bound and bound."""
        return self.low is not None and self.high is not None and -bound <= self.low and self.high <= bound


def effect(a: Sequence[float], b: Sequence[float], *, permutation: bool = True) -> Effect:
    """Return how far the runs `b` lie from the runs `a`: one or more finite numbers each.

    permutation: whether second opinions are asked for as well, which takes milliseconds where runs are many.

    Relative where all numbers are positive: then it is the ratio of the geometric means, from a test of the logarithms, in
    which the scatter of both sides is taken into account. Absolute, of the means, where a share would mean nothing.
    """
    relative = is_relative(*a, *b)
    first, second = (on_scale(side, relative=relative) for side in (a, b))
    change = _back(mean_of(second) - mean_of(first), relative=relative)
    scatter = _pooled(first, second)
    notes = _scale_notes(relative=relative)
    if len(a) < 2 or len(b) < 2:
        return Effect(
            relative=relative, change=change, low=None, high=None, p=None, scatter=scatter, notes=notes
        )
    floors = [rounding(side, step=least_step(a, b), relative=relative) for side in (a, b)]
    notes += _scatter_notes(a, b)
    low, high, p = _welch(first, second, floors=floors)
    return Effect(
        relative=relative, change=change, low=_back(low, relative=relative), high=_back(high, relative=relative), p=p,
        permutation_p=permutation_p(first, second) if permutation else None,
        rank_p=rank_p(first, second) if permutation else None, scatter=scatter, notes=notes,
    )  # fmt: skip


def paired_effect(a: Sequence[float], b: Sequence[float], *, permutation: bool = True) -> Effect:
    """Return how far the runs `b` lie from the runs `a`, of which each two with one index are a block: they ran in turns.

    By the differences within blocks, on the scale of `effect`: what drifts from block to block is in none of them. n blocks
    have n - 1 degrees of freedom.
    """
    relative = is_relative(*a, *b)
    first, second = (on_scale(side, relative=relative) for side in (a, b))
    # A difference near the largest float would be infinite.
    differences = [bounded(y - x) for x, y in zip(first, second, strict=True)]
    middle = mean_of(differences)
    change = _back(middle, relative=relative)
    notes = _scale_notes(relative=relative)
    if len(a) < 2:
        return Effect(relative=relative, change=change, low=None, high=None, p=None, paired=True, notes=notes)
    notes += _scatter_notes(a, b)
    step = least_step(a, b)
    floor = math.hypot(*(rounding(side, step=step, relative=relative) for side in (a, b)))
    scatter = deviation(differences)
    low, high, p = interval(middle, max(scatter, floor) / math.sqrt(len(a)), freedom=len(a) - 1)
    return Effect(
        relative=relative, change=change, low=_back(low, relative=relative), high=_back(high, relative=relative), p=p,
        permutation_p=sign_flip_p(differences) if permutation else None,
        rank_p=signed_rank_p(differences) if permutation else None, scatter=scatter, paired=True, notes=notes,
    )  # fmt: skip


def block_effects(blocks: Sequence[Sequence[float | None]]) -> list[Effect | None]:
    """Return how far each arm lies from the first one; None for an arm that no block has together with the first.

    blocks: one number for each arm, in turns; None for a run that failed. A block without one of the two runs is left out of
    their comparison. The p of several arms are corrected by `holm`.
    """
    found: list[Effect | None] = []
    for other in range(1, max(map(len, blocks), default=0)):
        both = [(x, y) for block in blocks if (x := block[0]) is not None and (y := block[other]) is not None]
        found.append(paired_effect([x for x, _ in both], [y for _, y in both]) if both else None)
    return found


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


def on_scale(values: Sequence[float], *, relative: bool) -> list[float]:
    """Return the numbers whose differences are judged: logarithms, or the values themselves."""
    return [math.log(value) for value in values] if relative else list(values)


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample; 0 of one value."""
    if len(values) < 2:
        return 0.0
    middle = mean_of(values)
    largest = max(abs(value / 2 - middle / 2) for value in values)
    # Rounding alone makes no scatter.
    if largest <= 1e-15 * abs(middle):
        return 0.0
    squares = math.fsum(((value / 2 - middle / 2) / largest) ** 2 for value in values)
    return bounded(largest * (2 * math.sqrt(squares / (len(values) - 1))))


def student(freedom: float, share: float) -> float:
    """Return a quantile of Student's t distribution."""
    # Of scipy the part that loads in a moment: its `stats` takes seconds.
    from scipy import special

    return float(special.stdtrit(freedom, share))


def least_step(*sides: Sequence[float]) -> float:
    """Return the least step between two values; 0 if all are the same."""
    values = sorted({value for side in sides for value in side})
    largest = max(map(abs, values))
    # The same decimal fraction, computed in two ways.
    steps = (bounded(high - low) for low, high in pairwise(values) if high - low > 1e-9 * largest)
    return min(steps, default=0.0)


def rounding(side: Sequence[float], *, step: float, relative: bool) -> float:
    """Return the standard deviation that rounding to multiples of `step` gives: the least that a side is taken to have."""
    error = step / math.sqrt(12)
    return bounded(error / centre(side, relative=True)) if relative else error


def interval(difference: float, error: float, *, freedom: float) -> tuple[float, float, float]:
    """Return the ends of the interval of a difference with this standard error, and the p of its being none."""
    from scipy import special

    half = bounded(student(freedom, 1 - ALPHA / 2) * error)
    # No error: a scatter that is no number beside the values.
    p = 2 * float(special.stdtr(freedom, -abs(difference) / error)) if error else float(not difference)
    return bounded(difference - half), bounded(difference + half), p


def _back(difference: float, *, relative: bool) -> float:
    return bounded(math.expm1(min(difference, 700.0))) if relative else bounded(difference)


def _welch(a: Sequence[float], b: Sequence[float], *, floors: Sequence[float]) -> tuple[float, float, float]:
    """Return the ends of the interval of the difference of means, b less a, and the p. floors: the least deviation of each."""
    deviations = [max(deviation(side), floor) for side, floor in zip((a, b), floors, strict=True)]
    largest = max(deviations)
    difference = bounded(mean_of(b) - mean_of(a))
    if not largest:
        return difference, difference, 1.0
    # As shares of the larger one: else squares overflow or vanish.
    first, second = ((each / largest) ** 2 / len(side) for each, side in zip(deviations, (a, b), strict=True))
    error = largest * math.sqrt(first + second)
    few, many = sorted((len(a), len(b)))
    if many >= 2 * few:
        # The scatter of the small side is what is known least. Welch's approximation trusts it too much.
        freedom: float = few - 1
    else:
        # Welch and Satterthwaite's degrees of freedom.
        part = first / (first + second)
        freedom = 1 / (part**2 / (len(a) - 1) + (1 - part) ** 2 / (len(b) - 1))
    return interval(difference, error, freedom=freedom)


def _scale_notes(*, relative: bool) -> tuple[str, ...]:
    if relative:
        return ()
    return (
        "not all of its values are positive: the change is in its units, as a share of them means nothing",
    )


def _scatter_notes(a: Sequence[float], b: Sequence[float]) -> tuple[str, ...]:
    """Return what is to be said where a side does not scatter."""
    constant = [letter for letter, side in (("A", a), ("B", b)) if len(set(side)) == 1]
    if len({*a, *b}) == 1:
        return ("all runs of both sides gave the same number",)
    if len(constant) == 2:
        return (
            "the runs of each side gave one and the same number: their scatter is taken as that of rounding to such steps",
        )
    return tuple(
        f"all runs of side {letter} gave the same number: its scatter is taken as that of rounding to the least step seen"
        for letter in constant
    )


def _pooled(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the standard deviation within the two sides; None where each has one run."""
    freedom = len(a) + len(b) - 2
    if not freedom:
        return None
    parts = [deviation(side) * math.sqrt((len(side) - 1) / freedom) for side in (a, b)]
    return bounded(math.hypot(*parts))
