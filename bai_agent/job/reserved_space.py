"""Space that is reserved, so that a run which fills the disk can still report that."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from bai_agent.job.run_directory import RunDir

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of writes without space on the disk, or for this user."""

_RECORDS_BYTES = 2**20
_RESULT_BYTES = 2**18


def reserve_space(rundir: RunDir) -> None:
    """Reserve space. Raises OSError if there is not enough space."""
    for path, size in zip(_reserved(rundir), (_RECORDS_BYTES, _RESULT_BYTES), strict=True):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        finally:
            os.close(descriptor)


def make_room(rundir: RunDir) -> None:
    """Free the space for the last records and events."""
    _reserved(rundir)[0].unlink(missing_ok=True)


def make_room_for_result(rundir: RunDir) -> None:
    """Free all reserved space."""
    for path in _reserved(rundir):
        path.unlink(missing_ok=True)


def _reserved(rundir: RunDir) -> tuple[Path, Path]:
    """Return the bytes reserved for the last records and events, and those for the result alone."""
    return rundir.path / "reserved", rundir.path / "reserved.result"
