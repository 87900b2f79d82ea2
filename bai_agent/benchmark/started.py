"""`started.json`: which process the shim started, and the proof that it did. The file alone is a claim: another user may have written it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bai_agent.benchmark.proc import RUN_MARKER, Process, read_process
from bai_agent.job.run_directory import RunDir, boot_id, read_json

_SHIM = os.path.join("bai_agent", "benchmark", "shim.py")  # noqa: PTH118 - compared as text
_MOST_PID = 2**22
"""The kernel's own bound: proc_sys_kernel(5)."""
_OUTPUT = (1, 2)
"""What a benchmark has of its log: stdout and stderr."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """What `started.json` says."""

    shim_pid: int
    shim_start: int
    pid: int
    """The benchmark's first process."""
    start: int
    boot_id: str
    time: int
    """ms UTC."""
    warnings: tuple[str, ...] = ()

    @property
    def of_this_boot(self) -> bool:
        return self.boot_id == boot_id()


def read_started(rundir: RunDir) -> Started | None:
    """Return what `started.json` says; None if it is missing, or names no process."""
    said = read_json(rundir.started)
    if said is None:
        return None
    numbers: dict[str, Any] = {name: said.get(name) for name in ("shim_pid", "shim_start", "pid", "start")}
    numbers["time"] = said.get("time", 0)
    if any(type(each) is not int or each < 0 for each in numbers.values()):
        return None
    if not (0 < numbers["pid"] <= _MOST_PID and 0 < numbers["shim_pid"] <= _MOST_PID):
        return None
    warnings = said.get("warnings", [])
    return Started(
        **numbers,
        boot_id=str(said.get("boot_id")),
        warnings=tuple(each for each in warnings if isinstance(each, str) and each)
        if isinstance(warnings, list)
        else (),
    )


def find_shim(rundir: RunDir, started: Started | None) -> Process | None:
    """Return the living shim of `rundir`; None unless that process was started as a shim for this very folder."""
    if started is None or not started.of_this_boot:
        return None
    process = read_process(started.shim_pid)
    if process is None or process.start != started.shim_start:
        return None
    words = _read(process.pid, "cmdline")
    is_ours = len(words) > 1 and words[-2].endswith(_SHIM) and _same_folder(words[-1], str(rundir.path))
    return process if is_ours else None


def is_of_run(process: Process, rundir: RunDir, *, shim: Process | None) -> bool:
    """Return whether `process` was started by a shim of `rundir`.

    The proof: its parent is the living shim, or, as an orphan has another parent, it has the run's mark in its environment
    or writes to the run's log.
    """
    return (
        (shim is not None and process.parent == shim.pid)
        or is_marked(process.pid, str(rundir.path))
        or _writes_log(process.pid, rundir.output)
    )


def is_marked(pid: int, mark: str) -> bool:
    """Return whether a process was started with our mark of this value in its environment."""
    name = f"{RUN_MARKER}="
    values = [each[len(name) :] for each in _read(pid, "environ") if each.startswith(name)]
    return any(_same_folder(value, mark) for value in values)


def _same_folder(one: str, other: str) -> bool:
    # The same folder may be reached by two names, through a symbolic link.
    return one == other or os.path.realpath(one) == os.path.realpath(other)


def _writes_log(pid: int, log: Path) -> bool:
    """Return whether a process has the file `log` itself, not what a link of that name leads to, as its output."""
    try:
        there = log.lstat()
        found = [Path(f"/proc/{pid}/fd/{each}").stat() for each in _OUTPUT]
    except OSError:  # gone, or somebody else's
        return False
    return stat.S_ISREG(there.st_mode) and any(
        (each.st_dev, each.st_ino) == (there.st_dev, there.st_ino) for each in found
    )


def _read(pid: int, name: str) -> list[str]:
    try:
        content = Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # gone, or somebody else's
        return []
    return [os.fsdecode(each) for each in content.rstrip(b"\0").split(b"\0")]
