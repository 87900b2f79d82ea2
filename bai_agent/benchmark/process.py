"""The agent's side of the benchmark: launches its shim, tells its state, asks it to stop."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path

from bai_agent.benchmark import shim
from bai_agent.benchmark.environment import User
from bai_agent.errors import BaiError
from bai_agent.outcome import Outcome
from bai_agent.rundir import RunDir, is_locked, read_json, write_atomic

OOM_SCORE_ADJ = 500
"""How much likelier than us the benchmark is to be chosen by the out-of-memory killer (0 to 1000)."""

_LAUNCH_LIMIT = 60.0
"""Seconds for the shim to say that the benchmark runs; two fsyncs on a slow disk are in them."""


class LaunchError(BaiError):
    """The benchmark's shim could not be started; the benchmark did not run."""


class State(Enum):
    """What the files of a run directory say about its benchmark."""

    NOT_STARTED = "not_started"
    RUNNING = "running"
    """Its shim lives: adopt it."""
    EXITED = "exited"
    """exit.json is there."""
    LOST = "lost"
    """It was started and nobody saw its end: the machine rebooted, or the shim was killed. Never to be started again."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """All that the shim needs to know, resolved."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    grace: timedelta
    """For processes that the benchmark leaves behind, and for a shutdown; at most 5 s of it are used."""
    user: User | None = None
    oom_score_adj: int = OOM_SCORE_ADJ
    py_spy: Path | None = None


class Shim:
    """The shim of one run directory, started by us or by an agent before us."""

    def __init__(self, rundir: RunDir) -> None:
        self._rundir = rundir
        self._child: subprocess.Popen[bytes] | None = None

    def state(self) -> State:
        if self._child is not None:
            self._child.poll()
        if read_json(self._rundir.exit) is not None:
            return State.EXITED
        if is_locked(self._rundir.shim_lock):
            return State.RUNNING
        if read_json(self._rundir.exit) is not None:  # it was written while we looked at the lock
            return State.EXITED
        return State.LOST if self._rundir.started.exists() else State.NOT_STARTED

    def launch(self, order: Order) -> State:
        """Start the benchmark, unless it was started before; return the state afterwards.

        Raises LaunchError where it did not come to run and may be launched again.
        """
        state = self.state()
        if state is not State.NOT_STARTED:
            return state
        create_output(self._rundir)
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", shim.__file__, str(self._rundir.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
        self._child = child
        try:
            said = _hand_over(child, _order_bytes(order, self._rundir))
        except TimeoutError:
            child.kill()
            child.wait()
            said = (
                f"it did not answer within {_LAUNCH_LIMIT:g} s; is the disk of {self._rundir.path} hanging?"
            )
        state = self.state()
        if state is State.NOT_STARTED:
            raise LaunchError(
                f"{self._rundir.path}: the benchmark could not be launched: {said or 'its shim was killed'}"
            )
        return state

    def wait(self, timeout: timedelta) -> State:
        """Return the state as soon as it is not RUNNING, at the latest after `timeout`."""
        end = time.monotonic() + timeout.total_seconds()
        while (state := self.state()) is State.RUNNING and time.monotonic() < end:
            time.sleep(0.02)
        return state


def request_stop(rundir: RunDir, *, reason: Outcome, grace: timedelta, stacks: bool = False) -> bool:
    """Ask the shim to end the benchmark. The first request stands: return whether this is it."""
    wish = {"reason": reason.value, "grace_seconds": grace.total_seconds(), "stacks": stacks}
    draft = rundir.stop.with_name(f".stop.json.{os.getpid()}.draft")
    write_atomic(draft, (json.dumps(wish) + "\n").encode())
    try:
        os.link(draft, rundir.stop)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def create_output(rundir: RunDir) -> None:
    """Make the empty output.log, and its second name, under which a reader of the job store looks for it."""
    rundir.output.touch()
    rundir.log_chunks.mkdir(exist_ok=True)
    name = rundir.log_chunks / f"{0:020d}"
    if not name.exists():
        name.hardlink_to(rundir.output)


def find_py_spy() -> Path | None:
    """Return the py-spy that came with the agent, else the one on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    if beside.exists():
        return beside
    found = shutil.which("py-spy")
    return Path(found) if found else None


def _order_bytes(order: Order, rundir: RunDir) -> bytes:
    value = {
        "argv": list(order.argv),
        "env": dict(order.env),
        "cwd": str(order.cwd),
        "user": order.user
        and {
            "name": order.user.name,
            "uid": order.user.uid,
            "gid": order.user.gid,
            "groups": list(order.user.groups),
        },
        "grace_seconds": order.grace.total_seconds(),
        "oom_score_adj": order.oom_score_adj,
        "py_spy": order.py_spy and str(order.py_spy),
        "files": {
            "lock": str(rundir.shim_lock),
            "started": str(rundir.started),
            "stop": str(rundir.stop),
            "exit": str(rundir.exit),
            "output": str(rundir.output),
            "fifo": str(rundir.fifo),
            "emit": str(rundir.emit),
        },
    }
    return json.dumps(value).encode()


def _hand_over(child: subprocess.Popen[bytes], order: bytes) -> str:
    """Write the order; return what the shim said until it closed its stderr: the benchmark runs, or the shim ended.

    Raises TimeoutError.
    """
    assert child.stdin is not None
    assert child.stderr is not None
    try:
        with child.stdin:
            child.stdin.write(order)
    except BrokenPipeError:
        pass  # it died; its state says the rest
    end = time.monotonic() + _LAUNCH_LIMIT
    said = b""
    with child.stderr:
        while True:
            readable, _, _ = select.select([child.stderr], [], [], max(0.0, end - time.monotonic()))
            if not readable:
                raise TimeoutError
            part = os.read(child.stderr.fileno(), 65536)
            if not part:
                return said.decode(errors="replace").strip()
            said += part
