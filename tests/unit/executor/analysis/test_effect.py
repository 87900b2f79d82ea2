"""What is said of the distance of two sides is right as often as it claims to be."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from bai_agent.job.figures import LIMIT
from executor.analysis.comparison import POWER, runs_needed
from executor.analysis.effect import (
    ALPHA,
    CONFIDENCE,
    centre,
    effect,
    holm,
    is_relative,
    paired_effect,
)

SIMULATIONS = 1000
CAUTIOUS = {3: 0.035}
"""With three runs a side Welch's test keeps below the 5 % that are stated: it does not know that both scatter alike."""
FINITE = st.floats(-LIMIT, LIMIT)


def bounds(rate: float, count: int = SIMULATIONS) -> tuple[float, float]:
    """Between which counts a rate lies, but for once in a thousand times."""
    low, high = stats.binom.interval(0.999, count, rate)
    return float(low), float(high)


def normal(chance: random.Random, level: float, runs: int) -> list[float]:
    return [chance.gauss(level, 0.05 * level) for _ in range(runs)]


def skewed(chance: random.Random, level: float, runs: int) -> list[float]:
    """Runs of which some take much longer than most."""
    return [level * math.exp(chance.gauss(0, 0.3)) for _ in range(runs)]


@pytest.mark.parametrize("draw", [normal, skewed])
@pytest.mark.parametrize("runs", [3, 5, 10])
def test_equal_sides_are_called_different_as_often_as_stated(
    runs: int, draw: Callable[[random.Random, float, int], list[float]]
) -> None:
    alarms = 0
    for seed in range(SIMULATIONS):
        chance = random.Random(seed)
        found = effect(draw(chance, 100, runs), draw(chance, 100, runs), permutation=False)
        assert found.p is not None
        assert found.excludes_zero == (found.p < ALPHA)
        alarms += found.excludes_zero

    low, high = bounds(CAUTIOUS.get(runs, ALPHA))
    assert low <= alarms <= high


@pytest.mark.parametrize("draw", [normal, skewed])
@pytest.mark.parametrize("runs", [3, 5, 10])
def test_intervals_contain_the_true_value_as_often_as_stated(
    runs: int, draw: Callable[[random.Random, float, int], list[float]]
) -> None:
    held = 0
    for seed in range(SIMULATIONS):
        chance = random.Random(seed)
        found = effect(draw(chance, 100, runs), draw(chance, 80, runs), permutation=False)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= -0.2 <= found.high

    low, high = bounds(1 - CAUTIOUS.get(runs, ALPHA))
    assert low <= held <= high


def two_levels(chance: random.Random, runs: int) -> list[float]:
    """Return runs of a program that is in its slow mode one time of two."""
    return [100 * chance.choice((1.0, 1.3)) * math.exp(chance.gauss(0, 0.01)) for _ in range(runs)]


@pytest.mark.parametrize(
    ("draw", "few", "many", "welch"),
    [(two_levels, 3, 10, 0.08), (lambda chance, runs: normal(chance, 100, runs), 2, 20, 0.08)],
)
def test_sides_with_unequal_numbers_of_runs_keep_the_error_rate_that_welch_exceeds(
    draw: Callable[[random.Random, int], list[float]], few: int, many: int, welch: float
) -> None:
    alarms = by_welch = 0
    for seed in range(SIMULATIONS):
        chance = random.Random(seed)
        a, b = draw(chance, few), draw(chance, many)
        alarms += effect(a, b, permutation=False).excludes_zero
        by_welch += stats.ttest_ind(numpy.log(a), numpy.log(b), equal_var=False).pvalue < ALPHA

    assert by_welch > welch * SIMULATIONS
    assert alarms <= bounds(ALPHA)[1]


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_rounded_values_of_equal_sides_keep_the_error_rate(runs: int) -> None:
    alarms = by_welch = 0
    for seed in range(SIMULATIONS):
        chance = random.Random(seed)
        level = chance.uniform(10, 10.1)
        a, b = ([round(chance.gauss(level, 0.05), 1) for _ in range(runs)] for _ in "ab")
        alarms += effect(a, b, permutation=False).excludes_zero
        apart = numpy.mean(a) != numpy.mean(b)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            by_welch += apart and (
                not numpy.ptp([a, b], axis=1).any() or stats.ttest_ind(a, b, equal_var=False).pvalue < ALPHA
            )

    assert alarms <= bounds(ALPHA)[1]
    if runs == 2:
        assert by_welch > bounds(ALPHA)[1]


def test_the_advised_number_of_runs_finds_the_difference() -> None:
    needed = runs_needed(scatter=0.05, difference=0.1)

    assert needed is not None
    found = 0
    for seed in range(SIMULATIONS):
        chance = random.Random(seed)
        found += effect(
            normal(chance, 100, needed), normal(chance, 110, needed), permutation=False
        ).excludes_zero
    assert POWER - 0.05 < found / SIMULATIONS < POWER + 0.08


def test_an_impossible_number_of_runs_is_not_advised() -> None:
    assert runs_needed(scatter=0.5, difference=0.0001) is None
    assert runs_needed(scatter=0.0, difference=0.05) == 2


@given(
    st.lists(st.floats(-1000, 1000), min_size=4, max_size=6),
    st.lists(st.floats(-1000, 0), min_size=4, max_size=6),
)
def test_the_interval_equals_that_of_scipy(a: list[float], b: list[float]) -> None:
    if min(numpy.std(a), numpy.std(b)) < 1e-3 * max(numpy.ptp([*a, *b]), 1e-3) or least_step(*a, *b) > 1:
        return
    found = effect(a, [*b, -1.0], permutation=False)

    expected = stats.ttest_ind([*b, -1.0], a, equal_var=False)
    assert not found.relative
    interval = expected.confidence_interval(CONFIDENCE)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-6)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-9)


def least_step(*values: float) -> float:
    steps = numpy.diff(numpy.unique(values))
    # Two values that differ in their last digits alone are one value, computed in two ways.
    return float(steps[steps > 1e-9 * max(map(abs, values))].min(initial=math.inf))


@example([(1.0, 35.0), (1.0, 1.0000000000000002)])
@given(st.lists(st.tuples(st.floats(1, 1000), st.floats(1, 1000)), min_size=2, max_size=9))
def test_the_interval_of_paired_blocks_equals_that_of_scipy(blocks: list[tuple[float, float]]) -> None:
    a, b = zip(*blocks, strict=True)
    ratios = numpy.log(numpy.array(b) / numpy.array(a))
    # Else the least step decides.
    if numpy.std(ratios, ddof=1) < 1e-3 + min(least_step(*a, *b), 1000):
        return
    found = paired_effect(a, b, permutation=False)

    expected = stats.ttest_1samp(ratios, 0)
    interval = expected.confidence_interval(CONFIDENCE)
    assert found.low is not None
    assert found.high is not None
    # A share of nearly -1 has no logarithm to many digits.
    assert 1 + found.low == pytest.approx(math.exp(interval.low), abs=1e-9)
    assert math.log1p(found.high) == pytest.approx(interval.high, rel=1e-6)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-9)


def test_drift_between_blocks_hides_no_difference() -> None:
    # Given a machine that becomes 12 % slower over ten blocks, and a program that is 3 % slower
    chance = random.Random(0)
    drifting = [1 + 0.12 * i / 19 for i in range(20)]
    a = [100 * drifting[2 * i + 1] * math.exp(chance.gauss(0, 0.01)) for i in range(10)]
    b = [103 * drifting[2 * i] * math.exp(chance.gauss(0, 0.01)) for i in range(10)]

    assert not effect(a, b).excludes_zero
    found = paired_effect(a, b)
    assert found.low is not None
    assert found.high is not None
    assert 0.01 < found.low < 0.03 < found.high < 0.045
    assert found.permutation_p is not None
    assert found.permutation_p < 0.01


def studentised(x: Any, y: Any, axis: int) -> Any:
    return stats.ttest_ind(numpy.log(x), numpy.log(y), axis=axis, equal_var=False).statistic


def test_permutation_and_rank_tests_equal_those_of_scipy() -> None:
    a, b = [1.0, 4.0, 2.5, 3.1, 0.2, 2.2], [2.0, 6.0, 4.4, 5.1, 3.3, 7.0]

    found, within = effect(a, b), paired_effect(a, b)

    permuted = stats.permutation_test((b, a), studentised, vectorized=True, n_resamples=math.inf)
    assert found.permutation_p == pytest.approx(permuted.pvalue)
    assert found.rank_p == pytest.approx(stats.mannwhitneyu(a, b, method="exact").pvalue)
    ratios = numpy.log(numpy.array(b) / numpy.array(a))
    flipped = stats.permutation_test(
        (ratios,), numpy.mean, permutation_type="samples", n_resamples=math.inf, vectorized=False
    )
    assert within.permutation_p == pytest.approx(flipped.pvalue)
    assert within.rank_p == pytest.approx(stats.wilcoxon(ratios, method="exact").pvalue)


def test_permutation_tests_are_reproducible_and_need_a_minimum_number_of_runs() -> None:
    a, b = [1.0, 4.0, 2.5, 3.1, 0.2], [2.0, 6.0, 4.4, 5.1, 3.3]

    assert effect(a * 4, b * 4).permutation_p == effect(a * 4, b * 4).permutation_p
    assert paired_effect(a * 4, b * 4).permutation_p == paired_effect(a * 4, b * 4).permutation_p
    # Three runs a side, and five blocks, have too few arrangements to find anything
    assert (effect(a[:3], b[:3]).permutation_p, effect(a[:3], b[:3]).rank_p) == (None, None)
    assert (paired_effect(a, b).permutation_p, paired_effect(a, b).rank_p) == (None, None)


def test_runs_without_scatter_are_judged_by_their_resolution() -> None:
    assert not effect([5.0, 5.0], [5.1, 5.1]).excludes_zero
    assert not paired_effect([5.0, 5.0], [5.1, 5.1]).excludes_zero
    # One step is little for two runs a side, and enough for five
    assert effect([5.0] * 5, [5.1] * 5).excludes_zero
    assert effect([5.0, 5.0], [10.0, 10.1]).excludes_zero


@given(st.lists(FINITE, min_size=1, max_size=6), st.lists(FINITE, min_size=1, max_size=6))
# Scatters that are small, or no number, beside the values
@example([0.0, 1.0], [1e178, 1e178])
@example([0.0, 5e-324], [1e300, 1e300])
def test_any_numbers_give_finite_results(a: list[float], b: list[float]) -> None:
    several = min(len(a), len(b))
    for found in (effect(a, b), paired_effect(a[:several], b[:several])):
        numbers = (
            found.change,
            found.low,
            found.high,
            found.p,
            found.permutation_p,
            found.rank_p,
            found.scatter,
        )
        assert all(math.isfinite(each) for each in numbers if each is not None)
        assert all(math.isfinite(centre(side, relative=is_relative(*a, *b))) for side in (a, b))
        if found.low is not None and found.high is not None:
            assert found.low <= found.high


def test_one_run_on_a_side_has_no_interval() -> None:
    found = effect([100.0], [80.0, 81.0])

    assert (found.low, found.high, found.p) == (None, None, None)
    assert found.scatter is not None


@pytest.mark.parametrize(
    ("a", "b", "change", "excludes", "word"),
    [
        ([5.0, 5.0], [5.0, 5.0], 0.0, False, "same number"),
        ([5.0, 5.0], [10.0, 10.0], 1.0, False, "the scatter of rounding"),
        ([5.0, 5.0], [10.0, 10.1, 9.9], 1.0, True, "side A"),
        ([0.0, 1.0], [0.0, 3.0], 1.0, False, "not all values of the metric are positive"),
        ([-2.0, -1.9, -2.1], [-3.0, -2.9, -3.1], -1.0, True, "not all values of the metric are positive"),
    ],
)
def test_a_change_that_cannot_be_a_percentage_is_reported_with_a_note(
    a: list[float], b: list[float], change: float, excludes: bool, word: str
) -> None:
    found = effect(a, b)

    assert found.change == pytest.approx(change, abs=1e-3)
    assert found.excludes_zero is excludes
    assert any(word in note for note in found.notes)


def test_holm_corrects_in_order_and_never_beyond_one() -> None:
    # The example of Holm 1979: the smallest by the count of all, each next by one less, none below the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
