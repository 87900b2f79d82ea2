"""What may ask a run to end: each a `StopSource`."""

from __future__ import annotations

import logging
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from bai_agent.errors import StoreError
from bai_agent.job.descriptor import Job, Limits
from bai_agent.job.durations import format_duration
from bai_agent.job.outcome import Outcome
from bai_agent.job.run_directory import RunDir
from bai_agent.job.user_rights import folder_owner, user_rights
from bai_agent.run.clock import CLOCK, Clock
from bai_agent.run.open_file import OpenFile
from bai_agent.run.peer_monitor import PeerMonitor
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
    peers: PeerMonitor | None = None,
) -> list[StopSource]:
    """Return all that may ask this run to end, in the order in which they are asked.

    cancelled: see `Cancel`. spot: EC2's notices about this instance, where it is one. peers: what
    became of the other nodes, where there are any.
    """
    sources: list[StopSource] = [signals]
    sources += [each for each in (spot, peers) if each is not None]
    return [
        *sources,
        MaxRuntime(job.limits, peers=peers),
        NoOutput(job.limits, rundir, peers=peers),
        Cancel(rundir, cancelled=cancelled),
        disk,
    ]


def free_bytes(folder: Path) -> int:
    """Return how much this user may still write to the file system of `folder`. Raises OSError."""
    return shutil.disk_usage(folder).free


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
    """`limits.max_runtime`. A node that only serves another one begins before the benchmark, which that one ends in time."""

    def __init__(self, limits: Limits, *, peers: PeerMonitor | None = None) -> None:
        self._limit = limits.max_runtime
        self._peers = peers

    def reason(self, running_s: float | None) -> StopReason | None:
        limit = None if self._peers is not None and self._peers.serves else self._limit
        if limit is None or running_s is None or running_s < limit.total_seconds():
            return None
        return StopReason(
            Outcome.MAX_RUNTIME,
            f"The benchmark ran longer than limits.max_runtime ({format_duration(limit)}) and was ended.",
        )


class NoOutput:
    """`limits.no_output`: how long nothing was printed or emitted; by any node, where there are several."""

    def __init__(
        self, limits: Limits, rundir: RunDir, *, peers: PeerMonitor | None = None, clock: Clock = CLOCK
    ) -> None:
        self._limit = limits.no_output
        self._peers = peers
        self._clock = clock
        self._outputs = (OpenFile(rundir.kept_output), OpenFile(rundir.emit))
        self._processes = _ProcessLogs(rundir.processes, clock=clock)
        self._seen = (0, 0)
        self._last_output = clock.monotonic()

    def reason(self, running_s: float | None) -> StopReason | None:
        limit = self._limit
        if limit is None or running_s is None:
            return None
        silent_s = self._silent_seconds(running_s)
        if self._peers is not None:
            self._peers.silent_s = silent_s
        if silent_s < limit.total_seconds():
            return None
        if self._peers is not None and not self._peers.all_silent(limit.total_seconds()):
            return None
        return StopReason(
            Outcome.NO_OUTPUT,
            f"The benchmark printed and emitted nothing for limits.no_output ({format_duration(limit)}) "
            "and was ended.",
        )

    def _silent_seconds(self, running_s: float) -> float:
        first = self._seen == (0, 0)
        stats = [each for each in (file.stat() for file in self._outputs) if each is not None]
        size, changed = self._processes.look()
        seen = (
            size + sum(each.st_size for each in stats),
            max(changed, *(each.st_mtime_ns for each in stats), 0),
        )
        if seen != self._seen:
            self._seen = seen
            # A restarted agent did not see the last output: the file's time tells.
            age = max(0.0, self._clock.time() - seen[1] / 1e9) if first else 0.0
            self._last_output = self._clock.monotonic() - min(age, running_s)
        return self._clock.monotonic() - self._last_output


class _ProcessLogs:
    """What processes of the benchmark keep of their output: a line that is not whole yet is nowhere else, nor is another node's."""

    def __init__(self, folder: Path, *, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._next_look = 0.0
        self._found = (0, 0)

    def look(self) -> tuple[int, int]:
        """Return the logs' bytes, and when the last one changed (ns); both 0 where there are none."""
        if self._clock.monotonic() >= self._next_look:
            self._next_look = self._clock.monotonic() + _LOOK_SECONDS
            with suppress(FileNotFoundError, NotADirectoryError), user_rights(folder_owner(self._folder)):
                stats = [each.lstat() for each in self._folder.glob("*.log")]
                self._found = (
                    sum(each.st_size for each in stats),
                    max((each.st_mtime_ns for each in stats), default=0),
                )
        return self._found


class Cancel:
    """A cancel of the job: a file in the run directory, or what the job store says.

    cancelled: returns at once whether the store says so; may raise StoreError.
    """

    def __init__(self, rundir: RunDir, *, cancelled: Callable[[], bool], clock: Clock = CLOCK) -> None:
        self._file = rundir.cancel
        self._ask_store = cancelled
        self._clock = clock
        self._next_look = 0.0
        self._found: StopReason | None = None

    def reason(self, running_s: float | None) -> StopReason | None:
        if self._found is None and self._clock.monotonic() >= self._next_look:
            self._next_look = self._clock.monotonic() + _LOOK_SECONDS
            here = self._file.exists()
            if here or self._is_cancelled():
                self._found = StopReason(Outcome.CANCELLED, "The job was cancelled.", by_store=not here)
        return self._found

    def _is_cancelled(self) -> bool:
        try:
            return self._ask_store()
        except StoreError as error:
            log.warning("cannot see whether the job was cancelled: %s", error)
            return False


class DiskFull:
    """Less than `LOW_DISK_BYTES` are left of the run directory's file system.

    free_bytes: how much is left for this user of the file system that holds a folder; may raise OSError.
    """

    def __init__(
        self, rundir: RunDir, *, clock: Clock = CLOCK, free_bytes: Callable[[Path], int] = free_bytes
    ) -> None:
        self._folder: Path = rundir.path
        self._clock = clock
        self._free_bytes = free_bytes
        self._next_look = 0.0

    def reason(self, running_s: float | None) -> StopReason | None:
        if self._clock.monotonic() < self._next_look:
            return None
        self._next_look = self._clock.monotonic() + _LOOK_SECONDS
        return self.look()

    def look(self) -> StopReason | None:
        """Look now."""
        try:
            free = self._free_bytes(self._folder)
        except OSError as error:
            log.warning("cannot see how much space is left: %s", error)
            return None
        if free >= LOW_DISK_BYTES:
            return None
        return StopReason(
            Outcome.DISK_FULL,
            f"The disk ran full: the file system of {self._folder} has {free / 2**20:.1f} MiB left.",
        )
