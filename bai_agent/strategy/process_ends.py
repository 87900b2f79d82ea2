"""Reads how the processes that mpirun started have ended. `strategy/mpi_process.py` records each process's
exit status in a file next to the process's log.

The files are in a folder in which the benchmark's user can create any files. Therefore, links are not
followed, pipes are opened without blocking, and root reads with the rights of the benchmark's user.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from bai_agent.decode import decode
from bai_agent.errors import RecordError
from bai_agent.files.new_files import NO_DESCRIPTOR
from bai_agent.files.user_rights import folder_owner, user_rights
from bai_agent.job.record_types import Count
from bai_agent.light_dataclass import dataclass

_NUMBER = r"0|[1-9][0-9]{0,5}"
_LOG = re.compile(rf"({_NUMBER})(?:-(warmup-)?({_NUMBER})|-g({_NUMBER}))?\.log")
_MOST_LOGS = 100_000
_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class ProcessLog:
    """The log of one process. In a `[repeat]` job, each run has its own log. In a job with restarts, each
    generation has its own log."""

    path: Path
    rank: int
    run: int | None = None
    """Number of the run, from 0. Warm-up runs are numbered separately. None in a job without `[repeat]`."""
    warmup: bool = False
    generation: int = 0

    @property
    def repeat(self) -> int | None:
        """Number of the run in metric records. None for a warm-up run and in a job without `[repeat]`,
        because their metric records have no number of a run."""
        return None if self.warmup else self.run


@dataclass(frozen=True, kw_only=True)
class ProcessEnd:
    """How one process ended."""

    rank: int
    log: Path | None = None
    """Path of the file with the process's output."""
    code: int | None
    """Exit code of the process; None if a signal terminated the process."""
    signal: int | None
    asked: bool
    """Whether the process ended after mpirun had told the process to end."""
    time: int
    """Time of the end (ms UTC)."""
    output_bytes: int
    """Length of the process's log at the end of the process (bytes)."""

    @property
    def failed(self) -> bool:
        """Whether the process failed by itself, before mpirun told it to end."""
        return not self.asked and self.code != 0


def process_logs(folder: Path) -> list[ProcessLog]:
    """Return the processes' logs in `folder`, sorted by rank and run. If the folder contains very many logs,
    only the first logs are returned."""
    try:
        with user_rights(folder_owner(folder)):
            names = [each.name for each in folder.iterdir()]
    except OSError:
        return []
    found = [
        ProcessLog(
            path=folder / match[0],
            rank=int(match[1]),
            run=None if match[3] is None else int(match[3]),
            warmup=match[2] is not None,
            generation=int(match[4] or 0),
        )
        for match in map(_LOG.fullmatch, names)
        if match
    ]
    found.sort(key=lambda each: (each.rank, not each.warmup, each.run or 0, each.generation))
    return found[:_MOST_LOGS]


def open_regular(path: Path) -> int:
    """Open a file for reading with the rights of its folder's owner, and return the file descriptor. Raises
    FileNotFoundError if the file is missing or is not a regular file."""
    try:
        with user_rights(folder_owner(path.parent)):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:
            raise  # the file probably exists
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a file", str(path))
    return descriptor


@dataclass(frozen=True, kw_only=True)
class _EndFile:
    """Content of a file that records how a process ended."""

    code: Count | None
    signal: Count | None
    asked: Count | None
    """Signal with which mpirun had told the process to end; None if there was none."""
    time: Count
    output_bytes: Count


def process_end(log: ProcessLog) -> ProcessEnd | None:
    """Return how a log's process ended; None if the end is not known."""
    try:
        descriptor = open_regular(log.path.with_suffix(".json"))
    except FileNotFoundError:
        return None
    try:
        found = decode(_EndFile, os.read(descriptor, _BYTES), where=str(log.path))
    except (OSError, RecordError):
        return None
    finally:
        os.close(descriptor)
    if found.code is None and found.signal is None:
        return None
    return ProcessEnd(
        rank=log.rank,
        log=log.path,
        code=found.code if found.signal is None else None,
        signal=found.signal,
        asked=found.asked is not None,
        time=found.time,
        output_bytes=found.output_bytes,
    )


def process_ends(logs: Iterable[ProcessLog]) -> list[ProcessEnd]:
    """Return how the processes of `logs` ended, as far as recorded, in the order of `logs`."""
    ends = (process_end(each) for each in logs)
    return [each for each in ends if each is not None]


def runs_of_processes(logs: Iterable[ProcessLog]) -> list[tuple[int, int | None]]:
    """Return the start time of each run (ms UTC), and the run's number in metric records.

    A run starts when the previous run ends on this node, so the start is known only after that end. A job
    without `[repeat]` has no runs.
    """
    ends: dict[tuple[bool, int], int] = {}
    for log in logs:
        if log.run is not None:
            ended = process_end(log)
            key = not log.warmup, log.run
            ends[key] = max(ends.get(key, 0), ended.time if ended is not None else 0)
    found: list[tuple[int, int | None]] = []
    begin = 0
    for (measured, run), end in sorted(ends.items()):
        found.append((begin, run if measured else None))
        begin = max(begin, end + 1)
    return found
