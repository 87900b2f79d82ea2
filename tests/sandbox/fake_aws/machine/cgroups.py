"""A control group for each machine. Two systemds in one group would take each other's services for their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "bai-sandbox"


class MachineGroup:
    """The groups of one machine: in the unified hierarchy, and in systemd's own where version 1 is mounted too."""

    def __init__(self, name: str) -> None:
        self.folders = [parent / f"{_PREFIX}-{_owner()}-{name}" for parent in _parents()]
        for folder in self.folders:
            folder.mkdir()

    @property
    def join(self) -> str:
        """Shell words that put the shell into the groups."""
        return "; ".join(f"echo 0 >'{folder}/cgroup.procs'" for folder in self.folders)

    def processes(self) -> list[int]:
        """Return the machine's processes, its first one included, as this host's pids."""
        return _pids_below(self.folders[-1] / "payload")

    def freeze(self, frozen: bool) -> None:
        """Stop all of the machine's processes as a hanging host does, or let them go on."""
        (self.folders[-1] / "payload" / "cgroup.freeze").write_text(str(int(frozen)))

    def remove(self) -> None:
        """Remove the groups; waits until the kernel has let the last process go."""
        for folder in self.folders:
            _remove(folder)


def sweep() -> None:
    """Remove what sandboxes left whose process has been killed."""
    for parent in _parents():
        for folder in parent.glob(f"{_PREFIX}-*"):
            pid, started = folder.name.removeprefix(f"{_PREFIX}-").split("-")[:2]
            if start_time(int(pid)) != started:
                _remove(folder, kill=True)


def start_time(pid: int) -> str | None:
    """Return when a process started, in ticks of the kernel; None if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return None


def _pids_below(folder: Path) -> list[int]:
    """Return the processes of a group and of all groups in it, as this host's pids."""
    found: list[int] = []
    # Unlike a glob, a walk passes over folders that are gone before they are read: a group is removed at any time.
    for each, _, _ in sorted(os.walk(folder)):
        with suppress(OSError):  # ENOENT, or ENODEV of a file that was opened before its group was removed
            found += map(int, Path(each, "cgroup.procs").read_text().split())
    return found


def _parents() -> Iterator[Path]:
    """This process's own group in each hierarchy that systemd uses; the unified one comes last."""
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    if "name=systemd" in own:
        yield _ROOT / "systemd" / own["name=systemd"].lstrip("/")
        yield _ROOT / "unified" / own[""].lstrip("/")
    else:
        yield _ROOT / own[""].lstrip("/")


def _remove(folder: Path, *, kill: bool = False) -> None:
    """Remove a group and all in it. kill: whether processes in it are ended, each time anew: they may have started others."""
    deadline = time.monotonic() + 60
    while folder.exists():
        for left in _pids_below(folder) if kill else ():
            with suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
        try:
            for path in sorted(folder.glob("**/"), reverse=True):
                path.rmdir()
        except FileNotFoundError:
            continue
        except OSError:  # busy: a killed process is still on its way out
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _owner() -> str:
    return f"{os.getpid()}-{start_time(os.getpid())}"
