"""The shim's waiting: for the benchmark's processes, for what they emit, and for signals to the shim itself."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable

from bai_agent.benchmark.fifo import Fifo
from bai_agent.benchmark.spawn import USAGE, Spawned

TYPE_CHECKING = False  # typing's own would bring typing, a tenth of the shim's memory
if TYPE_CHECKING:
    from typing import Any


class Loop:
    """What has happened so far, brought up to date by `pump`."""

    def __init__(self, fifo: Fifo, *, output: int) -> None:
        self._fifo = fifo
        self._output = output
        self._forget()
        self.helper = 0
        """A child of ours that is not the benchmark's; 0 when it has ended."""
        self.signal: int | None = None
        """The first signal that asked us to end."""
        self.signalled = 0.0
        self._take_signals()

    def _forget(self) -> None:
        self._benchmark: Spawned | None = None
        self.status: int | None = None
        """The benchmark's wait status, once it has ended."""
        self.usage: Any = None
        self.ended = 0.0
        self._child_ended = 0.0
        """When the kernel last told us that a child has ended."""
        self.output_bytes: int | None = None
        """How long the output was when the benchmark ended; what follows is of processes that it left behind."""
        self.emit_bytes: int | None = None
        """The same of what was emitted."""
        self.exec_error: dict[str, Any] | None = None
        self.before: tuple[float, ...] | None = None
        """What its process had used before its command's own first instruction, as `spawn.USAGE`. None if that was not reached."""
        self.childless = False
        """Whether nothing is left of the benchmark."""

    def watch(self, benchmark: Spawned) -> None:
        """Watch this one from now on; what is known of another one is forgotten."""
        self._forget()
        self._benchmark = benchmark

    def pump(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds for something to happen; copy what was emitted and reap who has ended."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if not self._fifo.stuck:
            poll.register(self._fifo.descriptor, select.POLLIN)
        poll.poll(max(0.0, timeout_s) * 1000)
        try:
            os.read(self._wake, 4096)
        except BlockingIOError:
            pass
        self._fifo.copy()
        self.reap()

    def pump_until(self, done: Callable[[], bool], limit: Callable[[], float], *, tick: float) -> None:
        """Wait until `done()`, at the latest until the monotonic clock shows `limit()`, looking each `tick` seconds."""
        while not done() and (left := limit() - time.monotonic()) > 0:
            self.pump(min(tick, left))

    def reap(self) -> None:
        """Take in all that have ended: the benchmark, and, as we are their subreaper, its orphans."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                # Exact: every descendant has a living ancestor among our children, or is one of them itself.
                self.childless = True
                return
            if ended is None:
                return
            if self._benchmark is not None and ended.si_pid == self._benchmark.pid:
                # What was done since the kernel told us of it is not the benchmark's.
                self.ended = self._child_ended or time.monotonic()
                # Before it leaves /proc: who waits for that prints after the end.
                self.note_sizes()
                _, self.status, self.usage = os.wait4(ended.si_pid, 0)
                self.before, self.exec_error = _read_report(self._benchmark.errors)
                continue
            os.wait4(ended.si_pid, 0)
            if ended.si_pid == self.helper:
                self.helper = 0

    def note_sizes(self) -> None:
        """Take what was printed and emitted by now as the benchmark's."""
        self.output_bytes = os.fstat(self._output).st_size
        self.emit_bytes = self._fifo.emitted

    def _take_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, self._note_end)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember_signal)

    def _note_end(self, number: int, frame: object) -> None:
        self._child_ended = time.monotonic()

    def _remember_signal(self, number: int, frame: object) -> None:
        if self.signal is None:
            self.signal, self.signalled = number, time.monotonic()


def _read_report(descriptor: int) -> tuple[tuple[float, ...] | None, dict[str, Any] | None]:
    """Return what the benchmark's process said before it became the benchmark, and why it could not become it."""
    content = b""
    while part := os.read(descriptor, 65536):
        content += part
    os.close(descriptor)
    # No JSON begins with a zero.
    before = USAGE.unpack_from(content)[1:] if content.startswith(b"\0") else None
    text = content[USAGE.size :] if before is not None else content
    return before, json.loads(text) if text else None
