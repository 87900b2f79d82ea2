"""Makes memory cgroups in which the kernel's out-of-memory killer strikes."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def _locked(how: int) -> Iterator[None]:
    # All test runs on this machine use this folder, and leave no file in it.
    folder = os.open(tempfile.gettempdir(), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, how)
        yield
    finally:
        os.close(folder)


@contextmanager
def no_memory_killer() -> Iterator[None]:
    """Prevent that the killer strikes in any test's `small_cgroup` meanwhile.

    The machine counts its kills, so a SIGKILL at the same time would look like such a kill.
    """
    with _locked(fcntl.LOCK_SH):
        yield


@contextmanager
def small_cgroup(limit_bytes: int) -> Iterator[Path]:
    """Make a cgroup with little memory below this process's own (version 1 or 2), which leaves it alone.

    Yields the file into which a process writes its pid to enter the cgroup. Needs root.
    """
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    version1 = Path("/sys/fs/cgroup/memory")
    if version1.is_dir():
        own = next(group for _, controllers, group in lines if controllers == "memory")
        folder, limit, members = version1 / own.lstrip("/"), "memory.limit_in_bytes", "tasks"
    else:
        # In cgroup v2 processes may only be in leaves, so the new group is beside our own.
        folder = Path("/sys/fs/cgroup") / lines[0][2].lstrip("/")
        folder = folder.parent if folder != Path("/sys/fs/cgroup") else folder
        limit, members = "memory.max", "cgroup.procs"
    made = folder / f"bai-test-{os.getpid()}"
    with _locked(fcntl.LOCK_EX):
        made.mkdir()
        (made / limit).write_text(str(limit_bytes))
        try:
            yield made / members
        finally:
            for _ in range(500):
                if not (made / members).read_text():
                    break
                time.sleep(0.01)
            made.rmdir()
