"""Buffers the benchmark's output for a screen: whole lines, only the newest where there are too many."""

from __future__ import annotations

from collections import deque

from executor.view.text import safe_line

_REST = 65536
"""Bytes kept of a line that has not ended yet."""


class Scroll:
    """Takes output in any pieces and returns lines safe for a terminal. Counts what it drops."""

    def __init__(self, *, keep: int = 400) -> None:
        self._lines: deque[bytes] = deque(maxlen=keep)
        self._rest = b""
        self._passed = 0

    def feed(self, content: bytes) -> None:
        *lines, rest = (self._rest + content).split(b"\n")
        self._passed += max(0, len(self._lines) + len(lines) - (self._lines.maxlen or 0))
        self._lines.extend(lines)
        if len(rest) > _REST:
            rest = rest[-_REST:] if b"\r" in rest[-_REST:] else rest[:_REST]
        self._rest = rest

    def take(self) -> tuple[int, list[str]]:
        """Return how many lines were left out since the last call, and the lines that follow them."""
        passed, self._passed = self._passed, 0
        lines = [_text(line) for line in self._lines]
        self._lines.clear()
        return passed, lines

    def take_rest(self) -> list[str]:
        """Return the last line where it has no newline and will not get one."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []

    @property
    def current(self) -> str:
        """What stands in the line that has not ended yet: a progress bar, for example."""
        return _text(self._rest)


def _text(line: bytes) -> str:
    # Enough for the screen; a line of 100 MB is not decoded for the sake of its first words.
    start = max(0, line.rfind(b"\r", 0, len(line.rstrip(b"\r"))) + 1) if b"\r" in line else 0
    shown = line[start : start + _REST].decode(errors="replace")
    return safe_line(shown)
