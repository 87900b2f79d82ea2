"""What can go wrong with a pull, beside PullError itself."""

from __future__ import annotations

import errno
from pathlib import Path

from bai_agent.errors import BaiError, PullError
from bai_agent.job.reserved_space import FULL


class NoSpaceError(PullError):
    """The file system has too little room for a source: the message names both."""


class PullStopped(BaiError):  # noqa: N818 - an order that was obeyed, no error
    """The caller asked for the end; what has arrived so far is kept for the next attempt."""


def printable(name: str) -> str:
    """Return a file's name as a message can show it."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def disk_problem(src: str, error: OSError, *, root: Path) -> PullError:
    """Return the sentence for an operation on files below `root` that failed."""
    where = error.filename2 or error.filename or root
    if error.errno in FULL:
        return NoSpaceError(
            f"{src}: the file system of {root} ran full; free space there or choose another path"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PullError(
            f"{src}: {where} cannot be written ({error.strerror}); give the job's user the right, choose another path, "
            "or, on your own machine, put all absolute paths below a folder of yours with --data-root DIR"
        )
    return PullError(f"{src}: {where}: {error.strerror or error}")
