"""Memory cgroups for the kernel's out-of-memory killer to strike in."""

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
    # All runs of tests on this machine know this folder, and leave no file there.
    folder = os.open(tempfile.gettempdir(), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, how)
        yield
    finally:
        os.close(folder)


@contextmanager
def no_memory_killer() -> Iterator[None]:
    """Keep the killer of any test's `small_cgroup` away: the machine counts how often it strikes, and a SIGKILL beside it may be its own."""
    with _locked(fcntl.LOCK_SH):
        yield


@contextmanager
def small_cgroup(limit_bytes: int) -> Iterator[Path]:
    """Make a cgroup with little memory below this process's own (version 1 or 2), which leaves it alone.

    Returns the file into which a process that enters it writes its pid. Needs root.
    """
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    version1 = Path("/sys/fs/cgroup/memory")
    if version1.is_dir():
        own = next(group for _, controllers, group in lines if controllers == "memory")
        folder, limit, members = version1 / own.lstrip("/"), "memory.limit_in_bytes", "tasks"
    else:
        # Processes may only be in leaves there: beside our own group.
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
