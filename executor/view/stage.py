"""A terminal in which a block is redrawn: without cursor, and without echo."""

from __future__ import annotations

import contextlib
import os
import signal
import termios
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from rich.console import Console, RenderableType

from executor.view.block import LiveBlock

_LOCAL_FLAGS = 3
"""The place of these flags in what `termios.tcgetattr` returns."""


class DrawnTerminal:
    """Keeps a picture below what is printed. `close` leaves the terminal as it was; so does Ctrl-Z, until the process goes on."""

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
        """Draw the picture as it is now."""
        with self.above():
            pass

    @contextlib.contextmanager
    def above(self) -> Iterator[None]:
        """Print above the picture, which is drawn anew after that: all in one write."""
        if self._stop_wanted:
            self._stop()
        if self._open:
            # Again and again: a process in the background may not, and it may come to the foreground.
            self._echo.off()
        with self._console:
            self._block.erase()
            yield
            if self._open:
                self._block.draw(self._picture())

    def close(self) -> None:
        """May be called at any time, also twice."""
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
        # Not at once: it may come in the middle of a write.
        self._stop_wanted = True

    def _stop(self) -> None:
        """Restore the terminal and stop this process, for Ctrl-Z."""
        self._stop_wanted = False
        self._block.erase()
        self._console.show_cursor(True)
        self._echo.on()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # Somebody has let it go on.
        signal.signal(signal.SIGTSTP, self._on_stop)
        self._console.show_cursor(False)


class _Echo:
    """What a terminal shows of typed characters. `^C` or an empty line would move the picture, and leave the old one behind."""

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
        """Return whether it was switched."""
        try:
            terminal = self._console.file.fileno()
            # In the background it would stop us, and the terminal is somebody else's.
            if os.tcgetpgrp(terminal) != os.getpgrp():
                return False
            modes = termios.tcgetattr(terminal)
            if bool(modes[_LOCAL_FLAGS] & termios.ECHO) == on:
                return False
            modes[_LOCAL_FLAGS] ^= termios.ECHO
            termios.tcsetattr(terminal, termios.TCSANOW, modes)
        except (OSError, termios.error):
            return False  # no terminal, or one that was closed
        return True
