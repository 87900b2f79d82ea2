"""The shim's event loop. The loop waits for ends of the benchmark's processes, content of the FIFO that
`emit()` writes to, and signals to the shim."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import stat
import sys
import termios
import time
from collections.abc import Callable

from bai_agent.shim.spawn import USAGE, Spawned

_F_SETPIPE_SZ = 1031  # fcntl.F_SETPIPE_SZ, from Python 3.10 on only where it was built with it
_READ_SIZE = 256 * 1024
_PIPE_SIZES = (16 * 1024 * 1024, 1024 * 1024, 256 * 1024)
"""Sizes to try for the FIFO, in this order (bytes). 16 MiB needs CAP_SYS_RESOURCE. 1 MiB is the default of
/proc/sys/fs/pipe-max-size, which is allowed for every user.
"""


class Fifo:
    """The FIFO that `emit()` writes to. The FIFO's content is copied into a file.

    The FIFO is open for reading *and* writing, so that no writer ever waits for a reader or gets EPIPE. The
    FIFO is as large as the kernel allows, so that lines of several writers do not mix. POSIX guarantees
    unmixed lines only up to PIPE_BUF (4096) bytes. On Linux, longer lines are not mixed either if the pipe
    has enough space, because Linux locks the pipe during each write.
    """

    def __init__(self, path: str, copy: str, *, owner: tuple[int, int] | None) -> None:
        """Create the FIFO `path`, to which the user `owner` (uid, gid) can write. Raises OSError.

        copy: file to which the content of the FIFO is appended.
        """
        try:
            os.mkfifo(path, 0o600)
        except FileExistsError:
            if not stat.S_ISFIFO(os.lstat(path).st_mode):
                raise FileExistsError(errno.EEXIST, "the path exists and is not a FIFO", path) from None
        self._path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        if owner is not None:
            os.fchown(self.descriptor, *owner)
        for size in _PIPE_SIZES:
            try:
                fcntl.fcntl(self.descriptor, _F_SETPIPE_SZ, size)
            except OSError:  # beyond /proc/sys/fs/pipe-max-size or this user's share; any size will do
                continue
            break
        self._copy = os.open(copy, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._pending = memoryview(b"")

    @property
    def stuck(self) -> int:
        """Number of bytes that were read from the FIFO but could not be written to the file, because the disk
        is full.

        Bytes that are emitted later stay in the FIFO.
        """
        return len(self._pending)

    @property
    def emitted(self) -> int:
        """Size that the file will have after all bytes emitted so far are copied (bytes)."""
        return os.fstat(self._copy).st_size + len(self._pending) + self._waiting()

    def copy(self) -> bool:
        """Copy the current content of the FIFO to the file. Return False if the FIFO was empty or the disk is
        full.

        Bytes that do not fit on the disk are kept for the next call.
        """
        if not self._pending:
            try:
                self._pending = memoryview(os.read(self.descriptor, _READ_SIZE))
            except BlockingIOError:
                return False
        while self._pending:
            try:
                written = os.write(self._copy, self._pending)
            except OSError:
                # The file system is full or read-only, or a quota is used up. The benchmark continues anyway.
                return False
            self._pending = self._pending[written:]
        return True

    def close(self) -> int:
        """Remove the FIFO, because processes that write to the FIFO later would wait forever. Return the
        number of bytes that were not copied."""
        waiting = self._waiting()
        try:
            os.unlink(self._path)
        except OSError:  # the benchmark has removed it
            pass
        return len(self._pending) + waiting

    def _waiting(self) -> int:
        return int.from_bytes(fcntl.ioctl(self.descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


TYPE_CHECKING = False  # importing typing would be a tenth of the shim's memory
if TYPE_CHECKING:
    from typing import Any


class Loop:
    """The state of the benchmark's processes, which `pump` updates."""

    def __init__(self, fifo: Fifo, *, output: int) -> None:
        self._fifo = fifo
        self._output = output
        self._forget()
        self.helper = 0
        """Pid of a child that does not belong to the benchmark, such as py-spy. 0 if there is no such
        child."""
        self.signal: int | None = None
        """The first signal that told the shim to end; None if there was none."""
        self.signalled = 0.0
        self._take_signals()

    def _forget(self) -> None:
        self._benchmark: Spawned | None = None
        self.status: int | None = None
        """Wait status of the benchmark. None until the benchmark has ended."""
        self.usage: Any = None
        self.ended = 0.0
        self._child_ended = 0.0
        """Time of the last SIGCHLD (monotonic clock)."""
        self.output_bytes: int | None = None
        """Size of the output file when the benchmark ended (bytes). Output after this size comes from
        processes that the benchmark left running."""
        self.emit_bytes: int | None = None
        """Number of bytes that had been emitted when the benchmark ended."""
        self.exec_error: dict[str, Any] | None = None
        self.before: tuple[float, ...] | None = None
        """Resources that the benchmark's process had used before the command began, as in `spawn.USAGE`. None
        if the command did not begin."""
        self.childless = False
        """Whether all of the benchmark's processes have ended."""

    def watch(self, benchmark: Spawned) -> None:
        """Watch the process `benchmark` instead of the previous benchmark process."""
        self._forget()
        self._benchmark = benchmark

    def pump(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds for an event. After the wait, copy emitted bytes, and reap processes
        that have ended."""
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
        """Call `pump` at least every `tick` seconds, until `done()` is true or the monotonic clock reaches
        `limit()`."""
        while not done() and (left := limit() - time.monotonic()) > 0:
            self.pump(min(tick, left))

    def reap(self) -> None:
        """Reap all processes that have ended: the benchmark's process, and orphaned processes of the
        benchmark, which become children of the shim."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                # Without children, no descendant is left: each descendant is a child of the shim, or has a
                # living ancestor among the shim's children.
                self.childless = True
                return
            if ended is None:
                return
            if self._benchmark is not None and ended.si_pid == self._benchmark.pid:
                # The time of SIGCHLD is closer to the process's end than the current time.
                self.ended = self._child_ended or time.monotonic()
                # The sizes are read before wait4, because another process can print as soon as this process
                # has left /proc.
                self.note_sizes()
                _, self.status, self.usage = os.wait4(ended.si_pid, 0)
                self.before, self.exec_error = _read_report(self._benchmark.errors)
                continue
            os.wait4(ended.si_pid, 0)
            if ended.si_pid == self.helper:
                self.helper = 0

    def note_sizes(self) -> None:
        """Record the current sizes of the benchmark's output: all bytes printed and emitted until now."""
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
    """Return the resources that the process had used before its exec, or None if the process did not report
    them. Also return the exec's error, or None if there was no error."""
    content = b""
    while part := os.read(descriptor, 65536):
        content += part
    os.close(descriptor)
    # JSON never begins with a zero byte.
    before = USAGE.unpack_from(content)[1:] if content.startswith(b"\0") else None
    text = content[USAGE.size :] if before is not None else content
    return before, json.loads(text) if text else None
