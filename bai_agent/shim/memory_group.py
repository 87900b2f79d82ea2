"""Creates a cgroup for the benchmark. In the cgroup, the kernel counts the benchmark's memory and
out-of-memory kills.

The new cgroup is below the shim's cgroup. If the kernel or the shim's rights do not allow a new cgroup, the
benchmark runs without one. In cgroup v2, a group that has processes of its own cannot delegate controllers,
unless it is the root group: https://docs.kernel.org/admin-guide/cgroup-v2.html#no-internal-process-constraint
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from bai_agent.shim.proc import read_process

_PREFIX = "bai-"
_MEMORY_MOUNTS = {1: "cgroup .*[ ,]memory(,|$)", 2: "cgroup2 "}
"""Regular expressions that match type, source and options of a cgroup mount that counts memory, by cgroup
version."""


class MemoryGroup:
    """The cgroup of one shim's benchmark. `remove` deletes the cgroup after all its processes have ended."""

    def __init__(self, folder: str, version: int) -> None:
        """Create the group. Raises OSError."""
        os.mkdir(folder, 0o755)
        self._folder = folder
        self._peak_file = f"{folder}/{'memory.peak' if version == 2 else 'memory.max_usage_in_bytes'}"
        self.kills_file = kills_file(folder, version)
        try:
            self.members = os.open(f"{folder}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
            """File descriptor of `cgroup.procs`. A process that writes "0" to the file becomes a member of
            the cgroup."""
        except OSError:
            _remove(folder)
            raise

    def peak(self) -> int | None:
        """Return the peak memory of the group including its page cache (bytes); None if the kernel does not
        report it."""
        try:
            with open(self._peak_file, "rb") as file:
                return int(file.read())
        except (OSError, ValueError):
            return None

    def remove(self) -> None:
        """Delete the cgroup. A cgroup that still has processes is deleted by the next call of
        `remove_abandoned_groups`."""
        os.close(self.members)
        _remove(self._folder)


def make_memory_group() -> MemoryGroup | None:
    """Create a group for this process's benchmark. None if the kernel or this process's rights do not allow a
    new group."""
    parent, version = own_memory_group() or ("", 0)
    me = read_process(os.getpid())
    if me is None or version == 0 or (version == 2 and not _hands_down(parent)):
        return None
    _remove_abandoned(parent)
    try:
        return MemoryGroup(f"{parent}/{_PREFIX}{me.pid}-{me.start}", version)
    except OSError:
        return None


def remove_abandoned_groups() -> None:
    """Delete the cgroups below this process's cgroup that were left by killed shims. Cgroups that still have
    processes are not deleted."""
    if (found := own_memory_group()) is not None:
        _remove_abandoned(found[0])


def own_memory_group(proc: str = "/proc/self") -> tuple[str, int] | None:
    """Return the folder of the cgroup that counts this process's memory, and the cgroup version; None if no
    cgroup counts it."""
    try:
        groups, mounts = _lines(f"{proc}/cgroup"), _lines(f"{proc}/mountinfo")
    except OSError:
        return None
    for hierarchy, controllers, group in (each.split(":", 2) for each in groups if each.count(":") > 1):
        version = 2 if hierarchy == "0" else 1
        if version == 1 and "memory" not in controllers.split(","):
            continue
        for root, point in _cgroup_mounts(mounts, version):
            inside = group[len(root) :] if root != "/" and group.startswith(root) else group
            folder = os.path.normpath(f"{point}/{inside}")
            # In version 2, the root group has no counters, but groups below it can have counters.
            if os.path.exists(kills_file(folder, version)) or (version == 2 and _hands_down(folder)):
                return folder, version
    return None


def _lines(path: str) -> list[str]:
    # The names of folders and mount points can have any encoding.
    with open(path, "rb") as file:
        return [os.fsdecode(line.rstrip(b"\n")) for line in file]


def _cgroup_mounts(mounts: list[str], version: int) -> Iterator[tuple[str, str]]:
    """Yield root and mount point of each cgroup mount that possibly counts memory."""
    for mount in mounts:
        # Any number of optional fields precede the separator: proc_pid_mountinfo(5).
        place, _, kind = mount.partition(" - ")
        if re.match(_MEMORY_MOUNTS[version], kind):
            root, point = place.split(" ")[3:5]
            yield _unescaped(root), _unescaped(point)


def kills_file(folder: str, version: int) -> str:
    """Return the path of the file in which a cgroup counts out-of-memory kills."""
    return f"{folder}/{'memory.events' if version == 2 else 'memory.oom_control'}"


def _remove_abandoned(parent: str) -> None:
    for name in os.listdir(parent) if os.access(parent, os.R_OK) else ():
        if found := re.fullmatch(rf"{_PREFIX}(\d+)-(\d+)", name):
            shim = read_process(int(found[1]))
            if shim is None or shim.start != int(found[2]) or shim.state in "ZX":
                _remove(f"{parent}/{name}")


def _hands_down(folder: str) -> bool:
    """Return whether the child cgroups of this cgroup (version 2) count memory."""
    try:
        with open(f"{folder}/cgroup.subtree_control", "rb") as file:
            return b"memory" in file.read().split()
    except OSError:
        return False


def _remove(folder: str) -> None:
    """Delete a group and the groups that the benchmark created in it, except groups that still have
    processes."""
    for each, _, _ in os.walk(folder, topdown=False):
        try:
            os.rmdir(each)
        except OSError:  # already deleted, or has processes
            pass


def _unescaped(name: str) -> str:
    """Decode a name in mountinfo, in which the kernel writes spaces, newlines and backslashes as octal
    escapes."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), name)


KILLED = 9
SHELL_KILLED = 128 + KILLED
"""Exit code of a shell whose command was killed by SIGKILL."""


class OomWatch:
    """Detects out-of-memory kills. The watch compares the kernel's counters with their values at its
    start."""

    def __init__(self, benchmark_group: str | None = None) -> None:
        """benchmark_group: the `kills_file` of the benchmark's cgroup, if it has one."""
        # cgroup version 1 counts a kill only in the group of the killed process, not in the groups above it.
        self._own_files = [path for path in (_own_counter_file(), benchmark_group) if path is not None]
        self._own = [_read_counter(path) for path in self._own_files]
        self._machine = _read_counter("/proc/vmstat")

    def struck(self, *, code: int | None, signal: int | None) -> bool:
        """Return whether the kernel killed a process of the benchmark because memory ran out. code, signal:
        how the benchmark ended.

        An out-of-memory kill that the shim's or the benchmark's cgroup counted is a kill of the benchmark.
        The machine's counter also counts kills of other programs. The machine's counter is therefore used
        only if SIGKILL ended the benchmark, or if the benchmark's shell reported SIGKILL. If there is no
        cgroup counter, the machine's counter is used after any failure.
        """
        if code is None and signal is None:
            return False
        for path, before in zip(self._own_files, self._own, strict=True):
            now = _read_counter(path)
            if now is not None and before is not None and now > before:
                return True
        machine = _read_counter("/proc/vmstat")
        if machine is None or self._machine is None or machine <= self._machine:
            return False
        unknown = all(each is None for each in self._own)
        return (unknown and code != 0) or signal == KILLED or code == SHELL_KILLED


def _read_counter(path: str) -> int | None:
    """Return the number after `oom_kill` in a file of "name number" lines; None if there is no such file or
    line."""
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
    """Return the path of the file in which the shim's own cgroup counts out-of-memory kills; None if there is
    no such file."""
    found = own_memory_group(proc)
    return kills_file(*found) if found is not None else None
