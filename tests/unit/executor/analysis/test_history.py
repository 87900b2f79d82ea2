"""What a history says of the next run is right as often as it claims to be."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from bai_agent.job.figures import LIMIT
from executor.analysis.effect import ALPHA, CONFIDENCE, centre
from executor.analysis.history import drift, prediction, successive_scatter

SIMULATIONS = 1000
FINITE = st.floats(-LIMIT, LIMIT)


def normal(chance: random.Random, runs: int) -> list[float]:
    return [chance.gauss(100, 5) for _ in range(runs)]


@given(st.lists(FINITE, min_size=5, max_size=8), st.lists(FINITE, min_size=1, max_size=3))
@example([-1e300, 0.0, 9e299, 0.0, 9e299], [1.0])
def test_any_history_is_judged_by_finite_numbers(history: list[float], newest: list[float]) -> None:
    band = prediction(history, newest)
    slope, p = drift(history) or (math.nan, math.nan)

    assert band.low <= band.high
    assert all(math.isfinite(each) for each in (band.low, band.high, band.p, slope, p))


@pytest.mark.parametrize("runs", [1, 4])
def test_the_band_contains_further_runs_as_often_as_stated(runs: int) -> None:
    held = 0
    for seed in range(SIMULATIONS):
        chance = random.Random(seed)
        newest = normal(chance, runs)
        band = prediction(normal(chance, 8), newest)
        inside = band.low <= centre(newest, relative=True) <= band.high
        assert inside == (band.p >= ALPHA)
        held += inside

    fewest, most = stats.binom.interval(0.999, SIMULATIONS, CONFIDENCE)
    assert fewest <= held <= most


def test_a_history_without_scatter_has_a_band_of_the_width_of_rounding() -> None:
    # Given runs that are rounded to 0.1: three that agree say less than ten
    assert prediction([5.0] * 3, [5.1]).high > 5.1
    assert prediction([5.0] * 10, [5.1]).high < 5.1
    assert prediction([5.0] * 3, [5.0]).p == 1.0


def test_the_trend_of_a_history_equals_that_of_scipy() -> None:
    values = [5.0, 5.2, 4.9, 5.4, 5.3, 5.8, 5.1]

    slope, p = drift([value - 6 for value in values]) or (0.0, 0.0)

    assert slope == pytest.approx(stats.theilslopes(values)[0])
    assert p == pytest.approx(stats.kendalltau(range(7), values, method="exact").pvalue)


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


def test_a_level_shift_within_a_history_does_not_enlarge_its_scatter() -> None:
    # Ten runs, then ten of a version that is twice as fast
    chance = random.Random(1)
    values = [level * math.exp(chance.gauss(0, 0.03)) for level in [100.0] * 10 + [50.0] * 10]

    found = successive_scatter(values)
    assert found is not None
    assert 0.015 < found < 0.06
