"""Ends child processes within a time limit: a process that hangs in the kernel, on a disk or a driver, survives even SIGKILL."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

log = logging.getLogger(__name__)

KILL_SECONDS = 10.0
"""Seconds for a killed process to disappear."""
_GRACE_SECONDS = 5.0
"""Seconds from SIGTERM to SIGKILL for a child that takes too long."""
_TICK_SECONDS = 0.05


class Stopped(Exception):  # noqa: N818 - it is not an error
    """A child was ended because the run is to end."""


def wait_within(child: subprocess.Popen[Any], *, deadline: float, stopping: Callable[[], bool]) -> int:
    """Return the exit code of a child that leads a session of its own and prints into no pipe.

    Raises TimeoutExpired at `deadline` (of `time.monotonic()`) and Stopped once `stopping()`, after ending the child
    and its descendants.
    """
    while child.poll() is None:
        late = time.monotonic() >= deadline
        if late or stopping():
            end_session(child)
            if late:
                raise subprocess.TimeoutExpired(child.args, 0.0)
            raise Stopped
        time.sleep(_TICK_SECONDS)
    return int(child.returncode)


def end_session(child: subprocess.Popen[Any]) -> None:
    """End a child that is not reaped yet, with its session."""
    os.killpg(child.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    reap(child)


def kill(child: subprocess.Popen[Any]) -> bool:
    """Kill `child`; return whether it is gone, see `reap`."""
    child.kill()
    return reap(child)


def reap(child: subprocess.Popen[Any]) -> bool:
    """Wait for a killed child; return whether it is gone. If not, leave it behind with a warning in the log."""
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
