"""The shim's lock and the files that it writes. Whenever the shim is killed, each file is either complete or
absent."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time

TYPE_CHECKING = False  # importing typing would be a tenth of the shim's memory
if TYPE_CHECKING:
    from typing import Any

_LOCK_WAIT_S = 2.0
"""Longest wait for the shim's lock (seconds). The wait is needed because a process that only checks whether
the lock is held takes the lock for a moment."""
_RESERVED = 8192
_FULL_WAIT_S = 5.0
"""Longest wait for space on a full disk, while the agent frees the reserved space (seconds)."""


def take_lock(path: str) -> int | None:
    """Hold the lock file as long as this process lives; return None if another process holds the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    given_up = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= given_up:
                return None
            time.sleep(0.01)
        else:
            return descriptor


def now_ms() -> int:
    """Return milliseconds since the epoch, UTC."""
    return time.time_ns() // 1_000_000


def write_durably(path: str, value: dict[str, Any]) -> None:
    """Write a new file. After this function returns, the file survives even a crash of the machine. Raises
    OSError."""
    temporary = f"{path}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    _finish(descriptor, value, temporary, path)


class LineFile:
    """A new file of JSON lines. After `append` returns, its line survives even a crash of the machine."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        self._size = 0

    def append(self, value: dict[str, Any]) -> None:
        """Append a line completely or not at all. Raises OSError if the disk is still full after some
        seconds."""
        line = json.dumps(value).encode() + b"\n"
        given_up = time.monotonic() + _FULL_WAIT_S
        while True:
            try:
                written = os.write(self._descriptor, line)
                if written < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(self._descriptor)
            except OSError:
                os.ftruncate(self._descriptor, self._size)
                if time.monotonic() >= given_up:
                    raise
                time.sleep(0.1)
            else:
                self._size += len(line)
                return


class ReservedFile:
    """A file that is written at the end of the run. The file's space is reserved at the start, because the
    benchmark can fill the disk."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._temporary = f"{path}.reserve"
        self._descriptor = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.write(self._descriptor, b" " * _RESERVED)
        os.fsync(self._descriptor)

    def write(self, value: dict[str, Any]) -> None:
        """Write the content, and rename the file to its final name. If the benchmark deleted the reserved
        file, write a new file."""
        if not os.path.exists(self._temporary):
            write_durably(self._path, value)
            return
        _finish(self._descriptor, value, self._temporary, self._path)


def _finish(descriptor: int, value: dict[str, Any], temporary: str, path: str) -> None:
    content = json.dumps(value).encode() + b"\n"
    os.pwrite(descriptor, content, 0)
    os.ftruncate(descriptor, len(content))
    os.fsync(descriptor)
    os.close(descriptor)
    os.replace(temporary, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    os.fsync(folder)
    os.close(folder)
