"""The shim's event loop: the benchmark's processes, the FIFO that `emit()` writes to, and signals to the shim."""

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
"""Sizes to try, in this order (bytes). The first size needs CAP_SYS_RESOURCE. The second is the default of
/proc/sys/fs/pipe-max-size, which every user may have.
"""


class Fifo:
    """The FIFO that `emit()` writes to, copied into a file.

    The FIFO is open for reading *and* writing, so that no writer ever waits for a reader or gets EPIPE. The
    FIFO is as large as the kernel allows, so that lines of several writers do not mix. POSIX guarantees this
    only up to PIPE_BUF (4096) bytes, but the kernel keeps the pipe locked for a longer line while the pipe
    has room for it.
    """

    def __init__(self, path: str, copy: str, *, owner: tuple[int, int] | None) -> None:
        """Make the FIFO `path`, to which `owner` (uid, gid) can write. Raises OSError.

        copy: file to which the content of the FIFO is appended.
        """
        try:
            os.mkfifo(path, 0o600)
        except FileExistsError:
            if not stat.S_ISFIFO(os.lstat(path).st_mode):
                raise FileExistsError(
                    errno.EEXIST, "something that is not a FIFO is in the way", path
                ) from None
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
        """Number of bytes that were read, but cannot be written because the disk is full.

        Later bytes stay in the FIFO.
        """
        return len(self._pending)

    @property
    def emitted(self) -> int:
        """Size (bytes) that the copy will have when it contains all bytes emitted so far."""
        return os.fstat(self._copy).st_size + len(self._pending) + self._waiting()

    def copy(self) -> bool:
        """Copy the content of the FIFO once; return False if it was empty or the disk is full.

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
                # The file system may be full or read-only, or a quota is used up. The benchmark continues
                # anyway.
                return False
            self._pending = self._pending[written:]
        return True

    def close(self) -> int:
        """Remove the FIFO, because a later writer would wait for ever; return the number of lost bytes."""
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
    """The state of the benchmark's processes, updated by `pump`."""

    def __init__(self, fifo: Fifo, *, output: int) -> None:
        self._fifo = fifo
        self._output = output
        self._forget()
        self.helper = 0
        """Process id of a child that does not belong to the benchmark, such as py-spy. 0 if there is none."""
        self.signal: int | None = None
        """First signal that asked the shim to end."""
        self.signalled = 0.0
        self._take_signals()

    def _forget(self) -> None:
        self._benchmark: Spawned | None = None
        self.status: int | None = None
        """Wait status of the benchmark. None until it has ended."""
        self.usage: Any = None
        self.ended = 0.0
        self._child_ended = 0.0
        """Time of the last SIGCHLD (monotonic clock)."""
        self.output_bytes: int | None = None
        """Size of the output (bytes) when the benchmark ended. Later output is from processes left behind."""
        self.emit_bytes: int | None = None
        """Size of the emitted bytes when the benchmark ended."""
        self.exec_error: dict[str, Any] | None = None
        self.before: tuple[float, ...] | None = None
        """Resource usage before the command's first instruction, as `spawn.USAGE`. None if the command was not reached."""
        self.childless = False
        """Whether all of the benchmark's processes have ended."""

    def watch(self, benchmark: Spawned) -> None:
        """Watch this benchmark instead of the previous one."""
        self._forget()
        self._benchmark = benchmark

    def pump(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds for an event; then copy emitted bytes and reap ended processes."""
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
        """Wait until `done()` or until the monotonic clock reaches `limit()`; check every `tick` seconds."""
        while not done() and (left := limit() - time.monotonic()) > 0:
            self.pump(min(tick, left))

    def reap(self) -> None:
        """Reap all processes that have ended: the benchmark and its orphans, whose subreaper the shim is."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                # This is exact: every descendant is our child, or has a living ancestor among our children.
                self.childless = True
                return
            if ended is None:
                return
            if self._benchmark is not None and ended.si_pid == self._benchmark.pid:
                # SIGCHLD arrived before this call, so its time is closer to the end.
                self.ended = self._child_ended or time.monotonic()
                # This must precede wait4: another process may print as soon as this one has left /proc.
                self.note_sizes()
                _, self.status, self.usage = os.wait4(ended.si_pid, 0)
                self.before, self.exec_error = _read_report(self._benchmark.errors)
                continue
            os.wait4(ended.si_pid, 0)
            if ended.si_pid == self.helper:
                self.helper = 0

    def note_sizes(self) -> None:
        """Count the bytes printed and emitted by now as the benchmark's."""
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
    """Return the usage that the process reported before its exec, and the error if the exec failed."""
    content = b""
    while part := os.read(descriptor, 65536):
        content += part
    os.close(descriptor)
    # JSON never begins with a zero byte.
    before = USAGE.unpack_from(content)[1:] if content.startswith(b"\0") else None
    text = content[USAGE.size :] if before is not None else content
    return before, json.loads(text) if text else None
