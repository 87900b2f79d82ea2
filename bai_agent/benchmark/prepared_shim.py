"""Starts the benchmark's shim before the order for the shim is known. The shim loads its modules in parallel
with the agent, and then waits for the agent's order to run the benchmark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import bai_agent
from bai_agent.benchmark.children import kill
from bai_agent.job.run_directory import RunDir

SHIM = Path(bai_agent.__file__).parent / "shim" / "shim.py"
"""Path of the shim's program, which the agent does not import."""


class PreparedShim:
    """A shim that waits for its order. The shim ends by itself if the agent dies first."""

    def __init__(self, rundir: RunDir) -> None:
        self._rundir = rundir
        self._child: subprocess.Popen[bytes] | None = self._start()

    def take(self) -> subprocess.Popen[bytes]:
        """Return the waiting shim, or a new shim if the waiting shim has died or is already in use."""
        child, self._child = self._child, None
        return child if child is not None and child.poll() is None else self._start()

    def close(self) -> None:
        """End a shim that was not used."""
        if self._child is not None:
            kill(self._child)
            for stream in (self._child.stdin, self._child.stderr):
                if stream is not None:
                    stream.close()
            self._child = None

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", str(SHIM), str(self._rundir.shim_folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
