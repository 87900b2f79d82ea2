"""Reads information about processes from /proc. This module imports little, because the shim stays in
memory."""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False  # importing typing would be a tenth of the shim's memory
if TYPE_CHECKING:
    from typing import Any

RUN_MARKER = "BAI_RUN_DIR"
"""Environment variable of the benchmark with the path of the run directory. It shows to which run a process
belongs."""
_MOST_PYTHONS = 8
"""Largest number of Python processes that are returned. The limit is large enough for a node's ranks, but too
small for all data loaders."""


class Process:
    """A process in the process table. `start`, in clock ticks since boot, tells two processes with the same
    pid apart."""

    __slots__ = ("group", "name", "parent", "pid", "session", "start", "state")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The process's name is in parentheses, and can itself contain parentheses and spaces:
        # proc_pid_stat(5).
        end = stat.rindex(b")")
        fields = stat[end + 2 :].split()
        self.pid = pid
        self.name = stat[stat.index(b"(") + 1 : end].decode(errors="replace")
        self.state = fields[0].decode()
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.start = int(fields[19])

    @property
    def identity(self) -> tuple[int, int]:
        """Pid and start time, which identify the process until the next reboot."""
        return self.pid, self.start


def read_process(pid: int) -> Process | None:
    """Return the process with this pid. Return None if the process does not exist or is hidden.

    With the mount option hidepid, the files of other users' processes do not exist in /proc or cannot be
    read: proc(5).
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return Process(pid, file.read())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def all_processes() -> list[Process]:
    """Return all visible processes."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def child_pids() -> list[int]:
    """Return the pids of this thread's children, including hidden processes. Return an empty list if the
    kernel does not list children."""
    try:
        with open("/proc/thread-self/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def descendants(roots: set[int], processes: list[Process]) -> list[Process]:
    """Return all descendants of the pids `roots` in `processes`, except the roots and zombies."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    seen = set(roots)
    waiting = list(roots)
    while waiting:
        for process in children.get(waiting.pop(), []):
            if process.pid not in seen:
                seen.add(process.pid)
                waiting.append(process.pid)
                if process.state not in "ZX":
                    found.append(process)
    return found


def send_signal(process: Process, number: int) -> bool:
    """Send a signal to exactly this process, never to another process with the same pid. Return whether the
    process got the signal."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except (
        OSError
    ):  # The kernel or a sandbox lacks pidfd_open, so the check below leaves a window of microseconds.
        descriptor = -1
    try:
        now = read_process(process.pid)
        if now is None or now.start != process.start:
            return False
        if descriptor < 0:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return True


def own_usage() -> dict[str, Any]:
    """Return `cpu_seconds` (user and system) and `peak_memory_bytes` of this process without its children.

    `peak_memory_bytes` is None if the kernel does not report it. The maximum of getrusage(2) is not used,
    because a child process starts with the maximum of its parent. Even after an exec, a small child of a
    large parent would seem large.
    """
    peak = None
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmHWM:"):
                    peak = int(line.split()[1]) * 1024
    except OSError:  # /proc may have been unmounted. The caller's next write matters more.
        pass
    return {"cpu_seconds": round(time.process_time(), 3), "peak_memory_bytes": peak}


def boot_id() -> str:
    """Return the random id that the kernel chose at this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def python_processes(ancestor: int) -> list[int]:
    """Return the pids of the Python processes below `ancestor`, oldest first."""
    found = [process for process in descendants({ancestor}, all_processes()) if _runs_python(process.pid)]
    return [process.pid for process in sorted(found, key=lambda each: each.start)[:_MOST_PYTHONS]]


def runs_python(shim: int) -> bool:
    """Return whether the benchmark below a shim has a Python process. shim: the shim's pid."""
    own = _command_line(shim)
    # Between its fork and its exec, the benchmark's process looks like the shim, which is a Python.
    return any(_command_line(pid) != own for pid in python_processes(shim))


def _command_line(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:  # the process has ended
        return b""


def _runs_python(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    except OSError:  # the process has ended, or belongs to another user
        return False
