"""The FIFO that `emit()` of the benchmark writes to, and the copying of it into a file."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
import termios

_F_SETPIPE_SZ = 1031  # fcntl.F_SETPIPE_SZ, from Python 3.10 on only where it was built with it
_READ_SIZE = 256 * 1024
_PIPE_SIZES = (16 * 1024 * 1024, 1024 * 1024, 256 * 1024)
"""The first takes CAP_SYS_RESOURCE, the second is what /proc/sys/fs/pipe-max-size allows everybody by default."""


class Fifo:
    """Holds the FIFO open for reading *and* writing, so that no writer ever waits for a reader or meets EPIPE.

    It is as large as the kernel allows. Lines of several writers do not get mixed: one of up to PIPE_BUF (4096) bytes
    never (POSIX, write), a longer one as long as there is room for it in the pipe (the kernel keeps the pipe locked
    meanwhile), so not before many megabytes a second of such lines are emitted.
    """

    def __init__(self, path: str, copy: str, *, owner: tuple[int, int] | None) -> None:
        """Make the FIFO `path`, writable by `owner` (uid, gid), whose content goes to the file `copy`. Raises OSError."""
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
        """How many bytes were read and cannot be written: the disk is full. The rest waits in the FIFO."""
        return len(self._pending)

    @property
    def emitted(self) -> int:
        """How long the copy will be when all has been copied that was written so far."""
        return os.fstat(self._copy).st_size + len(self._pending) + self._waiting()

    def copy(self) -> bool:
        """Copy what is there, once. Return whether there was anything; what the disk does not take is kept."""
        if not self._pending:
            try:
                self._pending = memoryview(os.read(self.descriptor, _READ_SIZE))
            except BlockingIOError:
                return False
        while self._pending:
            try:
                written = os.write(self._copy, self._pending)
            except (
                OSError
            ):  # no space, a quota, a file system gone read-only: none is a reason to leave the benchmark
                return False
            self._pending = self._pending[written:]
        return True

    def close(self) -> int:
        """Take the FIFO away (who opened it for writing from now on would wait for ever); return the bytes that are lost."""
        waiting = self._waiting()
        try:
            os.unlink(self._path)
        except OSError:  # the benchmark did
            pass
        return len(self._pending) + waiting

    def _waiting(self) -> int:
        return int.from_bytes(fcntl.ioctl(self.descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
