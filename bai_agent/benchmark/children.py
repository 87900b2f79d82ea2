"""Ends child processes within a time limit. The limit is needed because even SIGKILL does not end a process
that hangs in the kernel, for example on a disk or in a driver."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

log = logging.getLogger(__name__)

KILL_SECONDS = 10.0
"""Longest wait for a process to end after SIGKILL (seconds)."""
_GRACE_SECONDS = 5.0
"""Seconds from SIGTERM to SIGKILL for a child that takes too long."""
_TICK_SECONDS = 0.05


class Stopped(Exception):  # noqa: N818 - it is not an error
    """Raised if a child process was stopped because the run must end."""


def run_in_session(
    argv: Sequence[str],
    output: IO[bytes],
    *,
    env: Mapping[str, str],
    deadline: float,
    stopping: Callable[[], bool],
    **options: Any,
) -> int:
    """Return the exit code of a program that leads a session of its own and prints into the file `output`.

    The output is a file instead of a pipe, because processes that the program leaves behind could keep a pipe
    open. options: further options of Popen. Raises OSError, TimeoutExpired at `deadline`
    (`time.monotonic()`), and Stopped when `stopping()` returns True. Before TimeoutExpired or Stopped is
    raised, the program and its descendants are terminated.
    """
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=env,
        start_new_session=True,
        **options,
    )
    while child.poll() is None:
        late = time.monotonic() >= deadline
        if late or stopping():
            _end_session(child)
            if late:
                raise subprocess.TimeoutExpired(child.args, 0.0)
            raise Stopped
        time.sleep(_TICK_SECONDS)
    return int(child.returncode)


def has_ended(child: subprocess.Popen[Any]) -> bool:
    """Return whether a child process has ended. The child is not reaped, so that the kernel does not reuse
    the number of its session."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def kill_session(child: subprocess.Popen[Any]) -> None:
    """Kill all processes in the session of a child that is not reaped yet, and reap the child with `reap`."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    reap(child)


def _end_session(child: subprocess.Popen[Any]) -> None:
    """End a child that is not reaped yet, and all processes of its session."""
    os.killpg(child.pid, signal.SIGTERM)
    kill_at = time.monotonic() + _GRACE_SECONDS
    while not has_ended(child) and time.monotonic() < kill_at:
        time.sleep(_TICK_SECONDS)
    kill_session(child)


def kill(child: subprocess.Popen[Any]) -> bool:
    """Kill `child`, and return whether `reap` reaped the child."""
    child.kill()
    return reap(child)


def reap(child: subprocess.Popen[Any]) -> bool:
    """Wait for a killed child process, and return whether the child has ended. A child that survives is left
    behind, with a warning in the log."""
    try:
        child.wait(timeout=KILL_SECONDS)
    except subprocess.TimeoutExpired:
        log.warning(
            "process %d did not end within %g s of SIGKILL: it hangs in the kernel and is left behind",
            child.pid,
            KILL_SECONDS,
        )
        return False
    return True
