"""Facts about this machine from the kernel and the image, and warnings about facts that distort a measurement.

Reads only small files below `root`, up to a limit. Files that are missing or malformed are left out.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

TEXT_CHARACTERS = 200
"""Longest text that is stored (characters). Longer texts are truncated."""
_FILE_BYTES = 65536
_CPUINFO_BYTES = 4096
"""Number of bytes to read of /proc/cpuinfo. These bytes describe the first processor. The kernel would take
long to list hundreds of processors."""
_ENTRIES = 64
"""Maximum number of disks, interfaces, options and similar entries in a list."""

_BUSY_CORES = 0.5
"""Another process that uses at least this number of cores distorts a measurement."""
_BUSY_SECONDS = 2.0
"""Minimum total processor time of a process that distorts a measurement (seconds). A process with less
processor time is possibly new and ends soon."""
_BUSY_SHARE = 0.1
"""Share of all processors below which other processes do not disturb a benchmark that leaves some processors
free."""
_OWN_GOVERNORS = ("intel_pstate", "amd-pstate-epp")
"""Drivers whose usual governor "powersave" reaches full speed:
https://docs.kernel.org/admin-guide/pm/intel_pstate.html
"""
_LOAD_SHARE = 0.5
_SWAP_SHARE = 0.01
_LISTED_PROCESSES = 5
_LISTED_CORES = 0.05

Facts = dict[str, Any]
Look = tuple[float, dict[int, tuple[int, int, int, str]]]
"""A time (`time.monotonic()`), and the processes at that time as `processor_times` returns them."""


def read_text(path: Path | str, limit: int = _FILE_BYTES) -> str:
    """Return the beginning of a file as text; "" if it cannot be read."""
    try:
        # Without O_NONBLOCK, a FIFO at this path would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        content = b""
        while len(content) < limit and (piece := os.read(descriptor, limit - len(content))):
            content += piece
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return content.decode(errors="replace").replace("\0", " ").strip()


def present(facts: Mapping[str, Any]) -> Facts:
    """Return `facts` without empty values. An empty value means that a fact could not be read."""
    return {key: value for key, value in facts.items() if value not in (None, "", [], {})}


def short(text: str) -> str:
    """Return a text as one line of limited length."""
    return " ".join(text.split())[:TEXT_CHARACTERS]


def system(root: Path) -> Facts:
    """Return kernel, distribution, and the image's name."""
    release = _assignments(read_text(root / "etc/os-release") or read_text(root / "usr/lib/os-release"))
    image = _assignments(read_text(root / "etc/image-id"))
    build = {
        key.strip(): value.strip()
        for key, mark, value in (
            line.partition(":") for line in read_text(root / "etc/cloud/build.info").splitlines()
        )
        if mark
    }
    name = " ".join(image[key] for key in ("image_name", "image_version") if image.get(key))
    return present(
        {
            "kernel": short(read_text(root / "proc/sys/kernel/osrelease")),
            "architecture": os.uname().machine,
            "distribution": short(release.get("PRETTY_NAME") or release.get("NAME", "")),
            "image_name": short(
                name or " ".join(filter(None, (build.get("build_name"), build.get("serial"))))
            ),
            "boot_parameters": _boot_parameters(read_text(root / "proc/cmdline")),
        }
    )


def cpu(root: Path) -> Facts:
    """Return the processors: model, number, NUMA nodes, governors and frequencies."""
    text = read_text(root / "proc/cpuinfo", _CPUINFO_BYTES)
    first = text.split("\n\n")[0]
    said = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())
    }
    model = said.get("model name", "")
    if not model and "CPU part" in said:
        model = f"implementer {said.get('CPU implementer', '?')}, part {said['CPU part']}"
    folders = root / "sys/devices/system"
    online = _count(read_text(folders / "cpu/online"))
    frequency = folders / "cpu/cpu0/cpufreq"
    governors = {
        short(read_text(each))
        for each in _some(folders.glob("cpu/cpu[0-9]*/cpufreq/scaling_governor"), most=1024)
    }
    mhz = _number(said.get("cpu MHz", ""))
    return present(
        {
            "model": short(model),
            "count": online,
            "usable": len(os.sched_getaffinity(0)) if root == Path("/") else None,
            "threads_per_core": _count(read_text(folders / "cpu/cpu0/topology/thread_siblings_list")),
            "numa_nodes": _count(read_text(folders / "node/online")),
            "virtualised": True if re.search(r"\bhypervisor\b", said.get("flags", "")) else None,
            "governors": sorted(filter(None, governors)),
            "scaling_driver": short(read_text(frequency / "scaling_driver")),
            "mhz": _mhz(frequency / "scaling_cur_freq") or (round(mhz) if mhz else None),
            "max_mhz": _mhz(frequency / "cpuinfo_max_freq"),
        }
    )


def memory(root: Path) -> Facts:
    """Return memory, swap and huge pages, in bytes."""
    said = {}
    for line in read_text(root / "proc/meminfo").splitlines():
        if found := re.fullmatch(r"(\w+):\s+(\d{1,15}) kB", line.strip()):
            said[found[1]] = int(found[2]) * 1024
    swap = said.get("SwapTotal")
    used = None if swap is None else max(0, swap - said.get("SwapFree", swap))
    pages = re.search(r"\[(\w+)\]", read_text(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    return present(
        {
            "total_bytes": said.get("MemTotal"),
            "available_bytes": said.get("MemAvailable"),
            "swap_bytes": swap,
            "swap_used_bytes": used,
            "transparent_huge_pages": pages[1] if pages else None,
        }
    )


def disks(root: Path) -> list[Facts]:
    """Return the physical disks. Loop devices and RAM disks are left out."""
    found = []
    for disk in _some(sorted((root / "sys/block").glob("*"))):
        sectors = whole(read_text(disk / "size"))
        if not sectors or not (disk / "device").exists():
            continue
        found.append(
            present(
                {
                    "name": short(disk.name),
                    "model": short(read_text(disk / "device/model")),
                    "bytes": sectors * 512,
                    "rotates": read_text(disk / "queue/rotational") == "1",
                    "scheduler": _chosen(read_text(disk / "queue/scheduler")),
                }
            )
        )
    return found


def network(root: Path) -> list[Facts]:
    """Return the physical network interfaces. Virtual interfaces without a device are left out."""
    found = []
    for interface in _some(sorted((root / "sys/class/net").glob("*"))):
        if not (interface / "device").exists():
            continue
        speed = whole(read_text(interface / "speed"))
        driver = interface / "device/driver"
        found.append(
            present(
                {
                    "name": short(interface.name),
                    "driver": short(driver.resolve().name) if driver.exists() else None,
                    # The speed is -1 if the driver does not know the speed, as in most virtual machines.
                    "mbit_per_second": speed if speed and speed > 0 else None,
                    "mtu": whole(read_text(interface / "mtu")),
                    "state": short(read_text(interface / "operstate")),
                }
            )
        )
    return found


READERS: Mapping[str, Callable[[Path], Any]] = {
    "system": system,
    "cpu": cpu,
    "memory": memory,
    "disks": disks,
    "network": network,
}
"""Functions that read a table of `environment.json` from files below a root folder, by table name."""


def mounts(root: Path) -> list[list[str]]:
    """Return device, mount point, type and options of each mounted file system, in the order of mounting."""
    lines = [line.split(" ") for line in read_text(root / "proc/self/mounts", 1 << 20).splitlines()]
    return [[_unescaped(each) for each in fields[:4]] for fields in lines if len(fields) >= 4]


def mount_of(folder: Path, root: Path) -> Facts:
    """Return the file system of `folder`. Omits options with values, because they may contain credentials."""
    path = os.path.realpath(folder)
    above = [
        fields for fields in mounts(root) if path == fields[1] or path.startswith(fields[1].rstrip("/") + "/")
    ]
    if not above:
        return {}
    # If several file systems are mounted at one mount point, the last of them is on top.
    device, point, kind, options = max(reversed(above), key=lambda fields: len(fields[1]))
    try:
        usage = os.statvfs(folder)
    except OSError:
        usage = None
    return present(
        {
            "point": short(point),
            "device": short(device),
            "type": short(kind),
            "options": [short(each) for each in options.split(",") if "=" not in each][:_ENTRIES],
            "bytes": usage and usage.f_blocks * usage.f_frsize,
            "free_bytes": usage and usage.f_bavail * usage.f_frsize,
        }
    )


def load_average(root: Path) -> list[float]:
    """Return the load averages of 1, 5 and 15 minutes; [] if the kernel does not report them."""
    found = [_number(each) for each in read_text(root / "proc/loadavg").split()[:3]]
    known = [each for each in found if each is not None]
    return known if len(known) == 3 else []


def runnable(root: Path) -> int:
    """Return the number of threads that are runnable now, without the calling thread."""
    fields = read_text(root / "proc/loadavg").split()
    wants = whole(fields[3].partition("/")[0]) if len(fields) > 3 else None
    return max(0, (wants or 0) - 1)


def look() -> Look:
    """Read the processor times of all processes of this machine."""
    return time.monotonic(), processor_times(Path("/"))


def processor_times(root: Path) -> dict[int, tuple[int, int, int, str]]:
    """Return, for the pid of each process, the parent's pid, the process's start and used processor time
    (clock ticks), and its name."""
    found = {}
    folder, names = f"{root}/proc", list[str]()
    # No regular expression and no Path is used per process, because large machines have thousands of
    # processes.
    with suppress(OSError), os.scandir(folder) as entries:
        names = [each.name for each in entries if each.name.isascii() and each.name.isdecimal()]
    for name in names:
        text = read_text(f"{folder}/{name}/stat", 1024)
        # The process's name is in parentheses and may contain any character: proc_pid_stat(5).
        program, mark, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        if mark and len(fields) > 19:
            with suppress(ValueError):
                parent, start, user, kernel = (int(fields[index]) for index in (1, 19, 11, 12))
                found[int(name)] = (parent, start, user + kernel, short(program))
    return found


def busiest(
    before: Mapping[int, tuple[int, int, int, str]],
    now: Mapping[int, tuple[int, int, int, str]],
    *,
    elapsed_s: float,
    ours: int,
    root: Path,
) -> list[Facts]:
    """Return the processes that used the most processor time between two calls of `look`.

    The process `ours`, its ancestors and its descendants are left out.
    """
    left_out = _family(now, ours)
    ticks = os.sysconf("SC_CLK_TCK") * max(elapsed_s, 1e-3)
    cores = {
        pid: (now[pid][2] - before[pid][2]) / ticks
        for pid in now
        if pid not in left_out and pid in before and before[pid][1] == now[pid][1]
    }
    top = sorted((pid for pid in cores if cores[pid] >= _LISTED_CORES), key=lambda pid: -cores[pid])
    names = _user_names(root)
    return [
        {
            "name": now[pid][3],
            "user": _user(pid, names, root),
            "cores": round(cores[pid], 2),
            "cpu_seconds": round(now[pid][2] / os.sysconf("SC_CLK_TCK"), 2),
        }
        for pid in top[:_LISTED_PROCESSES]
    ]


def host_warnings(
    facts: Mapping[str, Any], *, load_before: Iterable[float], runnable_now: int
) -> dict[str, bool]:
    """Return a warning for each fact that certainly distorts a measurement, and whether the warning is minor.

    Minor warnings are usual on desktop machines, so summaries omit them.
    """
    processors = facts.get("cpu", {})
    load, count = facts.get("load", {}), processors.get("count")
    warnings = {**_governor_warnings(processors), **_busy_warnings(load.get("busiest", ()), count)}
    averages = load.get("average") or [0.0]
    earlier = [*load_before, 0.0][0]
    # All three values must be high. The load average alone may be high because of our own pull or a boot that
    # has finished.
    if count and min(averages[0], earlier, float(runnable_now)) > _LOAD_SHARE * count:
        warnings[
            f"The load average was {averages[0]:g} just before the benchmark, with {count} processors."
        ] = False
    space = facts.get("memory", {})
    used = space.get("swap_used_bytes", 0)
    if used and used >= _SWAP_SHARE * space.get("total_bytes", 0):
        warnings[f"{used / 2**20:,.0f} MiB of swap were in use just before the benchmark."] = False
    return warnings


def _governor_warnings(processors: Mapping[str, Any]) -> dict[str, bool]:
    slow = [each for each in processors.get("governors", ()) if each != "performance"]
    if not slow:
        return {}
    usual = processors.get("scaling_driver") in _OWN_GOVERNORS and set(slow) == {"powersave"}
    return {
        f'The frequency governor of the processors is "{slow[0]}", not "performance": their speed may vary.': usual
    }


def _busy_warnings(busiest: Sequence[Mapping[str, Any]], count: int | None) -> dict[str, bool]:
    busy = [each for each in busiest if each["cores"] >= _BUSY_CORES and each["cpu_seconds"] >= _BUSY_SECONDS]
    if not busy:
        return {}
    named = ", ".join(f"{each['name']} ({each['user']}) {each['cores']:g}" for each in busy)
    few = sum(each["cores"] for each in busiest) < _BUSY_SHARE * (count or 1)
    return {f"Other processes were busy just before the benchmark; cores used: {named}.": few}


def _family(processes: Mapping[int, tuple[int, int, int, str]], ours: int) -> set[int]:
    ancestors = set()
    pid = ours
    while pid in processes and pid not in ancestors:
        ancestors.add(pid)
        pid = processes[pid][0]
    children: dict[int, list[int]] = {}
    for each, (parent, *_) in processes.items():
        children.setdefault(parent, []).append(each)
    waiting, found = [ours], {ours}
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return ancestors | found


def _user_names(root: Path) -> dict[int, str]:
    # The module pwd is not used, because it may hang if the accounts come from a network service.
    names: dict[int, str] = {}
    for line in read_text(root / "etc/passwd").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2].isascii() and fields[2].isdecimal():
            names.setdefault(int(fields[2][:10]), short(fields[0]))
    return names


def _user(pid: int, names: Mapping[int, str], root: Path) -> str:
    try:
        number = (root / f"proc/{pid}").stat().st_uid
    except OSError:
        return "?"
    return names.get(number, str(number))


def _assignments(text: str) -> dict[str, str]:
    """Return the assignments in a file such as os-release(5)."""
    found = {}
    for line in text.splitlines():
        key, mark, value = line.partition("=")
        if mark and not key.startswith("#"):
            found[key.strip()] = value.strip().strip("\"'")
    return found


_PLAIN_PARAMETERS = re.compile(
    r"(?:mitigations|isolcpus|nohz_full|rcu_nocbs|intel_idle\.max_cstate|processor\.max_cstate|"
    r"transparent_hugepage|hugepages|hugepagesz|default_hugepagesz|numa_balancing|nosmt|iommu|idle)(?:=\S+)?"
)
"""Kernel parameters that change measurements. Other kernel parameters are left out, because they may contain
passwords."""


def _boot_parameters(text: str) -> list[str]:
    return [short(each) for each in text.split() if _PLAIN_PARAMETERS.fullmatch(each)][:_ENTRIES]


def _count(text: str) -> int | None:
    """Return how many numbers a list of the kernel such as "0-3,8" contains; None if the list is
    malformed."""
    total = 0
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if found is None:
            return None
        total += max(0, int(found[2] or found[1]) - int(found[1]) + 1)
    return total


def _chosen(text: str) -> str | None:
    found = re.search(r"\[([^\]]+)\]", text)
    return short(found[1]) if found else None


def _unescaped(text: str) -> str:
    """Decode a field of /proc/mounts: proc_pid_mounts(5)."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _mhz(path: Path) -> int | None:
    khz = whole(read_text(path))
    return round(khz / 1000) if khz else None


def whole(text: str) -> int | None:
    """Return a text as an integer; None if the text is not an integer."""
    return int(text) if re.fullmatch(r"-?\d{1,18}", text, re.ASCII) else None


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,15}(?:\.\d{1,15})?", text, re.ASCII) else None


def _some(paths: Iterable[Path], *, most: int = _ENTRIES) -> list[Path]:
    try:
        return [path for _, path in zip(range(most), paths, strict=False)]
    except OSError:
        return []
