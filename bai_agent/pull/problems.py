"""What can go wrong with a pull, beside PullError itself, and how a source is named in a message."""

from __future__ import annotations

import errno
import hashlib
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from bai_agent.errors import BaiError, PullError
from bai_agent.job.reserved_space import FULL

_SIGNATURE = re.compile(
    r"(X-(Amz|Goog)-\w|(AWSAccessKeyId|Signature|Expires|Key-Pair-Id|Policy"
    r"|sig|se|sp|sv|sr|st|spr|skoid|sktid|skt|ske|sks|skv)=)",
    re.I,
)
"""Parameters of signed addresses: S3 and CloudFront, Google, Azure."""


class NoSpaceError(PullError):
    """The file system has too little room for a source: the message names both."""


class PullStopped(BaiError):  # noqa: N818 - an order that was obeyed, no error
    """The caller asked for the end; what has arrived so far is kept for the next attempt."""


def shown(src: str) -> str:
    """Return `src` as messages and records name it: a path for a file of this machine; an address without a password, and
    with a digest instead of a query.

    A query may hold a key, but also all that tells two files apart. What a signed address has only because it is signed
    does not count: signed again tomorrow, it still names the same file.
    """
    if src.startswith("file:///"):
        return unquote(src[len("file://") :])
    if not src.lower().startswith(("http://", "https://")):
        return src
    try:
        parts = urlsplit(src)
    except ValueError:  # no address: what it may hold of a password cannot be told apart
        scheme, _, rest = src.partition("://")
        return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"
    host = parts.netloc.rpartition("@")[2]
    told = [pair for pair in parts.query.split("&") if pair and not _SIGNATURE.match(pair)]
    digest = hashlib.sha256("&".join(told).encode("utf-8", "surrogateescape")).hexdigest()[:8] if told else ""
    return urlunsplit((parts.scheme, host, parts.path, f"…{digest}" if parts.query else "", ""))


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
