"""Intervals of means and trends, compared with scipy's."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import combinations, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bai_agent.job.figures import relative_half_width, student_975, trend_p


def test_students_t_quantile_equals_scipys() -> None:
    for freedom in (*range(1, 40), 100, 1_000, 100_000):
        assert student_975(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-5)


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=30))
def test_the_confidence_interval_equals_scipys(values: list[float]) -> None:
    width = relative_half_width(values)

    error = stats.sem(values)
    expected = (
        stats.t.ppf(0.975, len(values) - 1) * error / math.fsum(value / len(values) for value in values)
    )
    assert width == pytest.approx(expected, rel=1e-4, abs=1e-12)


def test_an_undetermined_relative_interval_is_infinite() -> None:
    assert relative_half_width([]) == relative_half_width([3.0]) == math.inf
    assert relative_half_width([1.0, -1.0]) == math.inf
    assert relative_half_width([0.0, 0.0]) == 0


def draw(count: int, seed: int, slope: float = 0.05) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(0, 1) + slope * i for i in range(count)]


@pytest.mark.parametrize("count", [2, 5, 8, 20, 30])
def test_the_p_value_of_a_short_series_without_ties_equals_scipys(count: int) -> None:
    values = draw(count, 1)

    assert trend_p(values) == pytest.approx(stats.kendalltau(range(count), values, method="exact").pvalue)


def test_the_p_value_of_a_long_or_tied_series_is_close_to_scipys() -> None:
    long = draw(200, 2, slope=0.003)
    tied = [float(round(each)) for each in draw(60, 3, slope=0.03)]

    for values in long, tied:
        expected = stats.kendalltau(range(len(values)), values, method="asymptotic").pvalue
        # Ours is corrected for continuity.
        assert trend_p(values) == pytest.approx(expected, rel=0.05)


def score(values: Sequence[float]) -> int:
    return sum((y > x) - (y < x) for x, y in combinations(values, 2))


def test_the_trend_of_several_series_is_judged_by_the_sum_of_their_scores() -> None:
    a, b = [1.0, 2.0, 4.0, 3.0], [2.0, 5.0, 6.0]
    orders = list(product(permutations(a), permutations(b)))
    as_far = sum(abs(score(x) + score(y)) >= abs(score(a) + score(b)) for x, y in orders)

    assert trend_p(a, b) == pytest.approx(as_far / len(orders))
    # One that rises and one that falls have no trend in common
    assert trend_p([1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]) == pytest.approx(1.0)


def test_too_few_or_equal_values_have_no_trend() -> None:
    assert [trend_p(), trend_p([]), trend_p([1.0]), trend_p([3.0] * 9)] == [1.0] * 4
