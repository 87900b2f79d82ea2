"""Statistics of values, for `bai` and the agent: mean, median, deviation, confidence interval of a mean over
runs, and a test for a trend."""

from __future__ import annotations

import math
import struct
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import chain, combinations
from operator import neg

LIMIT = 1e300
"""Largest absolute value in statistics, so that sums and differences stay finite. Values beyond the limit are
recorded, but excluded from statistics."""
_SORTED_AT_ONCE = 2**16
"""Number of values of an array that are sorted or compared together, as a list. A list needs five times the memory
of an array."""
_SAMPLE = 2**16
_LEAST = 8
"""Smallest number of values in memory with which a search for a median makes progress."""
_MARGIN = 64
"""Divisor for the range of a sorted sample in which a rank is searched. The range extends by a 64th of the sample to
either side of the rank's expected place."""
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
_EXACT = 30
"""Length of the longest series for whose score `trend_p` uses the exact distribution. For longer series, the
exact distribution equals the normal distribution to four digits."""


def student_975(freedom: int) -> float:
    """Return Student's t at 0.975 for `freedom` degrees of freedom, to five digits.

    The formula for values beyond the table is 26.7.5 in Abramowitz and Stegun, "Handbook of Mathematical Functions".
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
    """Return the mean of one or more values. The mean is never outside the range of the values."""
    return min(max(math.fsum(values) / len(values), min(values)), max(values))


def median_of(values: Sequence[float]) -> float:
    """Return the median of one or more values. The median of an even number of values is the mean of the two
    middle values."""
    if len(values) > _SORTED_AT_ONCE:
        low, high = values_at(array("d", values), middle_ranks(len(values)))
    else:
        ordered = sorted(values)
        low, high = (ordered[rank] for rank in middle_ranks(len(ordered)))
    return low if low == high else (low + high) / 2


def middle_ranks(count: int) -> tuple[int, int]:
    """Return the ranks, from 0, of the two middle values of `count` values. The two ranks are equal if `count` is
    odd."""
    return (count - 1) // 2, count // 2


def values_at(values: array[float], ranks: tuple[int, int]) -> tuple[float, float]:
    """Return the two values at `ranks` (from 0) in the sorted order. The ranks are equal or adjacent. The function may
    reorder `values`.

    Most values are not sorted, but only compared with bounds, which takes a third of the time.
    """
    if len(values) > _SORTED_AT_ONCE:
        low, high = likely_bounds(values, *ranks)
        below, near = 0, array("d")
        for start in range(0, len(values), _SORTED_AT_ONCE):
            block = values[start : start + _SORTED_AT_ONCE]
            others = [value for value in block if value >= low]
            below += len(block) - len(others)
            near.extend([value for value in others if value <= high])
        if below <= ranks[0] and ranks[1] < below + len(near):
            values, ranks = near, (ranks[0] - below, ranks[1] - below)
    sort_blocks(values)
    return ranked(values, ranks[0]), ranked(values, ranks[1])


def likely_bounds(values: array[float], first: int, last: int) -> tuple[float, float]:
    """Return two bounds that probably enclose the values with the ranks from `first` to `last`. A sample of the values
    gives the bounds."""
    sample = sorted(values[:: len(values) // _SAMPLE + 1])
    margin = len(sample) // _MARGIN + 1
    low, high = first * len(sample) // len(values) - margin, last * len(sample) // len(values) + margin
    return (
        sample[low] + 0.0 if low >= 0 else -math.inf,
        sample[high] + 0.0 if high < len(sample) else math.inf,
    )


def sort_blocks(values: array[float]) -> None:
    """Sort each block of `values` in place, as `ranked` requires."""
    for start in range(0, len(values), _SORTED_AT_ONCE):
        block = slice(start, start + _SORTED_AT_ONCE)
        values[block] = array("d", sorted(values[block]))


def ranked(values: array[float], rank: int) -> float:
    """Return the value that has the given rank (from 0) in an array whose blocks are sorted."""
    starts = range(0, len(values), _SORTED_AT_ONCE)
    blocks = [(start, min(start + _SORTED_AT_ONCE, len(values))) for start in starts]
    low, high = _order(-math.inf), _order(math.inf)
    # The result is the smallest number that at least `rank` + 1 values do not exceed. At most 64 halvings of
    # the search range find this number.
    while low < high:
        middle = (low + high) // 2
        number = _number(middle)
        if sum(bisect_right(values, number, start, end) - start for start, end in blocks) > rank:
            high = middle
        else:
            low = middle + 1
    return _number(low) + 0.0


def _order(number: float) -> int:
    """Return an integer that orders floats: a greater float has a greater integer."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits if bits >= 0 else -(bits & 0x7FFF_FFFF_FFFF_FFFF) - 1


def _number(order: int) -> float:
    """Return the float for which `_order` returns `order`."""
    sign = 0 if order >= 0 else 1 << 63
    number: float = struct.unpack("<d", struct.pack("<Q", sign | (order if order >= 0 else -order - 1)))[0]
    return number


class ExactSum:
    """A sum of values that arrive in pieces. The sum is as exact as `math.fsum` of all values at once."""

    def __init__(self) -> None:
        self._parts: list[float] = []
        """Numbers whose exact sum is the sum of all values. Each number is the rounded difference between this sum
        and the numbers before."""

    def add(self, values: Sequence[float]) -> None:
        """Add `values`, of which none is beyond `LIMIT`."""
        parts: list[float] = []
        while part := math.fsum(chain(self._parts, values, map(neg, parts))):
            parts.append(part)
        self._parts = parts

    @property
    def rounded(self) -> float:
        return math.fsum(self._parts)


class RunningMedian:
    """Searches for the median of values that arrive in pieces. The median is expected between `low` and
    `high`, and only values between these bounds are kept in memory."""

    def __init__(
        self,
        low: float = -math.inf,
        high: float = math.inf,
        *,
        within: tuple[float, float] | None = None,
    ) -> None:
        """within: bounds of the previous search. The previous search chose `low` and `high`."""
        self.kept = array("d")
        """Values between `low` and `high`, without the bounds themselves. The array contains every `_step`th of these
        values."""
        self._step = 1
        self._low, self._high = low, high
        self._below = self._at_low = self._between = self._at_high = 0
        self._within = within

    @property
    def keeps_all(self) -> bool:
        """Whether all values between the bounds are still in memory."""
        return self._step == 1 and self._within is None

    def add(self, values: Sequence[float]) -> None:
        """Add the next values, in their order."""
        low, high = self._low, self._high
        if self._within is not None:
            self._below += len([0 for value in values if value < low])
            near = [value for value in values if low <= value <= high]
            self._at_low += near.count(low)
            # If both bounds are equal, a value that equals them is counted only once.
            self._at_high += near.count(high) if low < high else 0
            values = [value for value in near if low < value < high]
        first = -self._between % self._step
        self._between += len(values)
        # Extending the array is twice as fast as appending the numbers one by one.
        self.kept.extend(array("d", values if self._step == 1 else values[first :: self._step]))

    def thin(self) -> None:
        """Drop every second value in memory."""
        if len(self.kept) > _LEAST:
            self.kept = self.kept[::2]
            self._step *= 2

    def value(self, count: int) -> float | None:
        """Return the median of all `count` values. If the result is None, the caller must add all values again, to
        the search that `narrowed` returns."""
        first, last = middle_ranks(count)
        before = self._below + self._at_low
        low: float | None
        high: float | None
        if self._step == 1 and before <= first and last < before + self._between:
            low, high = values_at(self.kept, (first - before, last - before))
        else:
            low, high = self._ranked(first), self._ranked(last)
        if low is None or high is None:
            return None
        return low if low == high else (low + high) / 2

    def narrowed(self, count: int) -> RunningMedian:
        """Return a new search with narrower bounds. The caller must add all `count` values to the new search."""
        ranks = middle_ranks(count)
        within = self._within or (self._low, self._high)
        if ranks[0] < self._below:
            low, high = within[0], self._low
        elif ranks[1] >= self._below + self._at_low + self._between + self._at_high:
            low, high = self._high, within[1]
        else:
            first, last = (
                (rank - self._below - self._at_low) * len(self.kept) // self._between for rank in ranks
            )
            low, high = likely_bounds(self.kept, first, last)
            low, high = max(low, self._low), min(high, self._high)
        return RunningMedian(low, high, within=(self._low, self._high))

    def _ranked(self, rank: int) -> float | None:
        """Return the value that has the given rank among all values; None if this value is not known."""
        rank -= self._below
        if rank < 0:
            return None
        if rank < self._at_low:
            return self._low
        rank -= self._at_low
        if rank < self._between:
            return values_at(self.kept, (rank, rank))[0] if self._step == 1 else None
        return self._high if rank < self._between + self._at_high else None


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample (n - 1); 0 for one value."""
    if len(values) < 2:
        return 0.0
    mean = mean_of(values)
    # The squares of large values overflow, and the squares of small values vanish, so `hypot` scales the
    # values.
    found = math.hypot(*[value - mean for value in values]) / math.sqrt(len(values) - 1)
    # A deviation this small is only the effect of rounding.
    return found if found > 1e-15 * abs(mean) else 0.0


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95 % confidence interval of the mean of `values`; infinity for fewer than
    two values."""
    count = len(values)
    if count < 2:
        return math.inf
    return student_975(count - 1) * deviation(values) / math.sqrt(count)


def relative_half_width(values: Sequence[float]) -> float:
    """Return `half_width` as a share of the mean; infinity if the mean is zero but the values differ."""
    half = half_width(values)
    if half in (0, math.inf):
        return half
    mean = mean_of(values)
    return half / abs(mean) if mean else math.inf


def trend_p(*series: Sequence[float]) -> float:
    """Return the two-sided p value of the null hypothesis that all `series` together have no trend.

    Each series has its own score, which is its number of rising pairs minus its number of falling pairs
    (Kendall, Biometrika 1938). For short series without equal values, the distribution of the scores' sum is
    exact. Otherwise, a normal distribution approximates the distribution of the sum, with the variance
    corrected for equal values. The result is 1 if all values are equal, or if the numbers of rising and falling pairs
    are equal.
    """
    score = abs(sum(map(_score, series)))
    if all(len(set(each)) == len(each) <= _EXACT for each in series):
        chances = [1.0]
        for each in series:
            chances = _added(chances, _distribution(len(each)))
        # A score is twice the number of rising pairs, minus the number of all pairs.
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
    """Return the probability of each possible number of rising pairs among `count` values in random order."""
    chances = [1.0]
    for size in range(2, count + 1):
        chances = _added(chances, [1 / size] * size)
    return chances


def _added(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Return the distribution of the sum of two independent numbers, from the distributions of the two
    numbers."""
    sums = [0.0] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            sums[i + j] += x * y
    return sums
