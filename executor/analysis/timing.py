"""The times of the runs of one command: what stands for them, and what a person should know before believing that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bai_agent.job.interval import half_width, mean_of, median_of
from bai_agent.job.record_types import JobResult
from executor.analysis.effect import deviation
from executor.analysis.runs import SUCCEEDED
from executor.records.memory_floor import memory_floor

OUTLIER = 10 * 1.4826
"""Distances from the median, in median absolute deviations, beyond which a run is an outlier: 10 standard deviations of normal noise.
Iglewicz and Hoaglin, "How to Detect and Handle Outliers", 1993, whose score this is, with hyperfine's bound."""
_FEWEST = 5
"""Runs below which no outlier is looked for."""
RESOLUTION = 0.001
"""Seconds: what is shorter is mostly the start of a process, which the kernel scatters by tenths of a millisecond."""


@dataclass(frozen=True, kw_only=True)
class CommandTimes:
    """The runs of one command that ended well. Times are in seconds, memory in bytes."""

    name: str
    walls: tuple[float, ...]
    """In the order in which they ran."""
    users: tuple[float, ...]
    systems: tuple[float, ...]
    memory: tuple[int, ...]
    """Of the largest process of each."""
    floor: int
    """Bytes up to which memory is only a bound."""
    exit_codes: tuple[int, ...]

    @property
    def mean(self) -> float:
        return mean_of(self.walls)

    @property
    def median(self) -> float:
        return median_of(self.walls)

    @property
    def half_width(self) -> float:
        """How far the 95 % confidence interval of the mean reaches to either side; infinite of one run."""
        return half_width(self.walls)

    @property
    def deviation(self) -> float | None:
        """The standard deviation; None of one run."""
        return deviation(self.walls) if len(self.walls) > 1 else None

    @property
    def user(self) -> float:
        return mean_of(self.users)

    @property
    def system(self) -> float:
        return mean_of(self.systems)

    @property
    def peak_memory(self) -> int | None:
        """The largest of all runs; None where it is not more than what starts a command has itself."""
        largest = max(self.memory, default=0)
        return largest if largest > self.floor else None

    @property
    def outliers(self) -> tuple[int, ...]:
        """The runs, from 0, that took much longer or shorter than the others."""
        if len(self.walls) < _FEWEST:
            return ()
        middle = self.median
        spread = median_of([abs(each - middle) for each in self.walls])
        # Of times that are all but one the same, a microsecond is no outlier.
        bound = OUTLIER * max(spread, RESOLUTION / 20)
        return tuple(i for i, each in enumerate(self.walls) if abs(each - middle) > bound)


def command_times(result: JobResult, arms: Sequence[str]) -> list[CommandTimes]:
    """Return the times of each arm that has a run; of a job without arms, one, whose name is ""."""
    repeats = result.repeats or []
    floor = memory_floor(result.own_usage)
    found = []
    for name in arms or ("",):
        runs = [
            each
            for each in repeats
            if each.outcome == SUCCEEDED and (each.arm or "") == name and each.wall_seconds is not None
        ]
        if not runs:
            continue
        found.append(
            CommandTimes(
                name=name,
                walls=tuple(each.wall_seconds or 0.0 for each in runs),
                users=tuple(each.user_seconds or 0.0 for each in runs),
                systems=tuple(each.system_seconds or 0.0 for each in runs),
                memory=tuple(each.peak_memory_bytes or 0 for each in runs),
                floor=floor,
                exit_codes=tuple(each.ignored_code or each.code or 0 for each in runs),
            )
        )
    return found


def doubts(times: CommandTimes, *, warmup: int, prepares: bool, shell: bool) -> list[str]:
    """Return what makes the times of a command doubtful, and what to do about it; warmup: runs before those."""
    found = []
    outliers = times.outliers
    more = "a larger --warmup" if warmup else "--warmup 3"
    if 0 in outliers and times.walls[0] == max(times.walls):
        caches = f"caches that it fills may be why: {more}"
        caches += "" if prepares else ", or --prepare, which empties them before each run"
        found.append(
            f"the first run was slow ({duration(times.walls[0])}, the median is {duration(times.median)}); {caches}"
        )
        outliers = outliers[1:]
    if outliers:
        slowest = duration(max(times.walls[each] for each in outliers))
        count = f"{len(outliers)} of {len(times.walls)} runs"
        found.append(
            f"{count} took much longer or shorter than the others (up to {slowest}): a quiet machine, or --exclusive, helps; "
            f"the median is {duration(times.median)}"
        )
    if shell and times.median < 5 * RESOLUTION:
        found.append("the shell's own start is in it, a millisecond or so: without --shell it is not")
    elif times.median < RESOLUTION:
        found.append(
            "it takes less than 1 ms, most of which is the start of the process: let the command repeat its work itself"
        )
    codes = sorted({each for each in times.exit_codes if each})
    if codes:
        failed = sum(1 for each in times.exit_codes if each)
        listed = ", ".join(map(str, codes))
        found.append(
            f"{failed} of {len(times.walls)} runs exited with code {listed}, which --ignore-failure lets count"
        )
    return found


def duration(seconds: float, *, like: float | None = None) -> str:
    """Return a time with its unit, to four digits and never finer than a microsecond; in the unit and with the digits of `like`."""
    factor, unit, digits = _scale(seconds if like is None else like)
    return f"{seconds * factor:.{digits}f} {unit}"


def _scale(seconds: float) -> tuple[float, str, int]:
    if seconds < 1:
        milliseconds = seconds * 1000
        return 1000, "ms", 3 if milliseconds < 10 else 2 if milliseconds < 100 else 1
    return 1, "s", 3 if seconds < 10 else 2 if seconds < 100 else 1
