"""What is said of the distance of two sides is right as often as it claims to be."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from executor.analysis.effect import (
    ALPHA,
    CONFIDENCE,
    POWER,
    centre,
    drift,
    effect,
    holm,
    prediction,
    runs_needed,
    successive_scatter,
)

SIMULATIONS = 1000
CAUTIOUS = {3: 0.035}
"""With three runs a side Welch's test keeps below the 5 % that are stated: it does not know that both scatter alike."""
FINITE = st.floats(allow_nan=False, allow_infinity=False)


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
def test_intervals_hold_the_truth_as_often_as_stated(
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


def test_unequal_numbers_of_runs_that_scatter_unequally_keep_the_rate() -> None:
    alarms = 0
    for seed in range(SIMULATIONS):
        chance = random.Random(seed)
        a = [chance.gauss(100, 10) for _ in range(4)]
        b = [chance.gauss(100, 2) for _ in range(12)]
        alarms += effect(a, b, permutation=False).excludes_zero

    low, high = bounds(ALPHA)
    assert low <= alarms <= high


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


def test_no_number_of_runs_that_nobody_can_make_is_advised() -> None:
    assert runs_needed(scatter=0.5, difference=0.0001) is None
    assert runs_needed(scatter=0.0, difference=0.05) == 2


@given(
    st.lists(st.floats(-1000, 1000), min_size=2, max_size=9),
    st.lists(st.floats(-1000, 0), min_size=2, max_size=9),
)
def test_the_interval_is_that_of_the_library(a: list[float], b: list[float]) -> None:
    if max(numpy.ptp(a), numpy.ptp(b)) < 1e-3:
        return
    found = effect(a, [*b, -1.0], permutation=False)

    expected = stats.ttest_ind([*b, -1.0], a, equal_var=False)
    assert not found.relative
    interval = expected.confidence_interval(CONFIDENCE)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-6)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-9)


def test_the_permutation_test_is_that_of_the_library() -> None:
    a, b = [1.0, 4.0, 2.5, 3.1, 0.2], [2.0, 6.0, 4.4, 5.1, 3.3]

    def distance(x: Any, y: Any, axis: int) -> Any:
        return numpy.log(x).mean(axis=axis) - numpy.log(y).mean(axis=axis)

    expected = stats.permutation_test((b, a), distance, vectorized=True, n_resamples=math.inf)
    assert effect(a, b).permutation_p == pytest.approx(expected.pvalue)
    # Many runs are arranged at random, the same each time
    many = effect(a * 4, b * 4)
    assert many.permutation_p == effect(a * 4, b * 4).permutation_p
    # Three runs a side have too few arrangements to find anything
    assert effect(a[:3], b[:3]).permutation_p is None


@given(st.lists(FINITE, min_size=1, max_size=6), st.lists(FINITE, min_size=1, max_size=6))
# Scatters that are small, or no number, beside the values
@example([0.0, 1.0], [1e178, 1e178])
@example([0.0, 5e-324], [1e308, 1e308])
def test_whatever_the_numbers_nothing_is_nan_or_infinite(a: list[float], b: list[float]) -> None:
    found = effect(a, b)

    numbers = (found.change, found.low, found.high, found.p, found.permutation_p, found.scatter)
    assert all(math.isfinite(each) for each in numbers if each is not None)
    assert all(math.isfinite(centre(side, relative=found.relative)) for side in (a, b))
    if found.low is not None and found.high is not None:
        assert found.low <= found.high


@given(st.lists(FINITE, min_size=5, max_size=8))
@example([-1.7e308, 0.0, 1.2e308, 0.0, 1.2e308])
def test_whatever_the_history_it_is_judged_by_finite_numbers(history: list[float]) -> None:
    low, high = prediction(history)
    slope, p = drift(history) or (math.nan, math.nan)

    assert low <= high
    assert all(math.isfinite(each) for each in (low, high, slope, p))


def test_one_run_on_a_side_has_no_interval() -> None:
    found = effect([100.0], [80.0, 81.0])

    assert (found.low, found.high, found.p) == (None, None, None)
    assert found.scatter is not None


@pytest.mark.parametrize(
    ("a", "b", "change", "excludes", "word"),
    [
        ([5.0, 5.0], [5.0, 5.0], 0.0, False, "same number"),
        ([5.0, 5.0], [10.0, 10.0], 1.0, True, "no width"),
        ([5.0, 5.0], [10.0, 10.1, 9.9], 1.0, True, "side A"),
        ([0.0, 1.0], [0.0, 3.0], 1.0, False, "not all of its values are positive"),
        ([-2.0, -1.9, -2.1], [-3.0, -2.9, -3.1], -1.0, True, "not all of its values are positive"),
    ],
)
def test_what_cannot_be_a_plain_share_is_said(
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


@pytest.mark.parametrize("runs", [1, 4])
def test_the_band_holds_further_runs_as_often_as_stated(runs: int) -> None:
    held = 0
    for seed in range(SIMULATIONS):
        chance = random.Random(seed)
        low, high = prediction(normal(chance, 100, 8), runs)
        held += low <= centre(normal(chance, 100, runs), relative=True) <= high

    fewest, most = bounds(CONFIDENCE)
    assert fewest <= held <= most


def scattered(seed: int, slope: float) -> Sequence[float]:
    chance = random.Random(seed)
    return [100 * (1 + slope) ** i * math.exp(chance.gauss(0, 0.01)) for i in range(20)]


def test_a_drift_of_the_history_is_found() -> None:
    found = drift(scattered(0, 0.01))

    assert found is not None
    assert found[0] == pytest.approx(0.01, abs=0.003)
    assert found[1] < 0.001
    assert drift([1.0, 2.0]) is None
    assert drift([3.0] * 9) == (0.0, 1.0)


def test_the_scatter_of_a_history_leaves_out_what_was_changed_in_it() -> None:
    # Ten runs, then ten of a version that is twice as fast
    chance = random.Random(1)
    values = [level * math.exp(chance.gauss(0, 0.03)) for level in [100.0] * 10 + [50.0] * 10]

    found = successive_scatter(values)
    assert found is not None
    assert 0.015 < found < 0.06
