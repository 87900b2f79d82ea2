"""Intervals of means, compared with scipy's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bai_agent.job.figures import relative_half_width, student_975


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
