"""Space that is reserved, so that a run which fills the disk can still report that."""

from __future__ import annotations

import errno
import os

from bai_agent.job.run_directory import RunDir

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of writes without space on the disk, or for this user."""

_RECORDS_BYTES = 2**20
_RESULT_BYTES = 2**18


def reserve_space(rundir: RunDir) -> None:
    """Reserve space. Raises OSError if there is not enough space."""
    for path, size in ((rundir.reserved, _RECORDS_BYTES), (rundir.reserved_result, _RESULT_BYTES)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        finally:
            os.close(descriptor)


def make_room(rundir: RunDir) -> None:
    """Free the space for the last records and events."""
    rundir.reserved.unlink(missing_ok=True)


def make_room_for_result(rundir: RunDir) -> None:
    """Free all reserved space."""
    make_room(rundir)
    rundir.reserved_result.unlink(missing_ok=True)
