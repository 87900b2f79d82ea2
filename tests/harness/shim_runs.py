"""Runs a benchmark under its real shim, without an agent."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from bai_agent.benchmark.ending import classify
from bai_agent.benchmark.start import Order, launch
from bai_agent.benchmark.state import State, read_exit, wait_exited
from bai_agent.benchmark.stopping import request_stop
from bai_agent.decode import checked
from bai_agent.files.user_rights import User
from bai_agent.job.outcome import Outcome
from bai_agent.job.record_types import RunEnd
from bai_agent.job.run_directory import RunDir, is_locked, read_json
from bai_agent.shim.proc import RUN_MARKER, all_processes

LIMIT = 120.0
"""Time limit of each wait (seconds). A longer wait is a failure."""


@dataclass
class Bench:
    rundir: RunDir
    grace: timedelta = timedelta(seconds=2)

    def order(
        self,
        *argv: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: User | None = None,
    ) -> Order:
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        return Order(
            argv=tuple(map(str, argv)),
            env={**clean, RUN_MARKER: str(self.rundir.path), **(env or {})},
            cwd=cwd or self.rundir.path,
            grace=self.grace,
            user=user,
            py_spy=Path(sys.executable).with_name("py-spy"),
        )

    def launch(self, *argv: str | Path, **more: Any) -> None:
        launch(self.order(*argv, **more), self.rundir)

    def python(self, program: str, *, env: Mapping[str, str] | None = None) -> None:
        self.launch(sys.executable, "-c", program, env=env)

    def stop(
        self, reason: Outcome = Outcome.CANCELLED, *, grace_s: float = 2.0, stacks: bool = False
    ) -> bool:
        return request_stop(self.rundir, reason=reason, grace=timedelta(seconds=grace_s), stacks=stacks)

    def ended(self) -> dict[str, Any]:
        """Wait for the end and return exit.json."""
        assert wait_exited(self.rundir, timeout_s=LIMIT) is State.EXITED, self.output
        until(lambda: not is_locked(self.rundir.shim_lock), "the shim ends")
        ended = read_json(self.rundir.exit)
        assert ended is not None
        return ended

    @property
    def started(self) -> dict[str, Any]:
        started = read_json(self.rundir.started)
        assert started is not None
        return started

    @property
    def output(self) -> str:
        return self.rundir.output.read_text() if self.rundir.output.exists() else ""

    def wait_for_output(self, text: str) -> None:
        until(lambda: text in self.output, f"{text!r} is printed, not only {self.output!r}")

    def processes(self) -> list[int]:
        """Return the pids of all processes with this benchmark's marker, without zombies."""
        mark = f"{RUN_MARKER}={self.rundir.path}".encode()
        return [p.pid for p in all_processes() if p.state not in "ZX" and mark in _environ(p.pid)]


def ended_of(rundir: RunDir) -> RunEnd:
    """Return the end of the benchmark of `rundir`, which has ended."""
    ended = read_exit(rundir)
    assert ended is not None
    return ended


def classified(ended: Mapping[str, Any]) -> tuple[Outcome, str]:
    """Return the outcome and the sentence for the content of exit.json."""
    return classify(checked(RunEnd, ended, where="exit.json"))


def until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not done():
        assert time.monotonic() < deadline, f"this did not come to be: {what}"
        time.sleep(0.01)


def _environ(pid: int) -> Sequence[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ()
