"""The state of a benchmark, from the files of its run directory.

`started.json` names the process that the shim started. Another user may have written started.json, so
`find_shim` and `is_of_run` check the process that the file names.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated

from bai_agent.decode import Rule, checked
from bai_agent.errors import RecordError
from bai_agent.job.record_types import Count, RunEnd, Text
from bai_agent.job.repeats import RepeatedRun
from bai_agent.job.run_directory import RunDir, boot_id, is_locked, read_json
from bai_agent.light_dataclass import dataclass, field
from bai_agent.shim.proc import RUN_MARKER, Process, read_process

_SHIMS = ("bai_agent/shim/shim.py", "bai_agent/benchmark/shim.py")
"""Paths of the shim's program, in this version of bai and in earlier versions whose jobs may still run."""
_Pid = Annotated[int, Rule("a process id", 1, 2**22 + 1)]
"""Valid process ids; for the upper bound see proc_sys_kernel(5)."""
_OUTPUT = (1, 2)
"""File descriptors of a benchmark that refer to the benchmark's log: stdout and stderr."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """Content of `started.json`."""

    shim_pid: _Pid
    shim_start: Count
    pid: _Pid
    """The benchmark's first process."""
    start: Count
    boot_id: Text
    # Older versions of bai wrote only the keys above this line.
    time: Count = 0
    """Start of the benchmark (ms UTC)."""
    output_bytes: Count = 0
    """Size of the output at the start of the benchmark (bytes)."""
    emit_bytes: Count = 0
    """Number of bytes that were emitted before the start of the benchmark."""
    port: Count = 0
    """Port on which the shim listens as long as it lives. 0 if the shim does not listen."""
    warnings: list[Text] = field(default_factory=list)

    @property
    def of_this_boot(self) -> bool:
        return self.boot_id == boot_id()


def read_started(rundir: RunDir) -> Started | None:
    """Return the content of `started.json`, without warnings that are not texts. Return None if the file is
    missing or names no process."""
    table = read_json(rundir.started) or {}
    given = table.get("warnings")
    warnings = [each for each in given if isinstance(each, str) and each] if isinstance(given, list) else []
    try:
        return checked(Started, {**table, "warnings": warnings}, where=str(rundir.started))
    except RecordError:
        return None


def find_shim(rundir: RunDir, started: Started | None) -> Process | None:
    """Return the living shim of `rundir`; None if no shim of `rundir` is alive. A process counts as the shim
    only if it was started as the shim of exactly this run directory."""
    if started is None or not started.of_this_boot:
        return None
    process = read_process(started.shim_pid)
    if process is None or process.start != started.shim_start:
        return None
    words = _read(process.pid, "cmdline")
    is_ours = (
        len(words) > 1 and words[-2].endswith(_SHIMS) and _same_folder(words[-1], str(rundir.shim_folder))
    )
    return process if is_ours else None


def is_of_run(process: Process, rundir: RunDir, *, shim: Process | None) -> bool:
    """Return whether `process` was started by a shim of `rundir`.

    A process belongs to the run if the run's shim is alive and is the parent of the process. An orphaned
    process belongs to the run if its environment contains the run's mark, or if it writes to the run's log.
    """
    return (
        (shim is not None and process.parent == shim.pid)
        or is_marked(process.pid, str(rundir.path))
        or _writes_log(process.pid, rundir.output)
    )


def is_marked(pid: int, mark: str) -> bool:
    """Return whether the environment of a process contained bai's mark with this value when the process
    started."""
    name = f"{RUN_MARKER}="
    values = [each[len(name) :] for each in _read(pid, "environ") if each.startswith(name)]
    return any(_same_folder(value, mark) for value in values)


def _same_folder(one: str, other: str) -> bool:
    # The real paths are compared, because one folder may have two names through a symbolic link.
    return one == other or os.path.realpath(one) == os.path.realpath(other)


def _writes_log(pid: int, log: Path) -> bool:
    """Return whether the output of a process is the file `log` itself. Return False for a process that writes
    to the target of `log`, if `log` is a link."""
    try:
        there = log.lstat()
        found = [Path(f"/proc/{pid}/fd/{each}").stat() for each in _OUTPUT]
    except OSError:  # the process has ended, or belongs to another user
        return False
    return stat.S_ISREG(there.st_mode) and any(
        (each.st_dev, each.st_ino) == (there.st_dev, there.st_ino) for each in found
    )


def _read(pid: int, name: str) -> list[str]:
    try:
        content = Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # the process has ended, or belongs to another user
        return []
    return [os.fsdecode(each) for each in content.rstrip(b"\0").split(b"\0")]


_TICK_S = 0.01


class State(Enum):
    """State of a benchmark. The states are in chronological order: a benchmark never returns to an earlier
    state."""

    NOT_STARTED = "not_started"
    RUNNING = "running"
    """The benchmark's shim lives, so a restarted agent adopts the benchmark."""
    EXITED = "exited"
    """exit.json exists."""
    LOST = "lost"
    """The benchmark was started but its end was not recorded, because the machine rebooted or the shim was
    killed. A lost benchmark is never started again."""


def state(rundir: RunDir) -> State:
    """Return the state of the benchmark of `rundir`."""
    if read_json(rundir.exit) is not None:
        return State.EXITED
    if is_locked(rundir.shim_lock):
        return State.RUNNING
    if read_json(rundir.exit) is not None:  # exit.json was written while we checked the lock
        return State.EXITED
    return State.LOST if rundir.started.exists() else State.NOT_STARTED


class StartedBenchmark:
    """The benchmark's first process, which started.json names. Each check reads one small file of /proc."""

    def __init__(self, rundir: RunDir) -> None:
        self._rundir = rundir
        self._started: Started | None = None

    def alive(self) -> bool:
        """Return False only if the benchmark's first process has certainly ended. Return True if the process
        has not started yet."""
        if self._started is None:
            self._started = read_started(self._rundir)
            if self._started is None:
                return True
        return self._started.of_this_boot and is_alive(self._started.pid, self._started.start)


def is_alive(pid: int, start: int) -> bool:
    """Return False only if the process with this pid and start time has certainly ended."""
    process = read_process(pid)
    if process is not None:
        return process.start == start and process.state not in "ZX"
    return pid > 0 and _is_hidden(pid)


def _is_hidden(pid: int) -> bool:
    """Return whether a process `pid` exists that /proc hides, such as a set-user-id program under hidepid."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return read_process(pid) is None


def wait_started(rundir: RunDir, *, timeout_s: float) -> Started | None:
    """Return the content of started.json as soon as the file exists; None if nothing was started, or after
    `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while (started := read_started(rundir)) is None:
        if state(rundir) is not State.RUNNING or time.monotonic() >= deadline:
            return read_started(rundir)
        time.sleep(_TICK_S)
    return started


def wait_exited(rundir: RunDir, *, timeout_s: float) -> State:
    """Return the state as soon as it is not RUNNING, or after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while (now := state(rundir)) is State.RUNNING and time.monotonic() < deadline:
        time.sleep(_TICK_S)
    return now


def running_seconds(started: Started | RepeatedRun | None) -> float:
    """Return the seconds since the benchmark's start, according to started.json. Return 0 if the machine was
    rebooted after the benchmark's start."""
    if started is None or started.boot_id != boot_id():
        return 0.0
    begun = started.start / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - begun)  # the time of day may have been changed


def seconds_since_first(rundir: RunDir, *, now: Callable[[], float] = time.time) -> float:
    """Return the seconds since the first generation started, including pauses; 0 if the start is not known.
    now: the time of day."""
    first = read_started(rundir.of_generation(0))
    if first is None:
        return 0.0
    # The time of day is used, because times of the monotonic clock of another boot cannot be compared.
    return running_seconds(first) if first.of_this_boot else max(0.0, now() - first.time / 1000)


def read_exit(rundir: RunDir) -> RunEnd | None:
    """Return the benchmark's end from exit.json; None if the benchmark has not ended. If exit.json is
    malformed, the benchmark counts as lost."""
    table = read_json(rundir.exit)
    if table is None:
        return None
    try:
        return checked(RunEnd, table, where=str(rundir.exit))
    except RecordError:
        return RunEnd(lost=True)
