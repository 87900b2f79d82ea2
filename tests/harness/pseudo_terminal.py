"""Runs `bai` at a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from cli_harness import CliHarness

PATIENCE = 120.0


class Terminal:
    """A process at a pseudo-terminal of 80 columns and 24 rows. Its output is kept."""

    def __init__(
        self, *arguments: str | Path, cli: CliHarness, environment: Mapping[str, str] | None = None
    ) -> None:
        self.drawn = ""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(cli.folder)
                command = [str(each) for each in (*cli.bai_program, *arguments)]
                os.execve(command[0], command, environment or cli.environment)
            finally:
                os._exit(127)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    @property
    def text(self) -> str:
        """Output without control sequences."""
        return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", self.drawn)

    def await_text(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while text not in self.text:
            assert time.monotonic() < deadline, f"{text!r} was never drawn:\n{self.text}"
            assert self._read(1.0), f"it ended without {text!r}:\n{self.text}"

    def press_ctrl_c(self) -> None:
        os.write(self.master, b"\x03")

    def close(self) -> None:
        """Close the terminal, as a user closes a window."""
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def wait(self) -> int:
        """Read until the process ends; return its exit code, or minus its signal."""
        deadline = time.monotonic() + PATIENCE
        while self.master >= 0 and self._read(1.0):
            assert time.monotonic() < deadline, f"it never ended:\n{self.text}"
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, f"it never ended:\n{self.text}"
            time.sleep(0.02)

    def _read(self, seconds: float) -> bool:
        """Read output for at most `seconds`; return False if there will be no more output."""
        if not select.select([self.master], [], [], seconds)[0]:
            return True
        try:
            piece = os.read(self.master, 65536)
        except OSError:
            # EIO means that the other side is closed.
            return False
        self.drawn += piece.decode(errors="replace")
        return bool(piece)
