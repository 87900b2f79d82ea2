"""Runs commands in a terminal (tmux) that behaves as users' terminals do, and reads its screen."""

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
"""Process between the shell and the command, because a shell continues when its own child is stopped."""


class Screen:
    """A command in a window of tmux, which wraps lines again when the window becomes narrower."""

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
        """first: shell code that runs before the command. resizes: whether `resize` can be called."""
        # The path of a socket must be short.
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
        """Lines on the screen now."""
        return self._tmux("capture-pane", "-p").rstrip("\n").split("\n")

    @property
    def history(self) -> list[str]:
        """Lines on the screen, and lines that have scrolled out of it."""
        return self._tmux("capture-pane", "-p", "-S", "-").rstrip("\n").split("\n")

    def press(self, *keys: str) -> None:
        """Press keys, which have tmux's names: C-c, Enter."""
        self._tmux("send-keys", *keys)

    def resize(self, columns: int) -> None:
        """Change the window's width. The command is stopped meanwhile, or it would draw for another width."""
        (command,) = (
            psutil.Process(int(self._tmux("display-message", "-p", "#{pane_pid}"))).children()[0].children()
        )
        command.suspend()
        try:
            # tmux notifies the program of a change at once, but of a second change only after 250 ms.
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
        """Wait until `done` is true of the screen's lines; return them."""
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
