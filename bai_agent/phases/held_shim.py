"""A handle through which an agent can send a signal to the benchmark's shim even if the agent has no free
file descriptor."""

from __future__ import annotations

import logging
import os
import signal

from bai_agent.benchmark.state import Started, find_shim, running_seconds
from bai_agent.files.new_files import NO_DESCRIPTOR
from bai_agent.job.record_types import StopEvent
from bai_agent.run.run_context import RunContext

log = logging.getLogger(__name__)


class HeldShim:
    """A pidfd of the shim, which is opened while descriptors are free. Unlike a pid, a pidfd never refers to
    another process."""

    def __init__(self) -> None:
        self._pidfd: int | None = None
        self._begun = 0.0
        self._is_starved = False
        self._is_told = False

    @property
    def is_held(self) -> bool:
        """Whether a handle to a shim is open."""
        return self._pidfd is not None

    def hold(self, ctx: RunContext, started: Started | None, *, earlier_s: float) -> None:
        """Open a handle to the running shim. earlier_s: duration of earlier generations (seconds). Raises
        OSError if no file descriptor is free."""
        self._is_starved = False
        shim = find_shim(ctx.rundir, started)
        if self._pidfd is not None or shim is None or started is None:
            return
        self._begun = ctx.clock.monotonic() - running_seconds(started) - earlier_s
        try:
            self._pidfd = os.pidfd_open(shim.pid)
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                raise
            return  # it has ended, or a kernel or a sandbox has no pidfd_open
        if find_shim(ctx.rundir, started) is None:  # the pid may be another process's by now
            self.close()

    def watch_starved(self, ctx: RunContext, error: OSError) -> None:
        """Check only `limits.max_runtime` and the signals that this agent received, because no file
        descriptor is free. If the run must end, send SIGTERM to the shim, which then stops the benchmark."""
        if not self._is_starved:
            self._is_starved = True
            log.error("no file descriptor is free (%s): the agent retries until one is free", error)
        if self._pidfd is None or self._is_told:
            return
        try:
            reason = ctx.watch.reason(running_s=ctx.clock.monotonic() - self._begun)
        except OSError:
            return  # the sources after these two would read files
        if reason is None:
            return
        self._is_told = True
        ctx.reason = reason
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
        except ProcessLookupError:
            return
        ctx.events.add(StopEvent(reason=reason.outcome.value, message=reason.message))

    def close(self) -> None:
        """Close the handle of the shim."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
