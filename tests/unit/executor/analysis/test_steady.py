"""Series that had not settled are marked; noise, also autocorrelated noise, is not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from executor.analysis.steady import unsteady
from executor.records.series import Trend

RUNS = 200


def noise(seed: int, count: int, likeness: float) -> list[float]:
    """Values around 100 that scatter by 5, each like the one before it."""
    chance = random.Random(seed)
    value = chance.gauss(0, 1)
    found = []
    for _ in range(count):
        found.append(100 + 5 * value)
        value = likeness * value + math.sqrt(1 - likeness**2) * chance.gauss(0, 1)
    return found


def as_judged(values: Sequence[float]) -> list[float]:
    trend = Trend()
    trend.add_all(values)
    return trend.points


@pytest.mark.parametrize(
    ("count", "likeness"), [(100, 0.0), (100, 0.5), (200, 0.9), (2000, 0.9), (2000, 0.0)]
)
def test_noise_around_one_level_is_seldom_marked(count: int, likeness: float) -> None:
    marked = sum(unsteady(as_judged(noise(seed, count, likeness))) is not None for seed in range(RUNS))

    assert marked <= 0.04 * RUNS


@pytest.mark.parametrize("count", [100, 250, 2000])
def test_spikes_are_seldom_marked(count: int) -> None:
    marked = 0
    for seed in range(RUNS):
        chance = random.Random(seed)
        values = [chance.gauss(100, 3) * (2 if chance.random() < 0.03 else 1) for _ in range(count)]
        marked += unsteady(as_judged(values)) is not None

    assert marked <= 0.04 * RUNS


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda share: 60 * share, "still rises at the end"),
        (lambda share: -60 * share, "still falls at the end"),
        (lambda share: 10 * (share > 0.5), "rises by"),
        (lambda share: 10 * (share > 0.75), "rises by"),
        (lambda share: -80 * (1 - math.exp(-9 * share)), "falls"),
    ],
)
def test_unsteady_series_are_marked(change: Callable[[float], float], word: str) -> None:
    found = []
    for seed in range(20):
        values = [value + change(i / 400) for i, value in enumerate(noise(seed, 400, 0.3))]
        if (mark := unsteady(as_judged(values))) is not None:
            found.append(mark.sentence)

    assert len(found) >= 14
    assert sum(word in each for each in found) >= 0.7 * len(found)


def test_a_trend_of_no_importance_is_not_marked() -> None:
    slight = [100 + 0.001 * i for i in range(1000)]
    assert unsteady(as_judged(slight)) is None

    # What matters is the metric's tolerance, where that is larger
    rising = [100 + 0.02 * i for i in range(1000)]
    assert unsteady(as_judged(rising)) is not None
    assert unsteady(as_judged(rising), tolerance=0.2) is None


@pytest.mark.parametrize(
    "values", [[], [1.0] * 99, [0.0] * 100, [7.0] * 100, [1e300, -1e300] * 50, [5e-324] * 64]
)
def test_few_or_unusual_values_are_not_judged(values: list[float]) -> None:
    assert unsteady(values) is None
