"""Ends the remaining processes of a benchmark whose shim is dead."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from bai_agent.benchmark.state import Started, find_shim, is_marked, is_of_run, read_started
from bai_agent.errors import BusyError
from bai_agent.job.repeats import read_repeats
from bai_agent.job.run_directory import RunDir, is_locked
from bai_agent.shim.proc import Process, all_processes, descendants, send_signal

_LIMIT_S = 10.0
"""Seconds to wait for processes after SIGKILL."""


def kill_remains(rundir: RunDir, started: Started | None) -> int:
    """Kill every process of the LOST benchmark of `rundir`; return their number.

    The function kills the processes with the run's mark in their environment, and their descendants. It also
    kills the session of `started` (started.json), if there is proof that this run's shim started the session.
    Raises BusyError if the shim is alive.
    """
    if is_locked(rundir.shim_lock):
        raise BusyError(
            f"{rundir.path}: the benchmark is still watched by its shim; ask the shim to stop the benchmark (stop.json)"
        )
    return _kill_all(lambda processes: _roots(rundir, started, processes))


def find_remains(rundir: RunDir) -> list[Process]:
    """Return every living process of the benchmark of `rundir`, with or without its shim; none after a reboot."""
    started = read_started(rundir)
    if started is not None and not started.of_this_boot:
        return []
    return _with_descendants(lambda processes: _roots(rundir, started, processes))


def kill_marked(mark: str) -> int:
    """Kill every process whose environment contains bai's mark with this value, and the descendants of these
    processes."""
    return _kill_all(lambda processes: _marked(mark, processes))


def _kill_all(find_roots: Callable[[list[Process]], list[Process]]) -> int:
    killed: set[tuple[int, int]] = set()
    given_up = time.monotonic() + _LIMIT_S
    while time.monotonic() < given_up:
        found = _with_descendants(find_roots)
        if not found:
            break
        for process in found:
            if send_signal(process, signal.SIGKILL):
                killed.add(process.identity)
        time.sleep(0.02)
    return len(killed)


def _with_descendants(find_roots: Callable[[list[Process]], list[Process]]) -> list[Process]:
    """Return the processes that `find_roots` finds, and their descendants, without this process and its
    ancestors."""
    processes = all_processes()
    spared = _ourselves(processes)
    roots = [process for process in find_roots(processes) if process.pid not in spared]
    below = descendants({process.pid for process in roots}, processes)
    found = {process.pid: process for process in (*roots, *below) if process.state not in "ZX"}
    return [process for pid, process in found.items() if pid not in spared]


def _roots(rundir: RunDir, started: Started | None, processes: list[Process]) -> list[Process]:
    roots = _marked(str(rundir.path), processes)
    if started is not None and started.of_this_boot:
        roots += _session(rundir, started, processes)
    return roots


def _marked(mark: str, processes: list[Process]) -> list[Process]:
    return [process for process in processes if is_marked(process.pid, mark)]


def _session(rundir: RunDir, started: Started, processes: list[Process]) -> list[Process]:
    """Return the processes in the session of the benchmark's first process. In a job with several runs, the
    session is that of the last run's first process."""
    pid, start = started.pid, started.start
    runs = read_repeats(rundir.repeats).runs
    if runs and runs[-1].boot_id == started.boot_id:
        pid, start = runs[-1].pid, runs[-1].start
    members = [process for process in processes if process.session == pid and process.start >= start]
    shim = find_shim(rundir, started)
    leader = next((process for process in processes if process.pid == pid), None)
    if leader is None:
        # The session keeps its number as long as one of its processes lives.
        return [process for process in members if is_of_run(process, rundir, shim=shim)]
    # If the start time differs, all processes of the session have ended, and another process reused the
    # number.
    return members if leader.start == start and is_of_run(leader, rundir, shim=shim) else []


def _ourselves(processes: list[Process]) -> set[int]:
    """Return the pids of this process and its ancestors, which may have inherited the mark without being
    processes of this benchmark."""
    parents = {process.pid: process.parent for process in processes}
    line = {os.getpid()}
    pid = os.getpid()
    while (pid := parents.get(pid, 0)) > 0:
        line.add(pid)
    return line
