"""The end of a child process, within a bound: one that hangs in the kernel, on a disk or a driver, outlives even SIGKILL."""

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
"""For a killed process to be gone."""
_GRACE_SECONDS = 5.0
"""From SIGTERM to SIGKILL for a child that takes too long."""
_TICK_SECONDS = 0.05


class Stopped(Exception):  # noqa: N818 - it is not an error
    """A child was ended because the run is to end."""


def wait_within(child: subprocess.Popen[Any], *, deadline: float, stopping: Callable[[], bool]) -> int:
    """Return the exit code of a child that leads a session of its own, and prints into no pipe.

    Raises TimeoutExpired at `deadline` (of `time.monotonic()`) and Stopped once `stopping()`; it has been ended then, with what it
    started.
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
    """End a child and what it started: its session is its own, and it is not yet reaped."""
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
    """Wait for a child that was killed; return whether it is gone. If not, it is left behind, with a line in the log."""
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
