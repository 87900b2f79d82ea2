"""Ends what is left of a benchmark whose shim is gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from bai_agent.benchmark.proc import RUN_MARKER, Process, all_processes, boot_id, descendants, send_signal
from bai_agent.errors import BusyError
from bai_agent.job.repeats import read_repeats
from bai_agent.job.run_directory import RunDir, is_locked, read_json

_LIMIT_S = 10.0
"""Seconds after which processes that survive SIGKILL are given up."""


def kill_remains(rundir: RunDir, started: Mapping[str, Any] | None) -> int:
    """Kill every process of the LOST benchmark of `rundir`; return how many there were.

    They are known by the pid in `started`, the content of started.json (with its start time and boot: a reused pid is never touched), by the
    session that it led, by descent, and by the mark in their environment. Raises BusyError where the shim lives.
    """
    if is_locked(rundir.shim_lock):
        raise BusyError(
            f"{rundir.path}: the benchmark is still watched by its shim; ask that to stop it (stop.json)"
        )
    if started is not None and started["boot_id"] != boot_id():
        started = None
    return _kill_all(leader=_leader(rundir, started), mark=str(rundir.path))


def find_remains(rundir: RunDir) -> list[Process]:
    """Return every living process of the benchmark of `rundir`, whether its shim lives or not; none after a reboot."""
    started = read_json(rundir.started)
    if started is not None and started.get("boot_id") != boot_id():
        return []
    return _find(_leader(rundir, started), str(rundir.path))


def _leader(rundir: RunDir, started: Mapping[str, Any] | None) -> tuple[int, int] | None:
    """Return pid and start time of the benchmark's first process: of several runs, of the last one's."""
    if started is None:
        return None
    runs = read_repeats(rundir.repeats).runs
    if runs and runs[-1].boot_id == started["boot_id"]:
        return runs[-1].pid, runs[-1].start
    return int(started["pid"]), int(started["start"])


def kill_marked(mark: str) -> int:
    """Kill every process whose environment carries our mark with this value, and their descendants."""
    return _kill_all(leader=None, mark=mark)


def _kill_all(*, leader: tuple[int, int] | None, mark: str) -> int:
    killed: set[tuple[int, int]] = set()
    given_up = time.monotonic() + _LIMIT_S
    while time.monotonic() < given_up:
        found = _find(leader, mark)
        if not found:
            break
        for process in found:
            if send_signal(process, signal.SIGKILL):
                killed.add(process.identity)
        time.sleep(0.02)
    return len(killed)


def _find(leader: tuple[int, int] | None, mark: str) -> list[Process]:
    processes = all_processes()
    spared = _ourselves(processes)
    roots = [process for process in processes if process.pid not in spared and _marked(process.pid, mark)]
    if leader is not None:
        pid, start = leader
        # The number stays the session's as long as a member lives, unless all have gone and another took it.
        reused = any(process.pid == pid and process.start != start for process in processes)
        if not reused:
            roots += [process for process in processes if process.session == pid and process.start >= start]
    below = descendants({process.pid for process in roots}, processes)
    found = {process.pid: process for process in (*roots, *below) if process.state not in "ZX"}
    return [process for pid, process in found.items() if pid not in spared]


def _ourselves(processes: list[Process]) -> set[int]:
    """Return our own pid and those that we descend from: a mark that we inherited is not the benchmark's."""
    parents = {process.pid: process.parent for process in processes}
    line = {os.getpid()}
    pid = os.getpid()
    while (pid := parents.get(pid, 0)) > 0:
        line.add(pid)
    return line


def _marked(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:  # gone, or somebody else's
        return False
    name = f"{RUN_MARKER}=".encode()
    values = [os.fsdecode(each[len(name) :]) for each in variables if each.startswith(name)]
    # The same folder may be reached by two names, through a symbolic link.
    return any(value == mark or os.path.realpath(value) == os.path.realpath(mark) for value in values)
