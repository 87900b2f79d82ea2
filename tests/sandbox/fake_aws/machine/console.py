"""A machine's console: all that it said, and when."""

from __future__ import annotations

import threading
import time
from pathlib import Path


class MachineConsole:
    """Written by the thread that runs the machine, read by anybody. The file is kept live, for a person who looks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._said = bytearray()
        self._chunks: list[tuple[int, float]] = []
        self._changed = threading.Condition()
        self._file = path.open("wb", buffering=0)

    def feed(self, data: bytes) -> None:
        with self._changed:
            self._said += data
            self._chunks.append((len(self._said), time.monotonic()))
            self._changed.notify_all()
        self._file.write(data)

    def __bytes__(self) -> bytes:
        with self._changed:
            return bytes(self._said)

    def __str__(self) -> str:
        return bytes(self).decode(errors="replace").replace("\r\n", "\n")

    def wait_for(self, text: str, *, seconds: float) -> bool:
        """Wait until the machine has said `text`; return whether it did in time."""
        wanted = text.encode()
        with self._changed:
            return self._changed.wait_for(lambda: wanted in self._said, seconds)

    def time_of(self, text: str) -> float | None:
        """Return when `text` was said for the first time, by the monotonic clock."""
        with self._changed:
            start = self._said.find(text.encode())
            if start < 0:
                return None
            return next(when for end, when in self._chunks if end >= start + len(text.encode()))

    def close(self) -> None:
        self._file.close()
