"""Redraws a block of lines in place on a terminal, also after a resize, with cursor and echo switched off."""

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
    """Lines in the last rows of a terminal. The cursor stays in a separate row below these lines.

    A terminal that becomes narrower wraps its lines, so the rows are counted at the time when they are
    erased. Terminals differ in where they put a cursor that stood in a wrapped line.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._wraps = wraps_again(os.environ)
        self._lines: list[str] = []

    def draw(self, what: RenderableType) -> None:
        """Replace the block by `what`, truncated to the height of the screen."""
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
    """Control sequence that erases to the end of the screen; rich has no name for this sequence."""

    def __init__(self, sequence: str) -> None:
        super().__init__()
        self.segment = Segment(sequence, None, [(ControlType.ERASE_IN_LINE, 0)])


def rows_of(line: str, width: int) -> int:
    """Return the number of rows that `line` takes on a terminal of `width` columns."""
    return max(1, len(chop_cells(line, width))) if cell_len(line) > width else 1


def wraps_again(environment: Mapping[str, str]) -> bool:
    """Return whether this terminal wraps its lines when it becomes narrower; xterm and GNU screen truncate
    lines."""
    return "TMUX" in environment or not ("XTERM_VERSION" in environment or "STY" in environment)


def ansi_text(line: str) -> Text:
    """Return a line of a benchmark, with its colours."""
    return Text.from_ansi(line) if "\x1b" in line else Text(line)


def cropped(text: Text, width: int, *, unicode: bool = True) -> Text:
    """Return `text` in one row of `width` columns."""
    text.truncate(width, overflow="ellipsis" if unicode else "crop")
    text.no_wrap = True
    return text


def _stripped(line: list[Segment]) -> Iterator[Segment]:
    """Yield a line without trailing spaces, because wrapped spaces would become further rows."""
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
    """Keeps a live block below the printed lines. `close` restores the terminal. Ctrl-Z also restores the
    terminal, until the process continues."""

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
        """Print above the block, and draw the block again, all in one write."""
        if self._stop_wanted:
            self._stop()
        if self._open:
            # The echo is switched off repeatedly, because a process in the background cannot switch it off,
            # but may come to the foreground.
            self._echo.off()
        with self._console:
            self._block.erase()
            yield
            if self._open:
                self._block.draw(self._picture())

    def close(self) -> None:
        """Restore the terminal. `close` may be called at any time, also twice."""
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
        # The terminal is not restored at once, because the signal may arrive in the middle of a write.
        self._stop_wanted = True

    def _stop(self) -> None:
        """Restore the terminal and stop this process, for Ctrl-Z."""
        self._stop_wanted = False
        self._block.erase()
        self._console.show_cursor(True)
        self._echo.on()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # At this point SIGCONT has arrived.
        signal.signal(signal.SIGTSTP, self._on_stop)
        self._console.show_cursor(False)


class _Echo:
    """Switches the echo of typed characters off, because an echoed `^C` or empty line would move the block,
    and leave the old block on the screen."""

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
        """Switch the echo on or off; return whether the echo could be switched."""
        try:
            terminal = self._console.file.fileno()
            # In the background the call would stop the process, and the terminal belongs to another process.
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
