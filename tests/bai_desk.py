"""`bai` at a real terminal, and benchmarks that wait for a word before they end."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from bai_program import PROGRAM, run_bai

from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import RunDir
from bai_agent.job.store.directory import DirectoryStore

PATIENCE = 60.0

_DESCRIPTOR = """\
spec_version = "0.1.0"
[info]
description = "Waits for a word"
execution_engine = "local"
labels = {{ task_name = "waits" }}
[hardware]
instance_type = "local"
strategy = "{strategy}"
[limits]
{limits}
[host_metrics]
enabled = false
[ml]
benchmark_code = '''
#!{python}
{code}
'''
[[output.metrics]]
name = "loss"
units = "nats"
pattern = 'loss=(\\S+)'
better = "lower"
{more}
"""

WAITS = """
import os, sys, time
print("pid", os.getpid(), flush=True)
print("loss=0.5 loss=0.25", flush=True)
deadline = time.monotonic() + 120
while not os.path.exists(sys.argv[1]) and time.monotonic() < deadline:
    time.sleep(0.02)
print("loss=0.125")
"""
"""Prints its pid and two values, waits for the file that its argument names, and prints a third."""

IGNORES_SIGTERM = (
    """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
    + WAITS
)


@dataclass(frozen=True)
class Desk:
    """A folder with a descriptor and a store."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "the store"

    @property
    def word(self) -> Path:
        """The file that ends a benchmark that waits."""
        return self.folder / "go"

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        return {
            **inherited,
            "BAI_STORE": str(self.store),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "TERM": "xterm-256color",
            "COLUMNS": "",
            "LINES": "",
        }

    def descriptor(
        self,
        code: str = WAITS,
        *,
        limits: str = 'grace = "20s"',
        strategy: str = "single_node",
        more: str = "",
    ) -> Path:
        """Write a benchmark descriptor whose benchmark is `code` (Python). `more`: tables at its end."""
        path = self.folder / "benchmark.toml"
        path.write_text(
            _DESCRIPTOR.format(python=sys.executable, code=code, limits=limits, strategy=strategy, more=more)
        )
        return path

    def bai(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return run_bai(*arguments, folder=self.folder, environment=self.environment)

    def record(self, job_id: str) -> JobRecord:
        return JobRecord(DirectoryStore(self.store), job_id)

    def rundir(self, job_id: str) -> RunDir:
        return RunDir(self.store / self.record(job_id).node().place)

    def result(self, job_id: str) -> dict[str, Any]:
        found = self.record(job_id).result()
        assert found is not None
        return found

    def output(self, job_id: str) -> str:
        return self.rundir(job_id).output.read_text()

    def kill_agent(self, job_id: str) -> None:
        ready = json.loads(self.rundir(job_id).ready.read_text())
        os.kill(int(ready["pid"]), signal.SIGKILL)

    def await_jobs(self, count: int) -> list[str]:
        """Wait until there are `count` jobs; return their ids."""
        deadline = time.monotonic() + PATIENCE
        while len(found := [each.parent.name for each in self.store.glob("*/job.toml")]) < count:
            assert time.monotonic() < deadline, f"there are only {found}"
            time.sleep(0.02)
        return found

    def await_output(self, job_id: str, text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        path = self.rundir(job_id).output
        while not (path.exists() and text in path.read_text()):
            assert time.monotonic() < deadline, f"{text!r} was never printed"
            time.sleep(0.02)


class Terminal:
    """A process at a pseudo-terminal of 80 columns and 24 rows; what it draws is kept."""

    def __init__(
        self, *arguments: str | Path, desk: Desk, environment: Mapping[str, str] | None = None
    ) -> None:
        self.drawn = ""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(desk.folder)
                os.execve(
                    PROGRAM[0],
                    [str(each) for each in (*PROGRAM, *arguments)],
                    environment or desk.environment,
                )
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
        """What was drawn, without control sequences."""
        return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", self.drawn)

    def await_text(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while text not in self.text:
            assert time.monotonic() < deadline, f"{text!r} was never drawn:\n{self.text}"
            assert self._read(1.0), f"it ended without {text!r}:\n{self.text}"

    def press_ctrl_c(self) -> None:
        os.write(self.master, b"\x03")

    def close(self) -> None:
        """Close the terminal, as a person closes a window."""
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
        """Take in what is drawn within `seconds`; False where nothing more will come."""
        if not select.select([self.master], [], [], seconds)[0]:
            return True
        try:
            piece = os.read(self.master, 65536)
        except OSError:
            # EIO: the other side is closed.
            return False
        self.drawn += piece.decode(errors="replace")
        return bool(piece)
