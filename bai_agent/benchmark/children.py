"""The end of a child process, within a bound: one that hangs in the kernel, on a disk or a driver, outlives even SIGKILL."""

from __future__ import annotations

import logging
import subprocess
from typing import Any

log = logging.getLogger(__name__)

KILL_SECONDS = 10.0
"""For a killed process to be gone."""


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
