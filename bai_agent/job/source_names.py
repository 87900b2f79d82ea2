"""How a source is named in messages and records: without what must not be shown."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import unquote, urlsplit, urlunsplit

_SIGNATURE = re.compile(
    r"(X-(Amz|Goog)-\w|(AWSAccessKeyId|Signature|Expires|Key-Pair-Id|Policy"
    r"|sig|se|sp|sv|sr|st|spr|skoid|sktid|skt|ske|sks|skv)=)",
    re.I,
)
"""Parameters of signed addresses: S3 and CloudFront, Google, Azure."""


def source_name(src: str) -> str:
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
