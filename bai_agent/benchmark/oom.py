"""How often the kernel's out-of-memory killer has struck, in our cgroup and on the whole machine."""

from __future__ import annotations

import os
import re

KILLED = 9
SHELL_KILLED = 128 + KILLED
"""What a shell exits with when its command died of SIGKILL."""


class OomWatch:
    """Remembers the counters as they are now; `struck` compares."""

    def __init__(self) -> None:
        self._own_file = _own_counter_file()
        self._own = _read_counter(self._own_file)
        self._machine = _read_counter("/proc/vmstat")

    def struck(self, *, code: int | None, signal: int | None) -> bool:
        """Return whether the killer took a process of the benchmark that ended with this code or signal.

        The counter of our own cgroup is believed. The machine's counts the neighbours' dead too: it is believed for a
        SIGKILL (the benchmark's own, or the one that its shell reports), and for a bad end where there is no other.
        """
        if code is None and signal is None:
            return False
        own = _read_counter(self._own_file)
        if own is not None and self._own is not None and own > self._own:
            return True
        machine = _read_counter("/proc/vmstat")
        if machine is None or self._machine is None or machine <= self._machine:
            return False
        return (self._own is None and code != 0) or signal == KILLED or code == SHELL_KILLED


def _read_counter(path: str | None) -> int | None:
    """Return the `oom_kill` in a file of "name number" lines; None where there is no such file or line."""
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            for line in file:
                name, _, number = line.partition(b" ")
                if name == b"oom_kill":
                    return int(number)
    except (OSError, ValueError):
        return None
    return None


def _own_counter_file(proc: str = "/proc/self") -> str | None:
    """Return the file that counts the kills in our cgroup: memory.events of version 2, memory.oom_control of 1."""
    try:
        # The names of folders and mount points are bytes, in any encoding or none.
        with open(f"{proc}/cgroup", "rb") as file:
            groups = [os.fsdecode(line.rstrip(b"\n")).split(":", 2) for line in file]
        with open(f"{proc}/mountinfo", "rb") as file:
            mounts = [os.fsdecode(line.rstrip(b"\n")).split(" ") for line in file]
    except OSError:
        return None
    groups = [group for group in groups if len(group) == 3]
    for hierarchy, controllers, group in groups:
        if hierarchy != "0" and "memory" not in controllers.split(","):
            continue
        kind, name = ("cgroup2", "memory.events") if hierarchy == "0" else ("cgroup", "memory.oom_control")
        for mount in mounts:
            # Fields of any number stand before the separator: proc_pid_mountinfo(5).
            if "-" not in mount[6:-3]:
                continue
            separator = mount.index("-", 6)
            if mount[separator + 1] != kind or (kind == "cgroup" and "memory" not in mount[-1].split(",")):
                continue
            root, point = _unescaped(mount[3]), _unescaped(mount[4])
            inside = group[len(root) :] if root != "/" and group.startswith(root) else group
            path = os.path.normpath(f"{point}/{inside}/{name}")
            if _read_counter(path) is not None:
                return path
    return None


def _unescaped(name: str) -> str:
    """Return a name of mountinfo as it is: the kernel writes spaces, newlines and backslashes in octal."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), name)
