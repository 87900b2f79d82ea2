"""The one place that watches for reasons to end a run early."""

from __future__ import annotations

import logging
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from bai_agent.job.descriptor import Limits
from bai_agent.job.durations import format_duration
from bai_agent.job.errors import StoreError
from bai_agent.job.outcome import Outcome
from bai_agent.job.run_directory import RunDir
from bai_agent.run.open_file import OpenFile

log = logging.getLogger(__name__)

LOW_DISK_BYTES = 4 * 2**20
"""Less than this free on the run directory's file system ends the run while there is room for its result."""

_SLOW_LOOKS = 1.0
"""Seconds between looks at the store and the disk."""


@dataclass(frozen=True)
class StopReason:
    """Why a run is ended early, and a sentence about it."""

    outcome: Outcome
    message: str


class RunEndedError(Exception):
    """The run is over before its last phase."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason.message)
        self.reason = reason


class StopWatch:
    """Knows whether the run shall end. Once a reason is found, it stays that reason.

    cancelled: whether the job store says that the job was cancelled; at once, and it may raise StoreError.
    """

    def __init__(self, rundir: RunDir, limits: Limits, *, cancelled: Callable[[], bool]) -> None:
        self._rundir = rundir
        self._limits = limits
        self._ask_cancelled = cancelled
        self._signal: signal.Signals | None = None
        self._reason: StopReason | None = None
        self._next_slow_look = 0.0
        self._unwanted = False
        self._next_unwanted_look = 0.0
        self._outputs = (OpenFile(rundir.kept_output), OpenFile(rundir.emit))
        self._output = (0, 0)
        self._last_output = time.monotonic()

    def listen(self) -> None:
        """Take SIGTERM and SIGINT as the wish to end; a closed terminal is none."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    @property
    def hurried(self) -> bool:
        """Whether somebody wants this process to be gone soon, such as a machine that shuts down."""
        return self._signal is not None

    def unwanted(self) -> bool:
        """Return whether nobody waits any more for what this run still does: it was cancelled, or is told to stop.

        Also where another reason was found before.
        """
        if not self._unwanted and self._signal is None and time.monotonic() >= self._next_unwanted_look:
            self._next_unwanted_look = time.monotonic() + _SLOW_LOOKS
            self._unwanted = self._cancelled() is not None
        return self._unwanted or self._signal is not None

    def stopping(self) -> bool:
        """Return whether there is a reason, apart from the benchmark's own limits, to end the run."""
        return self.reason() is not None

    def reason(self, *, running_seconds: float | None = None) -> StopReason | None:
        """Return the reason to end the run, if there is one. `running_seconds`: since the benchmark's start."""
        if self._reason is None:
            self._reason = self._look(running_seconds)
        return self._reason

    def disk_full(self) -> StopReason | None:
        """Return a reason where hardly anything is left of the run directory's file system."""
        try:
            free = shutil.disk_usage(self._rundir.path).free
        except OSError as error:
            log.warning("cannot see how much space is left: %s", error)
            return None
        if free >= LOW_DISK_BYTES:
            return None
        return StopReason(
            Outcome.DISK_FULL,
            f"The disk ran full: the file system of {self._rundir.path} has {free / 2**20:.1f} MiB left.",
        )

    def _look(self, running_seconds: float | None) -> StopReason | None:
        if self._signal is not None:
            if self._signal is signal.SIGINT:
                return StopReason(Outcome.CANCELLED, "The job was cancelled from the keyboard.")
            return StopReason(Outcome.INTERRUPTED, f"The agent was told to stop ({self._signal.name}).")
        if running_seconds is not None and (over := self._out_of_time(running_seconds)):
            return over
        if time.monotonic() >= self._next_slow_look:
            self._next_slow_look = time.monotonic() + _SLOW_LOOKS
            return self._cancelled() or self.disk_full()
        return None

    def _out_of_time(self, running_seconds: float) -> StopReason | None:
        limit = self._limits.max_runtime
        if limit is not None and running_seconds >= limit.total_seconds():
            return StopReason(
                Outcome.MAX_RUNTIME,
                f"The benchmark ran longer than limits.max_runtime ({format_duration(limit)}) and was ended.",
            )
        limit = self._limits.no_output
        if limit is not None and self._silent_seconds(running_seconds) >= limit.total_seconds():
            return StopReason(
                Outcome.NO_OUTPUT,
                f"The benchmark printed and emitted nothing for limits.no_output ({format_duration(limit)}) "
                "and was ended.",
            )
        return None

    def _silent_seconds(self, running_seconds: float) -> float:
        first = self._output == (0, 0)
        stats = [each for each in (file.stat() for file in self._outputs) if each is not None]
        output = (sum(each.st_size for each in stats), max((each.st_mtime_ns for each in stats), default=0))
        if output != self._output:
            self._output = output
            # An agent that has just come back did not see the last output: the file's time tells.
            age = max(0.0, time.time() - output[1] / 1e9) if first else 0.0
            self._last_output = time.monotonic() - min(age, running_seconds)
        return time.monotonic() - self._last_output

    def _cancelled(self) -> StopReason | None:
        asked = self._rundir.cancel.exists()
        if not asked:
            try:
                asked = self._ask_cancelled()
            except StoreError as error:
                log.warning("cannot see whether the job was cancelled: %s", error)
        return StopReason(Outcome.CANCELLED, "The job was cancelled.") if asked else None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = signal.Signals(number)
