"""A headline of values that come in pieces is that of all of them at once."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job import figures
from bai_agent.job.descriptor.metric_tables import Headline
from bai_agent.job.figures import LIMIT, ExactSum, median_of
from bai_agent.job.job_headlines import RunningHeadline, headline_of

values = st.one_of(st.floats(-LIMIT, LIMIT), st.sampled_from((0.0, -0.0, 1.0, 1.0, 2.0, -3.0)))
pieces = st.lists(st.lists(values, max_size=40), max_size=20)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "_SORTED_AT_ONCE", 8)


@given(pieces=pieces, how=st.sampled_from(Headline), most=st.integers(8, 50))
def test_the_headline_of_values_in_pieces_equals_that_of_all_values(
    pieces: list[list[float]], how: Headline, most: int
) -> None:
    every = [value for piece in pieces for value in piece]
    if not every:
        return
    running = RunningHeadline(how)
    # when a median may keep only so many values, they come again until it is found
    for _ in range(20):
        for piece in pieces:
            running.add(piece)
            while running.kept > most:
                running.thin()
        found = running.value()
        if found is not None:
            break
        running = running.again()
    assert found == headline_of(how, every)


def test_the_median_of_drifting_values_is_found_in_a_second_pass() -> None:
    every = [math.sin(number) + number / 1000 for number in range(100_000)]
    first = RunningHeadline(Headline.MEDIAN)
    first.add(every)
    for _ in range(4):
        first.thin()
    assert first.kept == 6250
    assert first.value() is None
    second = first.again()
    second.add(every)
    assert second.kept < 10_000
    assert second.value() == headline_of(Headline.MEDIAN, every)


@pytest.mark.parametrize("more", [[], [2.0] * 7])
def test_the_median_of_values_that_are_mostly_alike_is_found(more: list[float]) -> None:
    every = [1.0, 2.0] * 4000 + more
    running = RunningHeadline(Headline.MEDIAN)
    for _ in range(20):
        for start in range(0, len(every), 200):
            running.add(every[start : start + 200])
            while running.kept > 1000:
                running.thin()
        if (found := running.value()) is not None:
            break
        running = running.again()

    assert found == headline_of(Headline.MEDIAN, every)


@given(st.lists(values, min_size=1, max_size=60))
def test_the_median_equals_that_of_the_sorted_values(values: list[float]) -> None:
    ordered = sorted(values)
    low, high = ordered[(len(values) - 1) // 2], ordered[len(values) // 2]
    assert median_of(values) == (low + high) / 2


@given(pieces)
def test_a_sum_computed_in_pieces_is_exact(pieces: list[list[float]]) -> None:
    total = ExactSum()
    for piece in pieces:
        total.add(piece)
    assert total.rounded == float(sum((Fraction(value) for piece in pieces for value in piece), Fraction()))
