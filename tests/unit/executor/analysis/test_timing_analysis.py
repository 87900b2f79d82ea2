"""The times of a command's runs, and what makes them doubtful."""

from __future__ import annotations

import statistics

import pytest

from bai_agent.job.record_types import JobResult, RepeatOutcome
from executor.analysis.timing_analysis import CommandTimes, command_times, doubts, duration


def times(walls: list[float], *, codes: list[int] | None = None) -> CommandTimes:
    repeats = [
        RepeatOutcome(
            repeat=number, arm="a", outcome="succeeded", code=0, wall_seconds=wall, user_seconds=0.5, system_seconds=0.25,
            peak_memory_bytes=2**20, ignored_code=code or None,
        )
        for number, (wall, code) in enumerate(zip(walls, codes or [0] * len(walls), strict=True))
    ]  # fmt: skip
    failed = RepeatOutcome(repeat=len(walls), arm="a", outcome="failed", code=1, wall_seconds=99.0)
    result = JobResult(
        outcome="succeeded", status="SUCCEEDED", exit_code=0, sentence="", repeats=[*repeats, failed]
    )
    (found,) = command_times(result, ["a", "b"])
    return found


EVEN = [0.100, 0.101, 0.099, 0.1005, 0.0995, 0.100, 0.1002, 0.0998]


def test_statistics_include_only_successful_runs() -> None:
    found = times(EVEN)

    assert found.walls == tuple(EVEN)
    assert found.mean == pytest.approx(statistics.fmean(EVEN))
    assert found.deviation == pytest.approx(statistics.stdev(EVEN))
    # Student's t of 7 degrees of freedom.
    assert found.half_width == pytest.approx(2.364624 * statistics.stdev(EVEN) / 8**0.5)
    assert (found.user, found.system, found.peak_memory) == (0.5, 0.25, None)


@pytest.mark.parametrize(
    ("walls", "said"),
    [
        (EVEN, []),
        ([0.3, *EVEN], ["the first run was slow (300.0 ms"]),
        ([*EVEN, 0.3], ["1 of 9 runs took much longer or shorter"]),
        ([0.3, *EVEN, 0.2], ["the first run was slow", "1 of 10 runs"]),
        ([0.0005] * 8, ["less than 1 ms"]),
        ([0.1, 0.3, 0.1], []),
    ],
)
def test_doubtful_times_are_reported(walls: list[float], said: list[str]) -> None:
    found = doubts(times(walls), warmup=0, prepares=False, shell=False)

    assert len(found) == len(said)
    assert all(text in sentence for text, sentence in zip(said, found, strict=True))


def test_ignored_exit_codes_and_a_shell_are_reported() -> None:
    codes = doubts(times([0.1, 0.1], codes=[0, 3]), warmup=0, prepares=False, shell=False)
    shell = doubts(times([0.002, 0.002]), warmup=0, prepares=False, shell=True)

    assert codes == ["1 of 2 runs exited with code 3, which --ignore-failure accepts"]
    assert "start of the shell" in shell[0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.000 ms"),
        (0.00012345, "0.123 ms"),
        (0.0123456, "12.35 ms"),
        (0.5, "500.0 ms"),
        (1.5, "1.500 s"),
        (123.4, "123.4 s"),
    ],
)
def test_times_have_the_digits_of_their_resolution(seconds: float, text: str) -> None:
    assert duration(seconds) == text
