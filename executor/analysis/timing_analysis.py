"""Computes the times of a command's runs, and finds reasons to doubt these times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bai_agent.job.figures import deviation, half_width, mean_of, median_of
from bai_agent.job.record_types import JobResult, RepeatOutcome
from bai_agent.light_dataclass import dataclass
from executor.analysis.measured_runs import SUCCEEDED
from executor.records.counted_values import memory_floor

OUTLIER = 10 * 1.4826
"""Number of median absolute deviations from the median beyond which a run's time is an outlier. For normally
distributed noise, this limit corresponds to 10 standard deviations. Source of this score: Iglewicz and
Hoaglin, "How to Detect and Handle Outliers", 1993, with hyperfine's bound."""
_FEWEST = 5
"""Minimum number of runs among which outliers are searched."""
RESOLUTION = 0.001
"""Shortest time that can be measured well (seconds). Times below this limit are mostly the start of a
process, which varies by tenths of a millisecond."""


@dataclass(frozen=True, kw_only=True)
class CommandTimes:
    """The successful runs of one command. Times are in seconds, memory in bytes."""

    name: str
    walls: tuple[float, ...]
    """Wall times in the order of the runs."""
    users: tuple[float, ...]
    systems: tuple[float, ...]
    memory: tuple[int, ...]
    """Peak memory of the largest process of each run."""
    floor: int
    """A peak memory of at most this value is only an upper bound."""
    exit_codes: tuple[int, ...]

    @property
    def mean(self) -> float:
        return mean_of(self.walls)

    @property
    def median(self) -> float:
        return median_of(self.walls)

    @property
    def half_width(self) -> float:
        """Half width of the 95 % confidence interval of the mean; infinite for one run."""
        return half_width(self.walls)

    @property
    def deviation(self) -> float | None:
        """The standard deviation; None for one run."""
        return deviation(self.walls) if len(self.walls) > 1 else None

    @property
    def user(self) -> float:
        return mean_of(self.users)

    @property
    def system(self) -> float:
        return mean_of(self.systems)

    @property
    def peak_memory(self) -> int | None:
        """Largest peak memory of all runs; None if it does not exceed the peak of the shim, the process that
        starts the commands."""
        largest = max(self.memory, default=0)
        return largest if largest > self.floor else None

    @property
    def outliers(self) -> tuple[int, ...]:
        """Numbers (from 0) of the runs that took much longer or shorter than the other runs."""
        if len(self.walls) < _FEWEST:
            return ()
        middle = self.median
        spread = median_of([abs(each - middle) for each in self.walls])
        # A minimum distance is required, so that a difference of a microsecond makes no outlier even if all
        # other times are equal.
        bound = OUTLIER * max(spread, RESOLUTION / 20)
        return tuple(i for i, each in enumerate(self.walls) if abs(each - middle) > bound)


def command_times(result: JobResult, arms: Sequence[str]) -> list[CommandTimes]:
    """Return the times of each arm that has a run; for a job without arms, one entry, whose name is ""."""
    runs: dict[str, list[RepeatOutcome]] = {name: [] for name in arms or ("",)}
    for each in result.repeats or ():
        arm = each.arm or ""
        if each.outcome == SUCCEEDED and arm in runs and each.wall_seconds is not None:
            runs[arm].append(each)
    floor = memory_floor(result.own_usage)
    return [_times(name, found, floor=floor) for name, found in runs.items() if found]


def _times(name: str, runs: Sequence[RepeatOutcome], *, floor: int) -> CommandTimes:
    def every(field: str) -> Iterator[Any]:
        return (getattr(each, field) or 0 for each in runs)

    return CommandTimes(
        name=name,
        walls=tuple(every("wall_seconds")),
        users=tuple(every("user_seconds")),
        systems=tuple(every("system_seconds")),
        memory=tuple(every("peak_memory_bytes")),
        floor=floor,
        exit_codes=tuple(each.ignored_code or each.code or 0 for each in runs),
    )


def doubts(times: CommandTimes, *, warmup: int, prepares: bool, shell: bool) -> list[str]:
    """Return sentences about reasons to doubt the times of a command, with advice. warmup: number of warm-up
    runs before the timed runs."""
    return [
        *_outlier_doubts(times, warmup=warmup, prepares=prepares),
        *_start_doubts(times, shell=shell),
        *_failure_doubts(times),
    ]


def _outlier_doubts(times: CommandTimes, *, warmup: int, prepares: bool) -> Iterator[str]:
    outliers = times.outliers
    if 0 in outliers and times.walls[0] == max(times.walls):
        caches = f"caches that it fills may be why: {'a larger --warmup' if warmup else '--warmup 3'}"
        caches += "" if prepares else ", or --prepare, which empties them before each run"
        first, usual = duration(times.walls[0]), duration(times.median)
        yield f"the first run was slow ({first}, the median is {usual}); {caches}"
        outliers = outliers[1:]
    if outliers:
        slowest = duration(max(times.walls[each] for each in outliers))
        yield (
            f"{len(outliers)} of {len(times.walls)} runs took much longer or shorter than the other runs (up to {slowest}): "
            f"use a quiet machine or --exclusive; the median is {duration(times.median)}"
        )


def _start_doubts(times: CommandTimes, *, shell: bool) -> Iterator[str]:
    if shell and times.median < 5 * RESOLUTION:
        yield "the time includes the start of the shell, about a millisecond: run without --shell to exclude the start"
    elif times.median < RESOLUTION:
        yield "the command takes less than 1 ms, most of which is the start of the process: let the command repeat its work"


def _failure_doubts(times: CommandTimes) -> Iterator[str]:
    if codes := [each for each in times.exit_codes if each]:
        listed = ", ".join(map(str, sorted(set(codes))))
        yield f"{len(codes)} of {len(times.walls)} runs exited with code {listed}, which --ignore-failure accepts"


def duration(seconds: float, *, like: float | None = None) -> str:
    """Return a time with its unit, with four digits but at most to the microsecond. like: a time whose unit
    and number of decimals are also used for the returned time."""
    factor, unit, digits = _scale(seconds if like is None else like)
    return f"{seconds * factor:.{digits}f} {unit}"


def _scale(seconds: float) -> tuple[float, str, int]:
    if seconds < 1:
        milliseconds = seconds * 1000
        return 1000, "ms", 3 if milliseconds < 10 else 2 if milliseconds < 100 else 1
    return 1, "s", 3 if seconds < 10 else 2 if seconds < 100 else 1
