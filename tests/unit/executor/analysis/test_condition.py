"""Conditions of --fail-if: a small grammar, judged within the certainty that the runs allow."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from bai_agent.job.descriptor.metric_tables import Metric
from executor.analysis.baseline import AgainstHistory, against_history
from executor.analysis.comparison import Comparison, compare
from executor.analysis.condition import judge, parse_condition
from executor.analysis.measured_runs import Run, RunValue
from executor.errors import UsageError


def side(*values: float, name: str = "throughput") -> list[Run]:
    metric = Metric(name=name, pattern="x")
    return [
        Run(job_id=f"{i}", values={name: RunValue(value=each, count=1, metric=metric)})
        for i, each in enumerate(values)
    ]


def compared(a: list[float], b: list[float], name: str = "throughput") -> Comparison:
    return compare(side(*a, name=name), side(*b, name=name))


def holds(text: str, found: Comparison | AgainstHistory) -> bool | None:
    (judged,) = judge([parse_condition(text)], [found])
    return judged.holds


SLOWER = compared([100, 101, 99], [90, 91, 89])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("throughput < -5%", True), ("throughput<-5%", True), (" throughput <= -5 % ", True),
        ('"throughput" < -5%', True), ("throughput < -15%", False), ("throughput > 5%", False),
        ("throughput < -5", True), ("throughput < -1.1e1", False), ("throughput < 5%", True),
        ("throughput > -20%", True),
    ],
)  # fmt: skip
def test_a_fail_if_condition_is_judged_by_the_measured_change(text: str, expected: bool) -> None:
    assert holds(text, SLOWER) is expected


def test_a_condition_does_not_hold_if_the_change_may_be_chance() -> None:
    assert holds("throughput < -5%", compared([100, 130, 70], [90, 60, 110])) is False


def test_a_condition_cannot_be_judged_with_one_run_a_side() -> None:
    (judged,) = judge([parse_condition("throughput < -5%")], [compared([100], [50, 51])])

    assert judged.holds is None
    assert "a side has only one run" in judged.why


def test_many_conditions_fail_equal_sides_no_more_often_than_one() -> None:
    names = [f"m{k}" for k in range(10)]
    conditions = [parse_condition(f"{name} {sign} 0%") for name in names for sign in "<>"]
    failed = alone = 0
    for seed in range(300):
        chance = random.Random(seed)
        sides = [
            [
                Run(
                    job_id=str(i),
                    values={name: RunValue(value=chance.gauss(100, 3), count=1) for name in names},
                )
                for i in range(5)
            ]
            for _ in "ab"
        ]
        found = compare(*sides)
        failed += any(each.holds for each in judge(conditions, [found]))
        alone += any(each.effect.excludes_zero for each in found.metrics)

    assert alone > 0.25 * 300
    assert failed <= stats.binom.ppf(0.9995, 300, 0.05)


def test_a_metric_that_is_not_the_same_on_both_sides_cannot_be_judged() -> None:
    seconds = [
        Run(job_id=f"{i}", values={"throughput": RunValue(value=each, count=1, units="MB")})
        for i, each in enumerate((100.0, 101, 99))
    ]

    (judged,) = judge([parse_condition("throughput < -5%")], [compare(side(100, 101, 99), seconds)])

    assert judged.holds is None
    assert "units: none and MB" in judged.why


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "expected a metric"), ("throughput", "expected a metric"), ("throughput < x", "expected a metric"),
        ("throughput = 5%", "expected a metric"), ("< 5%", "expected a metric"), ("a < 1 < 2", "expected a metric"),
        ("throughput < 1.2.3", "is not a number"), ("throughput < 1e999", "is not a number"),
        ("__import__('os') < 5; x", "expected a metric"),
    ],
)  # fmt: skip
def test_an_invalid_condition_is_refused_with_an_example(text: str, word: str) -> None:
    with pytest.raises(UsageError, match="write for example 'throughput < -5%'") as refused:
        parse_condition(text)
    assert word in str(refused.value)


def test_an_unknown_metric_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match='no metric "speed" in common; they have: throughput'):
        holds("speed < -5%", SLOWER)


def test_a_percentage_condition_on_values_that_are_not_positive_is_refused() -> None:
    with pytest.raises(UsageError, match="write the bound in the metric's units"):
        holds("throughput < -5%", compared([-1, 1], [2, 3]))


@given(st.text('ab <>=%"0.5-e+\n;_', max_size=40))
@example(" <0")
def test_any_text_is_a_valid_condition_or_refused_with_a_sentence(text: str) -> None:
    try:
        found = parse_condition(text)
    except UsageError:
        return
    assert found.metric


@given(st.text("ab <>=%0.5-{},µ", min_size=1, max_size=20))
def test_any_name_can_be_quoted(name: str) -> None:
    assert parse_condition(f'"{name}" > 3%').metric == name


@pytest.mark.parametrize(
    ("now", "text", "expected"),
    [
        # The band reaches from about 95 to 105.
        ([90.0], "throughput < -5%", True), ([90.0], "throughput < -15%", False), ([90.0], "throughput < -5", True),
        ([90.0], "throughput > 1%", False), ([98.0], "throughput < -1%", False), ([98.0], "throughput < 5%", True),
        ([90.0, 89.0], "throughput < -10%", True), ([90.0], "throughput < -10.5", False),
    ],
)  # fmt: skip
def test_a_condition_on_a_history_compares_with_the_centre_of_its_band(
    now: list[float], text: str, expected: bool
) -> None:
    banded = against_history(side(98, 102, 100, 99, 101), side(*now))

    assert holds(text, banded) is expected


def test_a_condition_that_a_history_cannot_judge_is_undecided_or_refused() -> None:
    text = "throughput < -5%"

    assert holds(text, against_history(side(100, 101), side(50))) is None
    with pytest.raises(UsageError, match='no metric "throughput" in common; they have: loss'):
        holds(text, against_history(side(1, 2, 3, name="loss"), side(2, name="loss")))
    with pytest.raises(UsageError, match="write the bound in the metric's units"):
        holds(text, against_history(side(-1, 0, 1), side(0)))
