"""What can go wrong with a pull, beside PullError itself, and how a source is named in a message."""

from __future__ import annotations

import errno
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from bai_agent.errors import BaiError, PullError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class NoSpaceError(PullError):
    """The file system has too little room for a source: the message names both."""


class PullStopped(BaiError):  # noqa: N818 - an order that was obeyed, no error
    """The caller asked for the end; what has arrived so far is kept for the next attempt."""


def shown(src: str) -> str:
    """Return `src` as messages and records name it: without a password, and without a query, which may be a signature."""
    if not src.lower().startswith(("http://", "https://")):
        return src
    parts = urlsplit(src)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "…" if parts.query else "", ""))


def disk_problem(src: str, error: OSError, *, root: Path) -> PullError:
    """Return the sentence for an operation on files below `root` that failed."""
    where = error.filename2 or error.filename or root
    if error.errno in _NO_SPACE:
        return NoSpaceError(
            f"{src}: the file system of {root} ran full; free space there or choose another path"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PullError(
            f"{src}: {where} cannot be written ({error.strerror}); give the job's user the right or choose another path"
        )
    return PullError(f"{src}: {where}: {error.strerror or error}")
