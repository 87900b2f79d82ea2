"""The schemes of sources, and functions that read addresses and format them for users. `bai` and the agent
use this module.

For each scheme, a class in the agent's folder `pull` fetches the source. An agent imports the class only if
its job has a source with this scheme.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qs, unquote, unquote_to_bytes, urlsplit, urlunsplit

from bai_agent.job.schema.declared import Mistake
from bai_agent.light_dataclass import dataclass

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FILE = re.compile(r"file://(?:localhost)?(?=/)", re.I)
_SIGNATURE = re.compile(
    r"(X-(Amz|Goog)-\w|(AWSAccessKeyId|Signature|Expires|Key-Pair-Id|Policy"
    r"|sig|se|sp|sv|sr|st|spr|skoid|sktid|skt|ske|sks|skv)=)",
    re.I,
)
"""Parameters of signed addresses: S3 and CloudFront, Google, Azure."""
_SHOWN = re.compile(r"…(?:[0-9a-f]{8})?")
"""Pattern of the text with which `source_name` replaces a query. `source_name` recognises this text, so that a second
call changes nothing."""
_KEYS = frozenset({"x-amz-signature", "x-amz-security-token", "signature", "x-goog-signature", "sig"})
"""Query parameters of signed addresses. An address with one of these parameters grants access to its
content."""


def _no_host(src: str) -> Mistake | None:
    try:
        host = urlsplit(src).hostname
    except ValueError:
        host = None
    return None if host else ("names no host", f'write for example "{scheme_of(src)}://host/file"')


def _nothing_in_bucket(src: str) -> Mistake | None:
    if re.match(r"[^/]+/", src.partition("://")[2]):
        return None
    bucket = f"{scheme_of(src)}://bucket/"
    return "names a bucket but nothing in it", f'write "{bucket}key", or "{bucket}" for the whole bucket'


def _not_absolute(src: str) -> Mistake | None:
    if src.partition("://")[2].startswith("/"):
        return None
    return (
        "a file:// source needs an absolute path",
        'write "file:///absolute/path", or a plain relative path',
    )


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Properties of the addresses with one scheme, such as s3."""

    origin: str
    """The `Origin` that fetches a source with this scheme: its module in `bai_agent/pull/` and its class
    ("s3_source:S3Origin")."""
    forms: str
    """Examples of addresses with this scheme, for the reference."""
    mistake: Callable[[str], Mistake | None] = _no_host
    """Function that returns the mistake in an address; None if the address has no mistake."""
    is_url: bool = True
    """Whether an address may contain a password and a query, which are hidden from users. If false, `@`, `?`
    and `#` have no special meaning in an address."""


SCHEMES: Mapping[str, Scheme] = {
    "s3": Scheme(
        origin="s3_source:S3Origin",
        forms="`s3://bucket/key`, `s3://bucket/prefix/` (a folder)",
        mistake=_nothing_in_bucket,
        is_url=False,
    ),
    "https": Scheme(origin="http:HttpOrigin", forms="`https://…`"),
    "http": Scheme(origin="http:HttpOrigin", forms="`http://…`"),
    "file": Scheme(
        origin="local:LocalOrigin", forms="`file:///absolute/path`", mistake=_not_absolute, is_url=False
    ),
}


def scheme_of(src: str) -> str:
    """Return the scheme of an address in lower case; "" if the address has no scheme."""
    found = _SCHEME.match(src)
    return found[1].lower() if found else ""


def schemes_text() -> str:
    """Return all schemes as a part of a sentence, such as "s3://, https://"."""
    return ", ".join(f"{name}://" for name in SCHEMES)


def file_path(src: str) -> Path | None:
    """Return the path on this machine that a file:// address names; None for other addresses.

    In the address, `?` and `#` are plain characters of the path. Only `%` is special.
    """
    found = _FILE.match(src)
    # The path is decoded to bytes first, because a file name may not be UTF-8.
    return Path(os.fsdecode(unquote_to_bytes(src[found.end() :]))) if found else None


def source_name(src: str) -> str:
    """Return the name of `src` for messages and records. The name of a file on this machine is the file's
    path. The name of a web address contains no password, and a digest in place of the query.

    The query may contain a secret key. The digest keeps two addresses apart that differ only in the query. The digest
    ignores the signature of a signed address, so that an address that is signed again keeps its name.
    """
    if found := _FILE.match(src):
        return unquote(src[found.end() :])
    scheme = scheme_of(src)
    if not scheme or (scheme in SCHEMES and not SCHEMES[scheme].is_url):
        return src
    try:
        parts = urlsplit(src)
    except ValueError:  # not a valid address, so the part that may contain a password cannot be recognised
        return f"{scheme}://{src.partition('://')[2].partition('?')[0].rpartition('@')[2]}"
    host = parts.netloc.rpartition("@")[2]
    if _SHOWN.fullmatch(parts.query):
        return urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
    parameters = [pair for pair in parts.query.split("&") if pair and not _SIGNATURE.match(pair)]
    digest = ""
    if parameters:
        import hashlib  # few sources have parameters, and this import loads OpenSSL

        digest = hashlib.sha256("&".join(parameters).encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return urlunsplit((parts.scheme, host, parts.path, f"…{digest}" if parts.query else "", ""))


def shown_address(src: str) -> str:
    """Return `src` as a job's record shows it. The result is `source_name(src)` for a web address, and `src` itself
    for other addresses."""
    scheme = scheme_of(src)
    return source_name(src) if scheme in SCHEMES and SCHEMES[scheme].is_url else src


def grants_access(src: str) -> bool:
    """Return whether an address gives access to its content, because the address contains a password or a
    signature."""
    try:
        parts = urlsplit(src)
    except ValueError:  # not an address of a server, but perhaps a key in a bucket or a path
        return False
    return bool(parts.password) or not _KEYS.isdisjoint(name.lower() for name in parse_qs(parts.query))
