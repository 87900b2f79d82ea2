"""The Python stacks of the benchmark, by py-spy, into its own log."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping

from bai_agent.benchmark.proc import all_processes, descendants
from bai_agent.benchmark.spawn import forget_signals

TYPE_CHECKING = False  # typing's own would bring typing, a tenth of the shim's memory
if TYPE_CHECKING:
    from typing import Any

MOST = 8
"""Of how many processes at most: the ranks of one node, not every data loader."""
YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_KEEPCAPS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 8, 47, 2
_CAPABILITY_VERSION_3, _CAP_SYS_PTRACE = 0x20080522, 19
"""include/uapi/linux/prctl.h, capability.h; capabilities(7), "Ambient"."""


def python_processes(ancestor: int) -> list[int]:
    """Return the pids of the Python processes below `ancestor`, oldest first."""
    found = [process for process in descendants({ancestor}, all_processes()) if _runs_python(process.pid)]
    return [process.pid for process in sorted(found, key=lambda each: each.start)[:MOST]]


def runs_python(shim: int) -> bool:
    """Return whether a Python is among the processes of the benchmark whose shim this is."""
    own = _command_line(shim)
    # Between its fork and its exec the benchmark looks like the shim.
    return any(_command_line(pid) != own for pid in python_processes(shim))


def start_dump(py_spy: str, pid: int, *, user: Mapping[str, Any] | None = None, yama: str = YAMA) -> int:
    """Start a py-spy that writes the stacks of `pid` to our stdout; return its own pid. Raises OSError.

    user: the benchmark's, if it is not our own. What py-spy reads is that user's to choose, down to the names of the files it opens, so it
    runs as that user. It has none of our environment, which that user could read then.
    """
    program = os.open(py_spy, os.O_RDONLY)
    try:
        helper = os.fork()
        if helper:
            return helper
        try:
            os.setpgid(0, 0)
            forget_signals()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            if user is not None:
                _become(user, keeps_ptrace=_restricts_ptrace(yama))
            # By its descriptor: the user may not be able to enter the folder that it lies in.
            os.set_inheritable(program, True)
            os.execve(program, [py_spy, "dump", "--pid", str(pid)], {})
        except OSError as error:
            os.write(2, os.fsencode(f"[bai] no Python stacks: {py_spy}: {error.strerror}\n"))
        finally:
            os._exit(127)
    finally:
        os.close(program)


def _restricts_ptrace(yama: str) -> bool:
    """Return whether processes of one user may not look into each other; Documentation/admin-guide/LSM/Yama.rst of the kernel."""
    try:
        with open(yama, "rb") as file:
            return file.read().strip() != b"0"
    except OSError:  # a kernel without it
        return False


def _become(user: Mapping[str, Any], *, keeps_ptrace: bool) -> None:
    """Give up all of root's rights, but to look into processes if `keeps_ptrace`. Raises OSError.

    Yama lets the shim's children look into the benchmark's first process alone: its leave (`spawn.py`) is not inherited by ranks.
    """
    libc = ctypes.CDLL(None)
    if keeps_ptrace:
        libc.prctl(_PR_SET_KEEPCAPS, ctypes.c_ulong(1), 0, 0, 0)
    os.setgroups(user["groups"])
    os.setgid(user["gid"])
    os.setuid(user["uid"])
    if keeps_ptrace:
        # A container may not have it; then py-spy says that it may not look. The others end with the exec.
        header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
        one = 1 << _CAP_SYS_PTRACE
        libc.capset(header, struct.pack("=6I", one, one, one, 0, 0, 0))
        ptrace = ctypes.c_ulong(_CAP_SYS_PTRACE)
        libc.prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(_PR_CAP_AMBIENT_RAISE), ptrace, 0, 0)


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
