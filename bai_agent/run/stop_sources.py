"""What may ask a run to end: each a `StopSource`."""

from __future__ import annotations

import logging
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from bai_agent.errors import StoreError
from bai_agent.job.descriptor import Job, Limits
from bai_agent.job.durations import format_duration
from bai_agent.job.outcome import Outcome
from bai_agent.job.run_directory import RunDir
from bai_agent.run.open_file import OpenFile
from bai_agent.run.stop import StopReason, StopSource

log = logging.getLogger(__name__)

LOW_DISK_BYTES = 4 * 2**20
"""Less than this free on the run directory's file system ends the run while there is room for its result."""

_LOOK_SECONDS = 1.0
"""Between two looks at the store, or at the disk."""


def stop_sources(
    job: Job,
    rundir: RunDir,
    *,
    signals: Signals,
    disk: DiskFull,
    cancelled: Callable[[], bool],
    spot: StopSource | None,
) -> list[StopSource]:
    """Return all that may ask this run to end, in the order in which they are asked.

    cancelled: see `Cancel`. spot: EC2's notices about this instance, where it is one.
    """
    sources: list[StopSource] = [signals]
    if spot is not None:
        sources.append(spot)
    return [
        *sources,
        MaxRuntime(job.limits),
        NoOutput(job.limits, rundir),
        Cancel(rundir, cancelled=cancelled),
        disk,
    ]


class Signals:
    """SIGTERM and SIGINT to this process; a closed terminal is no reason."""

    def __init__(self) -> None:
        self._received: signal.Signals | None = None

    def listen(self) -> None:
        """Take the signals from now on."""
        signal.signal(signal.SIGTERM, self._take)
        signal.signal(signal.SIGINT, self._take)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    @property
    def received(self) -> bool:
        """Whether somebody wants this process to be gone soon, such as a machine that shuts down."""
        return self._received is not None

    def reason(self, running_s: float | None) -> StopReason | None:
        if self._received is None:
            return None
        if self._received is signal.SIGINT:
            return StopReason(Outcome.CANCELLED, "The job was cancelled from the keyboard.")
        return StopReason(Outcome.INTERRUPTED, f"The agent was told to stop ({self._received.name}).")

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._received = signal.Signals(number)


class MaxRuntime:
    """`limits.max_runtime`."""

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.max_runtime

    def reason(self, running_s: float | None) -> StopReason | None:
        limit = self._limit
        if limit is None or running_s is None or running_s < limit.total_seconds():
            return None
        return StopReason(
            Outcome.MAX_RUNTIME,
            f"The benchmark ran longer than limits.max_runtime ({format_duration(limit)}) and was ended.",
        )


class NoOutput:
    """`limits.no_output`: how long nothing was printed or emitted."""

    def __init__(self, limits: Limits, rundir: RunDir) -> None:
        self._limit = limits.no_output
        self._outputs = (OpenFile(rundir.kept_output), OpenFile(rundir.emit))
        self._seen = (0, 0)
        self._last_output = time.monotonic()

    def reason(self, running_s: float | None) -> StopReason | None:
        limit = self._limit
        if limit is None or running_s is None or self._silent_seconds(running_s) < limit.total_seconds():
            return None
        return StopReason(
            Outcome.NO_OUTPUT,
            f"The benchmark printed and emitted nothing for limits.no_output ({format_duration(limit)}) "
            "and was ended.",
        )

    def _silent_seconds(self, running_s: float) -> float:
        first = self._seen == (0, 0)
        stats = [each for each in (file.stat() for file in self._outputs) if each is not None]
        seen = (sum(each.st_size for each in stats), max((each.st_mtime_ns for each in stats), default=0))
        if seen != self._seen:
            self._seen = seen
            # An agent that has just come back did not see the last output: the file's time tells.
            age = max(0.0, time.time() - seen[1] / 1e9) if first else 0.0
            self._last_output = time.monotonic() - min(age, running_s)
        return time.monotonic() - self._last_output


class Cancel:
    """A cancel of the job: a file in the run directory, or what the job store says.

    cancelled: whether the store says so; at once, and it may raise StoreError.
    """

    def __init__(self, rundir: RunDir, *, cancelled: Callable[[], bool]) -> None:
        self._file = rundir.cancel
        self._ask_store = cancelled
        self._next_look = 0.0
        self._cancelled = False

    def reason(self, running_s: float | None) -> StopReason | None:
        if not self._cancelled and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self._cancelled = self._file.exists() or self._is_cancelled()
        return StopReason(Outcome.CANCELLED, "The job was cancelled.") if self._cancelled else None

    def _is_cancelled(self) -> bool:
        try:
            return self._ask_store()
        except StoreError as error:
            log.warning("cannot see whether the job was cancelled: %s", error)
            return False


class DiskFull:
    """Hardly anything is left of the run directory's file system."""

    def __init__(self, rundir: RunDir) -> None:
        self._folder: Path = rundir.path
        self._next_look = 0.0

    def reason(self, running_s: float | None) -> StopReason | None:
        if time.monotonic() < self._next_look:
            return None
        self._next_look = time.monotonic() + _LOOK_SECONDS
        return self.look()

    def look(self) -> StopReason | None:
        """Look now."""
        try:
            free = shutil.disk_usage(self._folder).free
        except OSError as error:
            log.warning("cannot see how much space is left: %s", error)
            return None
        if free >= LOW_DISK_BYTES:
            return None
        return StopReason(
            Outcome.DISK_FULL,
            f"The disk ran full: the file system of {self._folder} has {free / 2**20:.1f} MiB left.",
        )
