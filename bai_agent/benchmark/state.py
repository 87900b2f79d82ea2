"""What the files of a run directory say about its benchmark."""

from __future__ import annotations

import os
import time
from enum import Enum
from typing import Any

from bai_agent.benchmark.proc import read_process
from bai_agent.benchmark.started import Started, read_started
from bai_agent.job.repeats import RepeatedRun
from bai_agent.job.run_directory import RunDir, boot_id, is_locked, read_json

_TICK_S = 0.01


class State(Enum):
    """The state of a benchmark. It only moves down this list."""

    NOT_STARTED = "not_started"
    RUNNING = "running"
    """Its shim lives: adopt it."""
    EXITED = "exited"
    """exit.json is there."""
    LOST = "lost"
    """It was started and nobody saw its end: the machine rebooted, or the shim was killed. Never to be started again."""


def state(rundir: RunDir) -> State:
    """Return the state of the benchmark of `rundir`."""
    if read_json(rundir.exit) is not None:
        return State.EXITED
    if is_locked(rundir.shim_lock):
        return State.RUNNING
    if read_json(rundir.exit) is not None:  # it was written while we looked at the lock
        return State.EXITED
    return State.LOST if rundir.started.exists() else State.NOT_STARTED


class StartedBenchmark:
    """The benchmark's first process, as started.json names it. A look costs one small file of /proc."""

    def __init__(self, rundir: RunDir) -> None:
        self._rundir = rundir
        self._started: Started | None = None

    def alive(self) -> bool:
        """Return whether it runs, or has not been started: False only where it has surely ended."""
        if self._started is None:
            self._started = read_started(self._rundir)
            if self._started is None:
                return True
        return self._started.of_this_boot and is_alive(self._started.pid, self._started.start)


def is_alive(pid: int, start: int) -> bool:
    """Return whether the process with this pid that started then runs: False only where it has surely ended."""
    process = read_process(pid)
    if process is not None:
        return process.start == start and process.state not in "ZX"
    return pid > 0 and _is_hidden(pid)


def _is_hidden(pid: int) -> bool:
    """Return whether there is a process `pid` although /proc does not show it: a set-user-id program, under hidepid."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return read_process(pid) is None


def wait_started(rundir: RunDir, *, timeout_s: float) -> Started | None:
    """Return started.json as soon as it is there; None where nothing was started, at the latest after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while (started := read_started(rundir)) is None:
        if state(rundir) is not State.RUNNING or time.monotonic() >= deadline:
            return read_started(rundir)
        time.sleep(_TICK_S)
    return started


def wait_exited(rundir: RunDir, *, timeout_s: float) -> State:
    """Return the state as soon as it is not RUNNING, at the latest after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while (now := state(rundir)) is State.RUNNING and time.monotonic() < deadline:
        time.sleep(_TICK_S)
    return now


def running_seconds(started: Started | RepeatedRun | None) -> float:
    """Return how long ago the benchmark was started, as started.json says; 0 where it was not, in this boot."""
    if started is None or started.boot_id != boot_id():
        return 0.0
    begun = started.start / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - begun)  # the time of day may be set meanwhile


def read_exit(rundir: RunDir) -> dict[str, Any]:
    """Return exit.json of a benchmark that has EXITED. Raises FileNotFoundError."""
    ended = read_json(rundir.exit)
    if ended is None:
        raise FileNotFoundError(f"{rundir.exit} is not there: the benchmark has not ended")
    return ended
