"""The shim's lock, and its files: each there as a whole or not at all, whatever is killed when."""

from __future__ import annotations

import fcntl
import json
import os
import time

TYPE_CHECKING = False  # typing's own would bring typing, a tenth of the shim's memory
if TYPE_CHECKING:
    from typing import Any

_LOCK_WAIT = 2.0
"""Seconds: whoever asks whether the lock is held, holds it for a moment."""
_RESERVED = 8192


def take_lock(path: str) -> int | None:
    """Hold the lock file for as long as this process lives; None where another one does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    given_up = time.monotonic() + _LOCK_WAIT
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= given_up:
                return None
            time.sleep(0.01)
        else:
            return descriptor


def write_durably(path: str, value: dict[str, Any]) -> None:
    """Write a new file, which outlives even a crash of the machine when this returns. Raises OSError."""
    temporary = f"{path}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    _finish(descriptor, value, temporary, path)


class ReservedFile:
    """A file to be written at the end, whose space is taken now: the benchmark may well fill the disk."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._temporary = f"{path}.reserve"
        self._descriptor = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.write(self._descriptor, b" " * _RESERVED)
        os.fsync(self._descriptor)

    def write(self, value: dict[str, Any]) -> None:
        """Give the file its content and its name; where the benchmark took it away, another one."""
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
