"""Redraws a block of lines in place on a terminal, even after the terminal was resized. Meanwhile, cursor and
echo are switched off."""

from __future__ import annotations

import contextlib
import os
import signal
import termios
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.console import Console, RenderableType
from rich.control import Control
from rich.segment import ControlType, Segment, Segments
from rich.text import Text

_LOCAL_FLAGS = 3
"""Index of the local flags in the result of `termios.tcgetattr`."""


class LiveBlock:
    """Lines in the last rows of a terminal. The cursor stays in a separate row below the block.

    A terminal that becomes narrower wraps its lines, so the block's rows are counted only when the block is
    erased. The cursor needs a row of its own, because terminals differ in where they put a cursor that was in
    a wrapped line.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._wraps = wraps_again(os.environ)
        self._lines: list[str] = []

    def draw(self, what: RenderableType) -> None:
        """Erase the block, and draw `what` in its place, truncated to the height of the screen."""
        self.erase()
        console = self._console
        lines = [list(_stripped(line)) for line in console.render_lines(what, pad=False)]
        lines = lines[: max(0, console.height - 1)]
        self._lines = ["".join(segment.text for segment in line) for line in lines]
        console.print(Segments(_joined(lines)), end="", soft_wrap=True)

    def erase(self) -> None:
        """Erase the block, so that the next printed text appears in the block's place."""
        if not self._lines:
            return
        above = sum(rows_of(line, self._console.width) if self._wraps else 1 for line in self._lines)
        self._lines = []
        self._console.control(_Sequence(f"\r\x1b[{above}A\x1b[J"))


class _Sequence(Control):
    """A control sequence for which rich has no name: it erases from the cursor to the end of the screen."""

    def __init__(self, sequence: str) -> None:
        super().__init__()
        self.segment = Segment(sequence, None, [(ControlType.ERASE_IN_LINE, 0)])


def rows_of(line: str, width: int) -> int:
    """Return the number of rows that the text `line` takes on a terminal with `width` columns."""
    return max(1, len(chop_cells(line, width))) if cell_len(line) > width else 1


def wraps_again(environment: Mapping[str, str]) -> bool:
    """Return whether this terminal wraps existing lines when it becomes narrower. xterm and GNU screen
    truncate them instead."""
    return "TMUX" in environment or not ("XTERM_VERSION" in environment or "STY" in environment)


def ansi_text(line: str) -> Text:
    """Convert a benchmark's line with its colours to a text for rich."""
    return Text.from_ansi(line) if "\x1b" in line else Text(line)


def cropped(text: Text, width: int, *, unicode: bool = True) -> Text:
    """Truncate `text` to one row of `width` columns, and return it."""
    text.truncate(width, overflow="ellipsis" if unicode else "crop")
    text.no_wrap = True
    return text


def _stripped(line: list[Segment]) -> Iterator[Segment]:
    """Yield the segments of a line without its trailing spaces, which could wrap into the next row."""
    length = len("".join(segment.text for segment in line).rstrip(" "))
    for segment in line:
        if length <= 0:
            return
        yield Segment(segment.text[:length], segment.style)
        length -= len(segment.text)


def _joined(lines: Iterable[list[Segment]]) -> Iterator[Segment]:
    for line in lines:
        yield from line
        yield Segment.line()


class DrawnTerminal:
    """Keeps a live block below the lines that are printed. `close` restores the terminal. While the process
    is stopped by Ctrl-Z, the terminal is also restored."""

    def __init__(self, console: Console, job_view: Callable[[], RenderableType]) -> None:
        self._console = console
        self._picture = job_view
        self._block = LiveBlock(console)
        self._echo = _Echo(console)
        self._open = False
        self._stop_wanted = False
        self._before: Any = None

    def open(self) -> None:
        self._open = True
        before = signal.getsignal(signal.SIGTSTP)
        if before is signal.SIG_DFL:
            self._before = signal.signal(signal.SIGTSTP, self._on_stop)
        self._console.show_cursor(False)
        self.refresh()

    def refresh(self) -> None:
        """Draw the block in its current state."""
        with self.above():
            pass

    @contextlib.contextmanager
    def above(self) -> Iterator[None]:
        """While the context is open, the caller prints above the block. When the context closes, the block is
        drawn again, all in one write."""
        if self._stop_wanted:
            self._stop()
        if self._open:
            # The echo is switched off at each redraw. A process in the background cannot switch it off, but
            # can come to the foreground later.
            self._echo.off()
        with self._console:
            self._block.erase()
            yield
            if self._open:
                self._block.draw(self._picture())

    def close(self) -> None:
        """Erase the block and restore the terminal. Can be called at any time, and more than once."""
        if not self._open:
            return
        self._open = False
        if self._before is not None:
            signal.signal(signal.SIGTSTP, self._before)
        try:
            self._block.erase()
            self._console.show_cursor(True)
        finally:
            self._echo.on()

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        # The terminal is not restored at once, because the signal can arrive in the middle of a write.
        self._stop_wanted = True

    def _stop(self) -> None:
        """Restore the terminal and stop this process, for Ctrl-Z."""
        self._stop_wanted = False
        self._block.erase()
        self._console.show_cursor(True)
        self._echo.on()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # The process continues here after it has received SIGCONT.
        signal.signal(signal.SIGTSTP, self._on_stop)
        self._console.show_cursor(False)


class _Echo:
    """Switches off the terminal's echo of typed characters. An echoed `^C` or empty line would move the
    block, and a part of the old block would stay on the screen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_off = False

    def off(self) -> None:
        if not self._is_off:
            self._is_off = self._switch(on=False)

    def on(self) -> None:
        if self._is_off:
            self._is_off = False
            self._switch(on=True)

    def _switch(self, *, on: bool) -> bool:
        """Switch the terminal's echo on or off. Return whether the echo was changed."""
        try:
            terminal = self._console.file.fileno()
            # In the background, the terminal belongs to another process, and changing it would stop this
            # process.
            if os.tcgetpgrp(terminal) != os.getpgrp():
                return False
            modes = termios.tcgetattr(terminal)
            if bool(modes[_LOCAL_FLAGS] & termios.ECHO) == on:
                return False
            modes[_LOCAL_FLAGS] ^= termios.ECHO
            termios.tcsetattr(terminal, termios.TCSANOW, modes)
        except (OSError, termios.error):
            return False  # There is no terminal, or the terminal was closed.
        return True
