from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.schema.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("2h", 7200),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("1.5m", 90),
        ("1d", 86400),
        (" 1h 5s ", 3605),
        ("0s", 0),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 seconds", "1h-5m", "1e3s", "nan", "5s!"])
def test_an_invalid_duration_is_named_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match='write for example "90s"'):
        parse_duration(text)


def test_an_overflowing_duration_is_also_an_error() -> None:
    with pytest.raises(ValueError, match="longer than any run"):
        parse_duration("9" * 40 + "d")


@given(st.integers(min_value=0, max_value=10**12))
def test_a_formatted_duration_is_read_back(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)

    assert parse_duration(format_duration(duration)) == duration
