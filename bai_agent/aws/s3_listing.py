"""Lists a bucket even if it contains keys that obstore refuses.

Keys that obstore refuses have empty, "." or ".." parts, or control characters. obstore fails to list a folder
that contains such a key. Any user who may write below a prefix can create such a key. If obstore failed, this
module requests the listing again and leaves the refused keys out. This module uses only the standard library,
because some instances do not have boto3.
"""

from __future__ import annotations

import os
import re
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import quote, unquote, urlencode, urlsplit
from xml.etree import ElementTree

from bai_agent.aws.credentials import find_keys
from bai_agent.aws.http_answer import send
from bai_agent.aws.http_request import signed_headers
from bai_agent.aws.s3_client import aws_address
from bai_agent.errors import CredentialsError, MetadataError, S3Error
from bai_agent.light_dataclass import dataclass, field

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import S3Store

_NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"
_MOST_BYTES = 16 << 20
"""Size limit of a page of a listing (bytes). The largest possible page, with 1,000 keys of 1,024 bytes and
three characters per byte, takes about 4 MB."""
_REFUSED = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f]")
"""Pattern of the part of a key that obstore refuses."""


@dataclass(frozen=True, kw_only=True)
class UsableListing:
    """Objects and folders whose keys begin with a prefix. The names of objects and folders are relative to
    the client's prefix, as in obstore."""

    objects: list[ObjectMeta] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    """Folders directly in the listed folder; empty if the listing was recursive."""


def list_usable(client: S3Store, folder: str, *, recursive: bool, timeout: timedelta) -> UsableListing:
    """List the keys below `folder` that obstore accepts. `folder` is "" or a path without a slash at its end.
    Raises S3Error.

    timeout: time limit for each request.
    """
    place = f"{client.prefix}/" if client.prefix else ""
    query = {
        "encoding-type": "url",
        "list-type": "2",
        "prefix": f"{place}{folder}/" if folder else place,
    }
    if not recursive:
        query["delimiter"] = "/"
    found = UsableListing()
    while True:
        page = _page(client, query, timeout_s=timeout.total_seconds())
        for each in page.iterfind(f"{_NAMESPACE}Contents"):
            key = unquote(_text(each, "Key")).removeprefix(place)
            if not _REFUSED.search(key):
                found.objects.append(_described(key, each))
        for each in page.iterfind(f"{_NAMESPACE}CommonPrefixes"):
            name = unquote(_text(each, "Prefix")).removeprefix(place).removesuffix("/")
            if not _REFUSED.search(name):
                found.folders.append(name)
        if not (token := _text(page, "NextContinuationToken")):
            return found
        query["continuation-token"] = token


def _described(key: str, item: ElementTree.Element) -> ObjectMeta:
    try:
        written = datetime.fromisoformat(_text(item, "LastModified").replace("Z", "+00:00"))
        size, etag = int(_text(item, "Size")), _text(item, "ETag")
    except ValueError as error:
        raise S3Error(f"the listing of {key} cannot be read: {error}") from error
    return {"path": key, "last_modified": written, "size": size, "e_tag": etag, "version": None}


def _text(element: ElementTree.Element, name: str) -> str:
    return element.findtext(f"{_NAMESPACE}{name}") or ""


def _page(client: S3Store, query: dict[str, str], *, timeout_s: float) -> ElementTree.Element:
    # The query is sent as it is signed: in alphabetical order, with %20 for a blank.
    text = urlencode(sorted(query.items()), quote_via=quote, safe="-_.~")
    config: dict[str, Any] = dict(client.config)
    address = _address(config)
    try:
        headers = _signed(client, address, text, region=config["region"])
        answer = send(f"{address}?{text}", headers=headers, timeout_s=timeout_s, most_bytes=_MOST_BYTES)
        if answer.succeeded:
            return ElementTree.fromstring(answer.body)  # noqa: S314 - S3's own answer
    except (URLError, ElementTree.ParseError, CredentialsError, MetadataError) as error:
        raise S3Error(str(error)) from error
    raise S3Error(f"status code: {answer.status} {answer.text[:1000]}")


def _address(config: dict[str, Any]) -> str:
    """Return the address of the bucket that `connect` configured."""
    bucket, by_host = config["bucket"], config.get("virtual_hosted_style_request") == "true"
    if endpoint := config.get("endpoint"):
        return f"{endpoint}/" if by_host else f"{endpoint}/{bucket}"
    server = aws_address(config["region"])
    return f"{server.replace('://', f'://{bucket}.')}/" if by_host else f"{server}/{bucket}"


def _signed(client: S3Store, address: str, query: str, *, region: str) -> dict[str, str]:
    """Return the headers of a signed GET, with the client's credentials. Raises CredentialsError, MetadataError."""
    if client.credential_provider is not None:
        found: Any = client.credential_provider()
        keys = found["access_key_id"], found["secret_access_key"], found.get("token")
    else:
        own = find_keys(os.environ)()
        keys = own.access, own.secret, own.token
    parts = urlsplit(address)
    return signed_headers(
        "GET",
        parts.netloc,
        parts.path,
        query,
        b"",
        {},
        at=time.time(),
        service="s3",
        region=region,
        keys=keys,
    )
