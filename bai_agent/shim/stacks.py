"""With py-spy, writes the stacks of the benchmark's Python processes into the benchmark's log."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import time
from collections.abc import Callable, Mapping

from bai_agent.shim.proc import python_processes
from bai_agent.shim.spawn import forget_signals

TYPE_CHECKING = False  # importing typing would be a tenth of the shim's memory
if TYPE_CHECKING:
    from typing import Any

    from bai_agent.shim.loop import Loop

YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_LIMIT_S = 5.0
"""Time limit for the stacks of all processes together (seconds)."""
_PR_SET_KEEPCAPS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 8, 47, 2
_CAPABILITY_VERSION_3, _CAP_SYS_PTRACE = 0x20080522, 19
"""Constants of include/uapi/linux/prctl.h and capability.h; see capabilities(7), "Ambient"."""


def dump_stacks(
    loop: Loop, *, py_spy: str | None, user: Mapping[str, Any] | None, say: Callable[[str], None]
) -> None:
    """Write the stacks of all Python processes below this process into the benchmark's log.

    The function stops early if the benchmark ends. say: function that adds a line to the log.
    """
    pids = python_processes(os.getpid())
    if not pids:
        return
    if py_spy is None:
        say("no Python stacks: py-spy is not installed beside the agent or on PATH (pip install py-spy)")
        return
    limit = time.monotonic() + _LIMIT_S
    for pid in pids:
        if time.monotonic() >= limit or loop.status is not None:
            return
        say(f"the Python stacks of process {pid} before it is ended:")
        try:
            helper = loop.helper = start_dump(py_spy, pid, user=user)
        except OSError as error:
            say(f"no Python stacks: {py_spy}: {error.strerror}")
            return
        loop.pump_until(lambda: not loop.helper, lambda: limit, tick=0.02)
        if loop.helper:
            os.kill(helper, signal.SIGKILL)  # the pid is exact, because our child is not reaped yet
            loop.pump_until(lambda: not loop.helper, lambda: limit + 1, tick=0.02)
            say(f"no more Python stacks: py-spy took longer than {_LIMIT_S:g} s")


def start_dump(py_spy: str, pid: int, *, user: Mapping[str, Any] | None = None, yama: str = YAMA) -> int:
    """Start py-spy, which writes the stacks of the process `pid` to the shim's stdout. Return py-spy's pid.
    Raises OSError.

    user: the benchmark's user, if it differs from the shim's. The benchmark controls what py-spy reads, even
    the names of files. Therefore, py-spy runs as the benchmark's user. py-spy does not get the shim's
    environment, because the benchmark's user could read it.
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
            # py-spy is executed by its file descriptor, because the benchmark's user is possibly not allowed
            # to enter its folder.
            os.set_inheritable(program, True)
            os.execve(program, [py_spy, "dump", "--pid", str(pid)], {})
        except OSError as error:
            os.write(2, os.fsencode(f"[bai] no Python stacks: {py_spy}: {error.strerror}\n"))
        finally:
            os._exit(127)
    finally:
        os.close(program)


def _restricts_ptrace(yama: str) -> bool:
    """Return whether Yama keeps a user's processes from tracing each other; see
    Documentation/admin-guide/LSM/Yama.rst of the kernel."""
    try:
        with open(yama, "rb") as file:
            return file.read().strip() != b"0"
    except OSError:  # the kernel has no Yama
        return False


def _become(user: Mapping[str, Any], *, keeps_ptrace: bool) -> None:
    """Drop root's rights. keeps_ptrace: whether this process keeps the right to trace other processes. Raises
    OSError.

    Without the right to trace, py-spy could only trace the benchmark's first process if the kernel uses Yama.
    The first process allows tracing in `spawn.py`, but its child processes do not inherit this setting.
    """
    libc = ctypes.CDLL(None)
    if keeps_ptrace:
        libc.prctl(_PR_SET_KEEPCAPS, ctypes.c_ulong(1), 0, 0, 0)
    os.setgroups(user["groups"])
    os.setgid(user["gid"])
    os.setuid(user["uid"])
    if keeps_ptrace:
        # In a container without this capability, py-spy reports that it is not allowed to trace. All other
        # rights end with the exec.
        header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
        one = 1 << _CAP_SYS_PTRACE
        libc.capset(header, struct.pack("=6I", one, one, one, 0, 0, 0))
        ptrace = ctypes.c_ulong(_CAP_SYS_PTRACE)
        libc.prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(_PR_CAP_AMBIENT_RAISE), ptrace, 0, 0)
