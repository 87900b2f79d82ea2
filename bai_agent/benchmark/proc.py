"""What /proc says about processes. It imports little, as the shim lives on it."""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False  # typing's own would bring typing, a tenth of the shim's memory
if TYPE_CHECKING:
    from typing import Any

RUN_MARKER = "BAI_RUN_DIR"
"""The variable by which every process of a benchmark that keeps its environment tells which run it belongs to."""


class Process:
    """One line of the process table. `start`, in clock ticks since boot, tells a reused pid from the old one."""

    __slots__ = ("group", "name", "parent", "pid", "session", "start", "state")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The name stands in parentheses and may hold anything, parentheses and spaces included: proc_pid_stat(5).
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
        """What no other process of this boot has."""
        return self.pid, self.start


def read_process(pid: int) -> Process | None:
    """Return the process `pid`; None where there is none (any more), or none that we may see.

    Mounted with hidepid, /proc hides other users' processes (proc(5)): their files do not exist, or may not be read.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return Process(pid, file.read())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def all_processes() -> list[Process]:
    """Return every process that we may see."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def child_pids() -> list[int]:
    """Return the pids of this thread's own children, even of those that hidepid hides; empty on a kernel without that list."""
    try:
        with open("/proc/thread-self/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def descendants(roots: set[int], processes: list[Process]) -> list[Process]:
    """Return those of `processes` that descend from one of the pids `roots`, zombies excepted, the roots too."""
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
    """Send a signal to this very process, never to one that has its pid by now. Return whether it was sent."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except (
        OSError
    ):  # a kernel or a sandbox without pidfd_open: the check below leaves a window of microseconds
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
    """Return what this process has taken so far, without its children: `cpu_seconds` (user and system) and `peak_memory_bytes`.

    The latter is None where the kernel does not say. getrusage(2) would say too much: its maximum survives an exec, so
    that a small child of a large parent looks as large.
    """
    peak = None
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmHWM:"):
                    peak = int(line.split()[1]) * 1024
    except OSError:  # it has been unmounted meanwhile; what the caller writes next is worth more
        pass
    return {"cpu_seconds": round(time.process_time(), 3), "peak_memory_bytes": peak}


def boot_id() -> str:
    """Return the id that the kernel drew at this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
