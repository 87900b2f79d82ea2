"""Computes the change between two samples of runs and its confidence interval. The interval is Welch's t
interval or, for differences within blocks, Student's t interval.

A sample contains one number per run, never the values within a run. The values of one run are correlated.
Tests that treat correlated values as independent find differences that do not exist (Abedi and Brecht, ICPE
2017).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from itertools import combinations, pairwise
from typing import Any, TypeVar

from bai_agent.job.figures import LIMIT, deviation, mean_of
from bai_agent.light_dataclass import dataclass

CONFIDENCE = 0.95
"""Confidence level of every interval. If two sides are equal, a difference is reported by chance in 5 % of
comparisons."""
ALPHA = 1 - CONFIDENCE
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Change from side A to side B."""

    relative: bool
    """Whether the change is relative to side A (-0.2 means 20 % less); if not, the change is in the metric's
    units."""
    change: float
    low: float | None
    high: float | None
    """Ends of the confidence interval; None if the scatter is unknown because a side has one run."""
    p: float | None
    """p value of the t test, consistent with the interval."""
    permutation_p: float | None = None
    """p value of a permutation test; None if there are too few runs for a significant result."""
    rank_p: float | None = None
    """p value of a rank test; None if there are too few runs for a significant result."""
    scatter: float | None = None
    """Standard deviation of the runs within a side or, if `paired`, of the differences within blocks:
    relative, or in the metric's units."""
    paired: bool = False
    """Whether the change was computed from the differences within blocks."""
    notes: tuple[str, ...] = ()

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def within(self, bound: float) -> bool:
        """Return whether the whole confidence interval is between -bound and bound."""
        return self.low is not None and self.high is not None and -bound <= self.low and self.high <= bound


def effect(a: Sequence[float], b: Sequence[float], *, permutation: bool = True) -> Effect:
    """Return the change from the runs `a` to the runs `b`. a, b: one or more numbers within `LIMIT`.
    permutation: whether to add the p values of the permutation and rank tests, which take milliseconds if
    there are many runs.

    If all numbers are positive, the change is relative: the ratio of the geometric means. A relative change
    is tested on the logarithms of the numbers, with the scatter of both sides. If any number is not positive,
    the change is absolute: the difference of the means.
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
    """Return the change from the runs `a` to the runs `b`, computed within blocks. Runs with the same index
    form a block: they ran shortly after one another. The change is computed from the differences within
    blocks, on the scale of `effect`, so a drift from block to block does not affect the change. With n
    blocks, the interval has n - 1 degrees of freedom.
    """
    relative = is_relative(*a, *b)
    first, second = (on_scale(side, relative=relative) for side in (a, b))
    differences = [y - x for x, y in zip(first, second, strict=True)]
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


def is_relative(*values: float) -> bool:
    """Return whether changes of these values are relative, which is the case if all values are positive."""
    return all(value > 0 for value in values)


def centre(values: Sequence[float], *, relative: bool) -> float:
    """Return the headline of a side: the geometric mean if changes are relative, otherwise the mean."""
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


def holm_in_families(tested: Mapping[Key, tuple[float, bool]]) -> dict[Key, tuple[float, int]]:
    """Return each p value corrected within its family, and the size of that family. Metrics with a direction
    form one family, and all other metrics form the second family.

    tested: the p value of each metric, and whether the metric has a direction.
    """
    found: dict[Key, tuple[float, int]] = {}
    for directed in (True, False):
        family = {key: p for key, (p, has_direction) in tested.items() if has_direction == directed}
        found |= {key: (p, len(family)) for key, p in holm_of(family).items()}
    return found


def holm_of(ps: Mapping[Key, float]) -> dict[Key, float]:
    """Return p values corrected for their number (Holm), by key."""
    return dict(zip(ps, holm(list(ps.values())), strict=True))


def on_scale(values: Sequence[float], *, relative: bool) -> list[float]:
    """Return the numbers whose differences are tested: the logarithms of the values if changes are relative,
    otherwise the values."""
    return [math.log(value) for value in values] if relative else list(values)


def student(freedom: float, share: float) -> float:
    """Return a quantile of Student's t distribution."""
    # `scipy.special` loads quickly, but `scipy.stats` takes seconds.
    from scipy import special

    return float(special.stdtrit(freedom, share))


def least_step(*sides: Sequence[float]) -> float:
    """Return the smallest difference between two values; 0 if all values are the same."""
    values = sorted({value for side in sides for value in side})
    largest = max(map(abs, values))
    # Smaller differences are rounding errors of the same decimal fraction, computed in two ways.
    steps = (high - low for low, high in pairwise(values) if high - low > 1e-9 * largest)
    return min(steps, default=0.0)


def rounding(side: Sequence[float], *, step: float, relative: bool) -> float:
    """Return the standard deviation that rounding to multiples of `step` causes. The standard deviation of a
    side is assumed to be at least that of rounding."""
    error = step / math.sqrt(12)
    # The result is limited, because values near zero would make it infinite.
    return min(error / centre(side, relative=True), LIMIT) if relative else error


def interval(difference: float, error: float, *, freedom: float) -> tuple[float, float, float]:
    """Return the ends of the interval of a difference with this standard error, and the p value of no
    difference."""
    from scipy import special

    half = student(freedom, 1 - ALPHA / 2) * error
    # If the standard error is 0, the scatter is negligible compared with the values, so any difference is
    # certain.
    p = 2 * float(special.stdtr(freedom, -abs(difference) / error)) if error else float(not difference)
    return difference - half, difference + half, p


def _back(difference: float, *, relative: bool) -> float:
    return math.expm1(min(difference, 700.0)) if relative else difference


def _welch(a: Sequence[float], b: Sequence[float], *, floors: Sequence[float]) -> tuple[float, float, float]:
    """Return the ends of the interval of the difference of means, b minus a, and the p value. floors: minimum
    standard deviation that is assumed for each side."""
    errors = [
        max(deviation(side), floor) / math.sqrt(len(side)) for side, floor in zip((a, b), floors, strict=True)
    ]
    difference = mean_of(b) - mean_of(a)
    # Squares are avoided, because they may overflow or underflow.
    error = math.hypot(*errors)
    if not error:
        return difference, difference, 1.0
    few, many = sorted((len(a), len(b)))
    if many >= 2 * few:
        # If one side has far fewer runs, its scatter is known only roughly, but Welch's approximation relies
        # on it too much.
        freedom: float = few - 1
    else:
        # The degrees of freedom are computed by Welch's and Satterthwaite's formula.
        part = (errors[0] / error) ** 2
        freedom = 1 / (part**2 / (len(a) - 1) + (1 - part) ** 2 / (len(b) - 1))
    return interval(difference, error, freedom=freedom)


def _scale_notes(*, relative: bool) -> tuple[str, ...]:
    if relative:
        return ()
    return (
        "not all values of the metric are positive, so the change is in the metric's units and not a percentage",
    )


def _scatter_notes(a: Sequence[float], b: Sequence[float]) -> tuple[str, ...]:
    """Return a note if all runs of a side gave the same number."""
    constant = [letter for letter, side in (("A", a), ("B", b)) if len(set(side)) == 1]
    if len({*a, *b}) == 1:
        return ("all runs of both sides gave the same number",)
    if len(constant) == 2:
        return (
            "within each side all runs gave the same number: their scatter is assumed to be the scatter of rounding",
        )
    return tuple(
        f"all runs of side {letter} gave the same number: their scatter is assumed to be the scatter of rounding to the smallest step between two values"
        for letter in constant
    )


def _pooled(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the pooled standard deviation of the runs within the two sides; None if each side has only one
    run."""
    freedom = len(a) + len(b) - 2
    if not freedom:
        return None
    parts = [deviation(side) * math.sqrt((len(side) - 1) / freedom) for side in (a, b)]
    return math.hypot(*parts)


LEVEL = 0.05
_EXACT = 20_000
"""Maximum number of arrangements of the runs up to which a test tries all of them. The maximum suffices for
eight runs per side, or for 14 blocks."""
_RANDOM = 9_999


# The following tests assume less than Student's t test. Each test returns None if there are too few runs for
# a significant result. The tests never decide a verdict.


def permutation_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the p value of the studentised difference of means under permutations of the runs.

    Because the difference is divided by its standard error, the rate of false alarms holds even if the sides
    scatter unequally (Janssen, Statistics & Probability Letters 1997).
    """
    import numpy

    arranged = _arranged(a, b)
    if arranged is None or min(len(a), len(b)) < 2:
        return None
    first, second = arranged
    error = first.var(axis=1, ddof=1) / len(a) + second.var(axis=1, ddof=1) / len(b)
    apart = abs(first.mean(axis=1) - second.mean(axis=1))
    # If all runs of each side are equal, any difference is an infinite number of standard errors.
    with numpy.errstate(divide="ignore", invalid="ignore"):
        distances = numpy.where(apart > 1e-12, apart / numpy.sqrt(error), 0.0)
    return _share(distances)


def rank_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the p value of the Mann-Whitney rank test; equal values share a rank."""
    ranks = _ranks([*a, *b])
    arranged = _arranged(ranks[: len(a)], ranks[len(a) :])
    if arranged is None:
        return None
    first, second = arranged
    return _share(abs(first.mean(axis=1) - second.mean(axis=1)))


def sign_flip_p(differences: Sequence[float]) -> float | None:
    """Return the p value of the mean within-block difference by a sign-flip test; None for fewer than six
    blocks."""
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
    """Return the p value of Wilcoxon's signed-rank test of within-block differences; differences of zero are
    left out."""
    kept = [each for each in differences if each]
    ranks = _ranks([abs(each) for each in kept])
    return sign_flip_p([math.copysign(rank, each) for rank, each in zip(ranks, kept, strict=True)])


def _arranged(a: Sequence[float], b: Sequence[float]) -> tuple[Any, Any] | None:
    """Return the two sides for all arrangements of the runs, or for random arrangements if there are too
    many. Each arrangement is a row; the first row is the observed arrangement."""
    import numpy

    count = len(a) + len(b)
    arrangements = math.comb(count, len(a))
    # If both sides have the same number of runs, the most extreme arrangement has a mirror image that is just
    # as extreme.
    if (2 if len(a) == len(b) else 1) / arrangements > LEVEL:
        return None
    size = max(abs(value) for value in (*a, *b)) or 1.0
    values = numpy.array([*a, *b]) / size
    values = values - values.mean()
    values /= abs(values).max() or 1.0
    if arrangements <= _EXACT:
        first, second = _places(count, len(a))
        return values[first], values[second]
    # The seed is fixed, so that the same runs always give the same result.
    rows = numpy.random.default_rng(0).permuted(numpy.tile(values, (_RANDOM, 1)), axis=1)
    rows = numpy.vstack([values, rows])
    return rows[:, : len(a)], rows[:, len(a) :]


def _share(distances: Any) -> float:
    """Return the share of distances that are at least as large as the first distance, which is the observed
    distance."""
    seen = distances[0]
    # The last digits are ignored, because sums of the same numbers in another order may differ there.
    return float((distances >= seen - 1e-9 * max(1.0, seen if math.isfinite(seen) else 1.0)).mean())


@cache
def _places(count: int, chosen: int) -> tuple[Any, Any]:
    """Return all ways to choose `size` of `count` items, one row per choice: the indexes of the chosen items,
    and the indexes of the remaining items."""
    import numpy

    first = numpy.array(list(combinations(range(count), chosen)))
    others = numpy.ones((len(first), count), dtype=bool)
    numpy.put_along_axis(others, first, False, axis=1)
    return first, numpy.nonzero(others)[1].reshape(len(first), count - chosen)


@cache
def _signs(count: int) -> Any:
    """Return every combination of `count` signs. Each combination is a row; the first row has only positive
    signs."""
    import numpy

    bits = numpy.arange(2**count)[:, None] >> numpy.arange(count) & 1
    return 1.0 - 2.0 * bits


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, from 1; equal values get the mean of their ranks."""
    order = sorted(values)
    places: dict[float, list[int]] = {}
    for place, value in enumerate(order, 1):
        places.setdefault(value, []).append(place)
    return [sum(places[value]) / len(places[value]) for value in values]
