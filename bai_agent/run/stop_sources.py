"""The sources of reasons to end a run, such as limits, signals and cancellation. Each is a `StopSource`."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from bai_agent.benchmark.state import read_started, running_seconds
from bai_agent.errors import StoreError
from bai_agent.files.user_rights import folder_owner, user_rights
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import RunDir
from bai_agent.job.schema.durations import format_duration
from bai_agent.runtime.clock import CLOCK, Clock
from bai_agent.runtime.open_file import OpenFile
from bai_agent.runtime.poller import Poller
from bai_agent.runtime.stop import StopReason, StopSource

if TYPE_CHECKING:
    from bai_agent.peers.elastic_monitor import ElasticMonitor
    from bai_agent.peers.node_monitor import NodeMonitor

log = logging.getLogger(__name__)

LOW_DISK_BYTES = 4 * 2**20
"""Smallest free space on the run directory's file system with which the run continues (bytes). The run's
result fits in this space."""

_LOOK_SECONDS = 1.0
"""Seconds between two checks of the cancel file, and between two checks of the free disk space."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 10.0
"""Bounds of the random pause between two requests to the job store (seconds). The pause is random, so that
the nodes of a job do not all send their requests at the same moment."""
FIRST_ANSWER_S = 3.0
"""Longest wait for the store's first answer to whether the job is cancelled (seconds). A reachable store
answers in a fraction of a second."""
_LEAVE_SECONDS = 15.0
"""Longest wait of a node whose machine will be terminated (seconds). The node waits for the decision that the
next generation runs without it."""


def stop_sources(
    job: Job,
    rundir: RunDir,
    *,
    signals: Signals,
    disk: DiskFull,
    cancelled: Callable[[], bool],
    spot: StopSource | None,
    peers: NodeMonitor | None = None,
    elastic: ElasticMonitor | None = None,
) -> list[StopSource]:
    """Return all sources of reasons to stop this run, in the order in which they are queried.

    cancelled: see `Cancel`. spot: source of EC2's spot notices; None outside EC2. peers: monitor of the other
    nodes, if the job has several nodes. elastic: the monitor of the other nodes again, if the job is elastic.
    """
    if spot is not None and elastic is not None:
        spot = LeavesByNotice(spot, elastic)
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
    """Return the number of bytes that this user can still write to the file system of `folder`. Raises
    OSError."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


class Signals:
    """Reports SIGTERM and SIGINT to this process as reasons to stop. SIGHUP of a closed terminal is
    ignored."""

    def __init__(self) -> None:
        self._received: signal.Signals | None = None

    def listen(self) -> None:
        """Install the signal handlers."""
        signal.signal(signal.SIGTERM, self._take)
        signal.signal(signal.SIGINT, self._take)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    @property
    def received(self) -> bool:
        """Whether this process received a signal to end, for example because the machine shuts down."""
        return self._received is not None

    def reason(self, running_s: float | None) -> StopReason | None:
        if self._received is None:
            return None
        if self._received is signal.SIGINT:
            return StopReason(Outcome.CANCELLED, "The job was cancelled from the keyboard.")
        return StopReason(Outcome.INTERRUPTED, f"The agent was told to stop ({self._received.name}).")

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._received = signal.Signals(number)


class LeavesByNotice:
    """A spot notice on a node of an elastic job. The node continues to run until the leader has decided on a
    generation without this node, or until a time limit."""

    def __init__(self, notice: StopSource, elastic: ElasticMonitor, *, clock: Clock = CLOCK) -> None:
        self._notice, self._elastic, self._clock = notice, elastic, clock
        if isinstance(notice, Poller):
            # Several machines often get notices at the same time. Each woken node checks at once, so that one
            # new generation replaces all of these nodes.
            elastic.when_woken = notice.look_now
        self._noticed: float | None = None

    def reason(self, running_s: float | None) -> StopReason | None:
        found = self._notice.reason(running_s)
        if found is None:
            return None
        now = self._clock.monotonic()
        if self._noticed is None:
            self._noticed = now
        left_s = _LEAVE_SECONDS if found.deadline is None else found.deadline - now
        self._elastic.leave(max(0.0, left_s))
        waits_s = min(_LEAVE_SECONDS, left_s / 4)
        if self._elastic.change() is None and now - self._noticed < waits_s:
            return None
        return found


class MaxRuntime:
    """Reports that the benchmark has run for longer than `limits.max_runtime`. A node that only serves
    another node ignores the limit, because the serving node started earlier and ends together with the other
    node."""

    def __init__(self, limits: Limits, *, peers: NodeMonitor | None = None) -> None:
        self._limit = limits.max_runtime
        self._peers = peers

    def reason(self, running_s: float | None) -> StopReason | None:
        limit = None if self._peers is not None and not self._peers.limits_runtime else self._limit
        if limit is None or running_s is None or running_s < limit.total_seconds():
            return None
        return StopReason(
            Outcome.MAX_RUNTIME,
            f"The benchmark ran longer than limits.max_runtime ({format_duration(limit)}) and was ended.",
        )


def no_output_reason(limit: timedelta) -> StopReason:
    """Return the reason to stop a benchmark that has printed and emitted nothing for the time `limit`."""
    return StopReason(
        Outcome.NO_OUTPUT,
        f"The benchmark printed and emitted nothing for limits.no_output ({format_duration(limit)}) and was ended.",
    )


class NoOutput:
    """Reports that the benchmark has printed and emitted nothing on all nodes of the job for
    `limits.no_output`."""

    def __init__(
        self, limits: Limits, rundir: RunDir, *, peers: NodeMonitor | None = None, clock: Clock = CLOCK
    ) -> None:
        self._limit = limits.no_output
        self._rundir = rundir
        self._peers = peers
        self._clock = clock
        self._outputs = (OpenFile(rundir.kept_output), OpenFile(rundir.emit))
        self._processes = _ProcessLogs(rundir.processes, clock=clock)
        self._seen = (0, 0)
        self._last_output = clock.monotonic()

    def begin_generation(self, rundir: RunDir) -> None:
        self._rundir = rundir
        self._seen = (0, 0)
        self._last_output = self._clock.monotonic()

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
        return no_output_reason(limit)

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
            # A restarted agent did not see when the last output came, so the file's modification time is
            # used.
            age = max(0.0, self._clock.time() - self._set_forward() - seen[1] / 1e9) if first else 0.0
            self._last_output = self._clock.monotonic() - min(age, self._generation_seconds(running_s))
        return self._clock.monotonic() - self._last_output

    def _generation_seconds(self, running_s: float) -> float:
        """Return how long this generation has run (seconds). The silence of a benchmark is measured only from
        the start of its generation."""
        return running_seconds(read_started(self._rundir)) if self._rundir.generation else running_s

    def _set_forward(self) -> float:
        """Return by how many seconds the time of day was set forward while the benchmark ran."""
        started = read_started(self._rundir)
        running_s = running_seconds(started)
        if started is None or not running_s:
            return 0.0
        return max(0.0, self._clock.time() - started.time / 1000 - running_s)


class _ProcessLogs:
    """The logs of the benchmark's single processes. Incomplete lines, and lines that mpirun passes to another
    node, are only in these logs and not in the benchmark's log."""

    def __init__(self, folder: Path, *, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._next_look = 0.0
        self._found = (0, 0)

    def look(self) -> tuple[int, int]:
        """Return the total size of the logs and the time of their last change (ns). Both numbers are 0 if
        there are no logs."""
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
    """Reports a request to cancel the job, which is a file in the run directory or an object in the job
    store.

    cancelled: function that returns, without waiting, whether a cancel request is known to be in the store.
    The function can raise StoreError.
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
            log.warning("cannot check whether the job was cancelled: %s", error)
            return False


class CancelLook(Poller):
    """Checks a remote job store for a cancel request. The checks run on a separate thread, because one
    request can hang for a minute."""

    def __init__(
        self,
        record: JobRecord,
        *,
        shortest_s: float = SHORTEST_PAUSE_S,
        longest_s: float = LONGEST_PAUSE_S,
        first_answer_s: float = FIRST_ANSWER_S,
    ) -> None:
        import random  # a run without a store in a bucket does not need it

        super().__init__(
            self._ask,
            name="cancel",
            pause_s=lambda: random.uniform(shortest_s, longest_s),  # noqa: S311
            failure="cannot check whether the job was cancelled",
        )
        self._record = record
        self._first_answer_s = first_answer_s
        self._looked, self._seen = threading.Event(), threading.Event()

    def cancelled(self) -> bool:
        """Return the store's last answer. The first call of this method waits for an answer, for at most
        `first_answer_s` seconds. Later calls do not wait.

        If the first call did not wait, a job that was cancelled before its machine was ready would still
        start, and a short benchmark would succeed.
        """
        if not self._looked.wait(self._first_answer_s):
            self._looked.set()
        return self._seen.is_set()

    def _ask(self) -> bool:
        try:
            if self._record.cancelled():
                self._seen.set()
        finally:
            self._looked.set()
        return self._seen.is_set()


class DiskFull:
    """Ends the run if less than `LOW_DISK_BYTES` is left on the run directory's file system.

    free_bytes: function that returns the free space, like this module's function `free_bytes`.
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
        try:
            free = self._free_bytes(self._folder)
        except OSError as error:
            log.warning("cannot check how much space is left: %s", error)
            return None
        if free >= LOW_DISK_BYTES:
            return None
        return StopReason(
            Outcome.DISK_FULL,
            f"The disk ran full: the file system of {self._folder} has {free / 2**20:.1f} MiB left.",
        )
