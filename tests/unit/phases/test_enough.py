"""When the runs of a job with `until` are enough."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from bai_agent.phases.enough import Enough, enough_runs


def of_one(values: Sequence[float], until: float = 0.02, least: int = 10) -> Enough:
    return enough_runs({(None, "m"): dict(enumerate(values))}, arms=(), until=until, least=least)


STEADY = [100.0, 102, 98, 101, 99, 100, 101, 99, 102, 98]


def test_ten_runs_with_a_narrow_confidence_interval_are_enough() -> None:
    assert of_one(STEADY).enough
    assert of_one(STEADY).interval == pytest.approx(0.0107, abs=1e-4)
    assert not of_one(STEADY[:9]).enough
    assert not of_one(STEADY, until=0.01).enough


def test_an_interval_that_is_narrow_only_once_is_not_enough() -> None:
    wide = [100.0, 110, 90, 108, 92, 100, 100, 101, 99, 100]
    (width,) = [of_one(wide).interval]
    assert width is not None

    found = of_one(wide, until=width)

    assert (found.narrow_before, found.enough) == (False, False)
    assert of_one([*wide, 100.0], until=width).enough


def test_runs_with_a_trend_are_never_enough() -> None:
    # A machine that becomes slower: the mean of its runs is not what the next one gives
    falling = [110.0, 109.2, 108, 107.5, 106, 105, 104.2, 103, 102, 101, 100]

    found = of_one(falling, until=0.03)

    assert found.interval is not None
    assert found.interval < 0.03
    assert (found.trend, found.enough) == (True, False)


def test_with_arms_the_interval_of_the_difference_counts() -> None:
    chance = random.Random(4)
    machine = [100 * math.exp(chance.gauss(0, 0.1)) for _ in range(10)]
    a = dict(enumerate(machine))
    b = {i: value * 1.05 * math.exp(chance.gauss(0, 0.005)) for i, value in enumerate(machine)}

    found = enough_runs({("a", "m"): a, ("b", "m"): b}, arms=("a", "b"), until=0.02, least=10)

    assert found.enough
    assert not of_one(machine).enough
    # A block that has one of the two alone does not count
    del b[3]
    assert not enough_runs({("a", "m"): a, ("b", "m"): b}, arms=("a", "b"), until=0.02, least=10).enough


@pytest.mark.parametrize(
    "values", [[], [1.0], [0.0] * 10, [-1.0, 1.0] * 5, [1e300, -1e300] * 5, [0.0, 0.0, 5e-324] * 4]
)
def test_extreme_values_give_a_decision_with_finite_intervals(values: list[float]) -> None:
    found = of_one(values)
    pairs = dict(enumerate(values))
    of_arms = enough_runs(
        {("a", "m"): pairs, ("b", "m"): dict(enumerate(reversed(values)))},
        arms=("a", "b"),
        until=0.1,
        least=10,
    )

    for each in (found, of_arms):
        assert each.interval is None or math.isfinite(each.interval)
    assert found.enough == (values == [0.0] * 10)
