"""Patterns are tried on their example lines, by the extractor's rules, and never for long."""

from __future__ import annotations

import pytest

from executor.descriptor.pattern_trial import Trial, try_patterns

BACKTRACKS = ("(a+)+$", "a" * 60 + "b")


@pytest.mark.parametrize(
    ("pattern", "line", "numbers"),
    [
        (r"loss=(\S+)", "epoch 3 loss=1.5e-05", ("1.5e-05",)),
        (r"loss=(?P<value>\d+) of (\d+)", "loss=3 of 4", ("3",)),
        (r"(\d+) of (?P<value>\d+)", "3 of 4", ("4",)),
        (r"\d+", "a 1 b 2", ("1", "2")),
        (r"loss (\d+)", "\x1b[31mloss\x1b[0m 5", ("5",)),
        (r"^b (\d+)", "a 1\rb 2", ("2",)),
        (r"größe (\d+)", "größe 7", ("7",)),
    ],
)
def test_the_numbers_are_those_of_a_run(pattern: str, line: str, numbers: tuple[str, ...]) -> None:
    assert try_patterns([(pattern, line)]) == [Trial(numbers=numbers)]


def test_what_is_no_number_is_told() -> None:
    assert try_patterns([(r"loss (\w+)", "loss nan"), (r"loss( \d+)?", "loss"), ("x", "y")]) == [
        Trial(others=("nan",)),
        Trial(others=("",)),
        Trial(),
    ]


def test_a_pattern_that_backtracks_for_ever_is_ended_and_the_others_are_tried() -> None:
    trials = try_patterns([("(1)", "1"), BACKTRACKS, ("(2)", "2")])

    assert trials == [Trial(numbers=("1",)), Trial(too_slow=True), Trial(numbers=("2",))]
