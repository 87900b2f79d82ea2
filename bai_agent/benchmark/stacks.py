"""The Python stacks of the benchmark, by py-spy, into its own log."""

from __future__ import annotations

import os

from bai_agent.benchmark.proc import all_processes, descendants

MOST = 8
"""Of how many processes at most: the ranks of one node, not every data loader."""


def python_processes(ancestor: int) -> list[int]:
    """Return the pids of the Python processes below `ancestor`, oldest first."""
    found = [process for process in descendants({ancestor}, all_processes()) if _runs_python(process.pid)]
    return [process.pid for process in sorted(found, key=lambda each: each.start)[:MOST]]


def runs_python(shim: int) -> bool:
    """Return whether a Python is among the processes of the benchmark whose shim this is."""
    own = _command_line(shim)
    # Between its fork and its exec the benchmark looks like the shim.
    return any(_command_line(pid) != own for pid in python_processes(shim))


def start_dump(py_spy: str, pid: int) -> int:
    """Start a py-spy that writes the stacks of `pid` to our stdout; return its own pid. Raises OSError."""
    null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    return os.posix_spawn(
        py_spy, [py_spy, "dump", "--pid", str(pid)], os.environ, file_actions=[null], setpgroup=0
    )


def _command_line(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:  # gone
        return b""


def _runs_python(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    except OSError:  # gone, or not ours to look at
        return False
