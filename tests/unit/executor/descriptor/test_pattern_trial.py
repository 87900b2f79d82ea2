"""Patterns are tried on their example lines, by the extractor's rules, and never for long."""

from __future__ import annotations

import pytest

from executor.descriptor.checks import pattern_trial
from executor.descriptor.checks.pattern_trial import PatternExample, Trial, try_patterns


def tried(pattern: str, line: str, **keys: str) -> PatternExample:
    return PatternExample(metric={"name": "", "pattern": pattern, **keys}, line=line)


BACKTRACKS = tried("(a+)+$", "a" * 60 + "b")
WALL_S = 300.0


@pytest.fixture(autouse=True)
def _time_of_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of CPU may take a machine with much else to do half a minute."""
    monkeypatch.setattr(pattern_trial, "_WALL_SECONDS", WALL_S)


@pytest.mark.parametrize(
    ("pattern", "line", "numbers"),
    [
        (r"loss=(\S+)", "epoch 3 loss=1.5e-05", [1.5e-05]),
        (r"loss=(?P<value>\d+) of (\d+)", "loss=3 of 4", [3]),
        (r"(\d+) of (?P<value>\d+)", "3 of 4", [4]),
        (r"\d+", "a 1 b 2", [1, 2]),
        (r"loss (\d+)", "\x1b[31mloss\x1b[0m 5", [5]),
        (r"^b (\d+)", "a 1\rb 2", [2]),
        (r"größe (\d+)", "größe 7", [7]),
    ],
)
def test_a_pattern_finds_the_same_values_in_its_example_as_in_a_run(
    pattern: str, line: str, numbers: list[float]
) -> None:
    (trial,) = try_patterns([tried(pattern, line)])
    assert trial == Trial(values=tuple({"value": number} for number in numbers))


def test_step_labels_and_units_of_an_example_are_read_as_in_a_run() -> None:
    pattern = r"step (?P<step>\d+) threads=(?P<threads>\d+) ([\d,]+)(?P<unit>us)"
    example = tried(pattern, "step 3 threads=4 1,500us", units="ms", number="thousands")
    assert try_patterns([example]) == [Trial(values=({"value": 1.5, "step": 3, "labels": {"threads": "4"}},))]


def test_values_that_are_not_numbers_or_doubtful_are_reported() -> None:
    lines = [(r"loss (\w+)", "loss nan"), (r"loss( \d+)?", "loss"), ("x", "y"), (r"(\d+)", "1,000")]
    assert try_patterns([tried(pattern, line) for pattern, line in lines]) == [
        Trial(others=("nan",)),
        Trial(others=("",)),
        Trial(),
        Trial(values=({"value": 1}, {"value": 0}), doubts=(("goes_on", "1", "1,000"),)),
    ]


def test_a_pattern_that_backtracks_for_ever_is_ended_and_others_are_tried() -> None:
    trials = try_patterns([tried("(1)", "1"), BACKTRACKS, tried("(2)", "2")])

    assert trials == [Trial(values=({"value": 1},)), Trial(too_slow=True), Trial(values=({"value": 2},))]


def test_many_endless_patterns_share_the_time_limit_of_one_trial() -> None:
    # Looks at the clock: at the beginning, before the first child, and after it, when the time is over.
    times = [0.0, 0.0, WALL_S]

    trials = try_patterns([BACKTRACKS] * 50, clock=lambda: times.pop(0))

    assert trials == [Trial(too_slow=True)] * 50
    assert times == []
