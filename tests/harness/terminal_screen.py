"""A terminal that draws, wraps and echoes as those of people do: what stands on its screen can be read."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import psutil

PATIENCE = 120.0
_EXIT = "the exit code is "
_PARENT = ("sh", "-c", 'trap : INT TERM; "$@"; exit $?', "sh")
"""Between the shell and the command: a shell goes on when its own child is stopped."""


class Screen:
    """A command in a window of tmux, which wraps what stands there when the window becomes narrower."""

    def __init__(
        self,
        *command: str | Path,
        folder: Path,
        environment: Mapping[str, str],
        columns: int = 120,
        rows: int = 30,
        first: str = "",
        resizes: bool = False,
    ) -> None:
        """first: what a shell does before the command, in the same window. resizes: so that `resize` can be called."""
        # A socket's path has to be short.
        self._folder = tempfile.TemporaryDirectory(prefix="screen-")
        self._environment = dict(environment)
        line = f'set -m\n{first}\n{shlex.join((*(_PARENT if resizes else ()), *map(str, command)))}; echo "{_EXIT}$?"; exec sleep 600'
        self._tmux(
            *("new-session", "-d", "-x", str(columns), "-y", str(rows), "-c", str(folder), "sh", "-c", line)
        )

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tmux("kill-server")
        self._folder.cleanup()

    @property
    def lines(self) -> list[str]:
        """What stands on the screen now."""
        return self._tmux("capture-pane", "-p").rstrip("\n").split("\n")

    @property
    def history(self) -> list[str]:
        """What stands on the screen, and what has scrolled out of it."""
        return self._tmux("capture-pane", "-p", "-S", "-").rstrip("\n").split("\n")

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names: C-c, Enter."""
        self._tmux("send-keys", *keys)

    def resize(self, columns: int) -> None:
        """Make the window so wide while the command rests: what it draws meanwhile would be for another width."""
        (command,) = (
            psutil.Process(int(self._tmux("display-message", "-p", "#{pane_pid}"))).children()[0].children()
        )
        command.suspend()
        try:
            # tmux tells the program at once, but of a second change only after 250 ms.
            time.sleep(0.5)
            self._tmux("resize-window", "-x", str(columns))
            tty = os.open(
                self._tmux("display-message", "-p", "#{pane_tty}").strip(), os.O_RDONLY | os.O_NOCTTY
            )
            try:
                deadline = time.monotonic() + PATIENCE
                while os.get_terminal_size(tty).columns != columns:
                    assert time.monotonic() < deadline, "the terminal was never resized"
                    time.sleep(0.02)
            finally:
                os.close(tty)
        finally:
            command.resume()

    def await_lines(self, done: Callable[[list[str]], bool]) -> list[str]:
        """Wait for a screen of which `done` is true; return it."""
        deadline = time.monotonic() + PATIENCE
        while not done(found := self.lines):
            assert time.monotonic() < deadline, "it was never drawn; the screen is:\n" + "\n".join(found)
            time.sleep(0.05)
        return found

    def await_text(self, text: str) -> list[str]:
        return self.await_lines(lambda lines: any(text in line for line in lines))

    def wait(self) -> int:
        """Wait for the end of the command; return its exit code."""
        lines = self.await_text(_EXIT)
        return next(int(line.partition(_EXIT)[2]) for line in lines if _EXIT in line)

    def _tmux(self, *arguments: str) -> str:
        return subprocess.run(
            ("tmux", "-u", "-f", "/dev/null", "-S", f"{self._folder.name}/tmux", *arguments),
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
            env=self._environment,
        ).stdout
