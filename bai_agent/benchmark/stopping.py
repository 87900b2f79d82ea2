"""Stops a benchmark with an order to its shim. If the disk is too full for the order's file, the shim gets a
signal. If the shim is dead or hangs, the agent kills the benchmark's processes directly."""

from __future__ import annotations

import json
import logging
import signal
import time
from datetime import timedelta

from bai_agent.benchmark.orphans import kill_remains
from bai_agent.benchmark.state import Started, State, find_shim, read_started, state, wait_exited
from bai_agent.decode import checked
from bai_agent.errors import BusyError, RecordError
from bai_agent.job.outcome import Outcome
from bai_agent.job.record_types import BenchmarkExit
from bai_agent.job.run_directory import (
    RunDir,
    is_locked,
    make_folder,
    now_ms,
    read_json,
    write_json,
    write_new,
)
from bai_agent.light_dataclass import asdict, fields
from bai_agent.shim.memory_group import remove_abandoned_groups
from bai_agent.shim.proc import send_signal

log = logging.getLogger(__name__)

_SHIM_DEATH_LIMIT_S = 10.0
"""Time limit for a killed shim to release its lock (seconds)."""

_SHIM_END_LIMIT_S = 30.0
"""Time limit for a shim to end after SIGTERM (seconds): 5 s of grace, 10 s for SIGKILL, 5 s for the FIFO, and
a reserve for a slow disk."""

_MAY_BE_MISSING = ("left_behind", "left_behind_names", "time", "tree_peak_memory_bytes")
"""Keys of exit.json that some versions of bai did not write."""


def request_stop(rundir: RunDir, *, reason: Outcome, grace: timedelta, stacks: bool = False) -> bool:
    """Request that the shim stops the benchmark. Only the first request to stop has an effect. Return whether
    this call's request is the first."""
    order = {"reason": reason.value, "grace_seconds": grace.total_seconds(), "stacks": stacks}
    return write_new(rundir.stop, (json.dumps(order) + "\n").encode())


def ordered_grace(rundir: RunDir) -> timedelta | None:
    """Return the grace period of the first request to stop. Return None if there is no request, or the
    request is malformed."""
    order = read_json(rundir.stop) or {}
    seconds = order.get("grace_seconds")
    try:
        return timedelta(seconds=seconds) if isinstance(seconds, (int, float)) else None
    except (ValueError, OverflowError):
        return None


def end_lost(rundir: RunDir, *, started: Started | None = None) -> None:
    """End the processes of a benchmark that is LOST, or whose shim does not obey, and write its exit.json.

    started: the content of started.json, which is needed if the benchmark deleted the file. Raises BusyError
    if the shim cannot even be killed.
    """
    started = started or read_started(rundir)
    _kill_shim(rundir, started)
    killed = kill_remains(rundir, started)
    remove_abandoned_groups()
    make_folder(rundir.shim_folder, private=rundir.path)
    if read_json(rundir.exit) is None:  # the shim may have finished at the last moment
        _write_lost(rundir, left_behind=killed)


def require_valid_exit(rundir: RunDir) -> None:
    """Replace a malformed exit.json by the exit.json of a lost benchmark, and log an error."""
    table = read_json(rundir.exit)
    if table is None:
        return
    try:
        found = checked(BenchmarkExit, table, where=str(rundir.exit))
        known = [each.name for each in fields(BenchmarkExit) if each.name not in _MAY_BE_MISSING]
        missing = [name for name in known if name not in table]
        if missing:
            raise RecordError(f"{rundir.exit}: {missing[0]} is missing")
        if not found.lost and found.wall_seconds is None:
            raise RecordError(f"{rundir.exit}: wall_seconds: expected a number, got null")
        error = found.exec_error
        if error is not None and not {"message", "not_found"} <= error.keys():
            raise RecordError(f"{rundir.exit}: exec_error has no message")
    except RecordError as error:
        log.warning("%s; the benchmark counts as lost", error)
        _write_lost(rundir, left_behind=0)


def _write_lost(rundir: RunDir, *, left_behind: int) -> None:
    lost = BenchmarkExit(oom=False, left_behind=left_behind, left_behind_names={}, time=now_ms(), lost=True)
    write_json(rundir.exit, asdict(lost))


def end_without_order(rundir: RunDir) -> None:
    """Stop a benchmark if the disk is too full for the file stop.json. The shim gets SIGTERM, and stops the
    benchmark as it does after an order in stop.json.

    Raises the errors of `end_lost`, which is called if the shim does not stop the benchmark.
    """
    if state(rundir) is State.RUNNING:
        _signal_shim(rundir, read_started(rundir), signal.SIGTERM)
        if wait_exited(rundir, timeout_s=_SHIM_END_LIMIT_S) is State.RUNNING:
            end_lost(rundir)


def _signal_shim(rundir: RunDir, started: Started | None, number: int) -> None:
    if (shim := find_shim(rundir, started)) is not None:
        send_signal(shim, number)


def _kill_shim(rundir: RunDir, started: Started | None) -> None:
    _signal_shim(rundir, started, signal.SIGKILL)
    deadline = time.monotonic() + _SHIM_DEATH_LIMIT_S
    while is_locked(rundir.shim_lock):
        if time.monotonic() >= deadline:
            raise BusyError(
                f"{rundir.path}: the benchmark's shim holds shim.lock and cannot be ended; is its disk hanging?"
            )
        time.sleep(0.02)
