"""Verdicts: of runs, with the threshold that the descriptor names, and never more sure than the numbers are."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from bai_agent.job.descriptor import Better, Metric
from executor.analysis.baseline import against_history
from executor.analysis.comparison import Verdict, compare
from executor.analysis.runs import Run, RunValue
from executor.view.comparison import band_view, comparison_view
from executor.view.comparison_page import band_page, comparison_page

ANY = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=7)

SLOW, EVEN, FAST = [80.0, 81, 79, 80.5, 79.5], [100.0, 101, 99, 100.5, 99.5], [120.0, 121, 119, 120.5, 119.5]


def runs(name: str = "throughput", /, *values: float, **described: Any) -> list[Run]:
    metric = Metric(name=name, pattern="x", **described)
    return [
        Run(job_id=f"job-{i}", values={name: RunValue(value=value, count=1, metric=metric)})
        for i, value in enumerate(values)
    ]


def verdict(a: list[float], b: list[float], **described: Any) -> Verdict:
    (found,) = compare(runs("m", *a, **described), runs("m", *b, **described)).metrics
    return found.verdict


HIGHER, LOWER = {"better": Better.HIGHER}, {"better": Better.LOWER}


@pytest.mark.parametrize(
    ("a", "b", "described", "expected"),
    [
        (EVEN, SLOW, HIGHER, Verdict.WORSE),
        (EVEN, SLOW, LOWER, Verdict.BETTER),
        (EVEN, FAST, HIGHER, Verdict.BETTER),
        (EVEN, SLOW, {}, Verdict.DIFFERENT),
        (EVEN, list(reversed(EVEN)), HIGHER, Verdict.NONE),
        (EVEN, [value * 1.02 for value in EVEN], {**HIGHER, "tolerance": 0.05}, Verdict.WITHIN),
        (EVEN, list(reversed(EVEN)), {**HIGHER, "tolerance": 0.05}, Verdict.WITHIN),
        # More than the tolerance is neither shown nor excluded
        (EVEN, [90.0, 100, 110], {**HIGHER, "tolerance": 0.01}, Verdict.UNKNOWN),
        (EVEN, [value * 1.02 for value in EVEN], {**HIGHER, "tolerance": 0.02}, Verdict.UNKNOWN),
        (EVEN, SLOW, {**HIGHER, "tolerance": 0.05}, Verdict.WORSE),
        # Of numbers that are not positive the direction is still right
        ([-value for value in EVEN], [-value for value in SLOW], HIGHER, Verdict.BETTER),
        ([-value for value in EVEN], [-value for value in SLOW], LOWER, Verdict.WORSE),
    ],
)  # fmt: skip
def test_the_verdict_follows_interval_direction_and_tolerance(
    a: list[float], b: list[float], described: dict[str, Any], expected: Verdict
) -> None:
    assert verdict(a, b, **described) is expected


def test_one_run_a_side_cannot_tell_and_says_what_would() -> None:
    (assumed,) = compare(runs("m", 100, better=Better.HIGHER), runs("m", 20, better=Better.HIGHER)).metrics
    assert assumed.verdict is Verdict.UNKNOWN
    assert assumed.more_runs == 16
    assert "an assumption" in assumed.notes[0]

    (known,) = compare(runs("m", 100), runs("m", 20), earlier_scatter={"m": 0.01}).metrics
    assert known.more_runs is not None
    assert known.more_runs < 4
    assert "as earlier runs scatter by 1 %" in known.notes[0]

    # A tolerance is what is to be found
    (fine,) = compare(runs("m", 100, tolerance=0.01), runs("m", 20)).metrics
    assert fine.more_runs is not None
    assert fine.more_runs > 300
    assert "1 %, its tolerance" in fine.notes[0]


def test_what_holds_for_one_of_many_metrics_is_not_called_a_difference() -> None:
    # Given a metric whose difference alone would be one, among nine others
    a = [100.0, 103, 97, 101, 99]
    b = [104.5, 107, 101, 105, 103]
    alone = compare(runs("m", *a, better=Better.HIGHER), runs("m", *b, better=Better.HIGHER)).metrics[0]
    assert alone.effect.p is not None
    assert 0.01 < alone.effect.p < 0.05
    assert alone.verdict is Verdict.BETTER

    chance = random.Random(3)
    sides = []
    for values in (a, b):
        side = []
        for i, value in enumerate(values):
            own = {
                "m": RunValue(
                    value=value, count=1, metric=Metric(name="m", pattern="x", better=Better.HIGHER)
                )
            }
            for k in range(9):
                metric = Metric(name=f"n{k}", pattern="x", better=Better.LOWER)
                own[f"n{k}"] = RunValue(value=chance.gauss(100, 3), count=1, metric=metric)
            side.append(Run(job_id=str(i), values=own))
        sides.append(side)
    compared = compare(*sides)

    found = compared.find("m")
    assert found is not None
    assert (compared.corrected_for, found.verdict) == (10, Verdict.NONE)
    assert any("among 10 metrics" in note for note in found.notes)


def test_of_five_metrics_of_equal_sides_one_is_wrong_as_seldom_as_stated() -> None:
    names = [f"m{k}" for k in range(5)]
    metrics = {name: Metric(name=name, pattern="x", better=Better.LOWER) for name in names}

    def side(chance: random.Random) -> list[Run]:
        return [
            Run(
                job_id=str(i),
                values={
                    name: RunValue(value=chance.gauss(100, 5), count=1, metric=metrics[name])
                    for name in names
                },
            )
            for i in range(4)
        ]

    alarms = 0
    for seed in range(500):
        chance = random.Random(seed)
        found = compare(side(chance), side(chance))
        alarms += any(each.verdict in (Verdict.BETTER, Verdict.WORSE) for each in found.metrics)

    assert alarms <= stats.binom.ppf(0.9995, 500, 0.05)


def test_metrics_of_one_side_and_missing_runs_are_named() -> None:
    a = [*runs("m", 1, 2), *runs("old", 3)]
    b = [*runs("m", 1, 2), *runs("new", 3)]

    found = compare(a, b)

    assert (found.only_a, found.only_b) == (("old",), ("new",))
    assert any("only 2 of 3 runs of A" in note for note in found.metrics[0].notes)


def test_a_run_that_had_not_settled_is_named() -> None:
    metric = Metric(name="m", pattern="x")
    value = RunValue(value=1.0, count=9, metric=metric, unsteady="not steady: it still rises")

    (found,) = compare([Run(job_id="job-7", values={"m": value})], runs("m", 1, 2)).metrics

    assert any("A: 1 of 1 not steady; job-7" in note for note in found.notes)


@given(ANY, ANY, st.sampled_from([None, 0.02]))
@example([1.0], [0.0, 3.8e152], 0.02)
@example([0.0, 1.0], [1e178, 1e178], None)
@example([1.7976931348623157e308], [-1e292], None)
def test_whatever_the_runs_gave_it_is_compared_and_shown(
    a: list[float], b: list[float], tolerance: float | None
) -> None:
    described = {**HIGHER, "tolerance": tolerance}
    before, after = runs("m", *a, **described), runs("m", *b, **described)

    compared = compare(before, after)
    banded = against_history(before, after)

    console = Console(width=100)
    around: dict[str, Any] = {"differences": (), "left_out": (), "method": "", "width": 100}
    with console.capture() as said:
        console.print(comparison_view(compared, names=("a", "b"), counts=(len(a), len(b)), **around))
        console.print(band_view(banded, name="b", history="a", **around))
    pages = comparison_page([("a", "b", compared, ())]) + band_page(
        banded, name="b", history="a", differences=()
    )
    assert compared.metrics[0].verdict.value in said.get()
    assert compared.metrics[0].verdict.value in pages
