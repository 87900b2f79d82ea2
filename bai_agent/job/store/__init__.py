"""The job store. A store contains the whole records of jobs, as objects in a folder or in S3.

```
<job-id>/  job.toml  cancel.json  result.json  artifacts/…
           attempts/<n>/nodes/<rank>/  ready.json  heartbeat.json  events.jsonl  log/<offset>  metrics/<offset>.jsonl  result.json
```
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote_to_bytes, urlsplit

from bai_agent.errors import StoreError
from bai_agent.light_dataclass import dataclass, field

if TYPE_CHECKING:
    from obstore.store import S3Credential

    from bai_agent.aws.s3_client import RetryPolicy

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")


@dataclass(frozen=True)
class StoredObject:
    """An object's key, and its size in bytes."""

    key: str
    size: int
    modified: int | None = field(default=None, compare=False)
    """Time at which the object was written (ms UTC, by the store's own clock)."""
    etag: str = field(default="", compare=False)
    """Identifier of the object's content; empty if the store gives no identifier. A bucket's times are whole seconds,
    so only the identifier shows a change within a second."""


class JobStore(Protocol):
    """Objects under keys such as "job-1/result.json". An object is always written or replaced as a whole, so
    readers never see a part of an object.

    All methods raise StoreError if the store cannot be reached or refuses the request.
    """

    @property
    def url(self) -> str: ...

    @property
    def folder(self) -> Path | None:
        """Folder on this machine that contains the store's objects. None if the objects are not on this machine."""
        ...

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        """Write an object. If `if_absent` is True and the object exists, do not change the object and return
        False."""
        ...

    def put_file(self, key: str, path: Path) -> None:
        """Write the file `path` as an object, of any size."""
        ...

    def get(self, key: str, *, start: int = 0, limit: int | None = None) -> bytes:
        """Return at most `limit` bytes of an object from `start` on; empty past the object's end. Raises
        MissingObjectError."""
        ...

    def find(self, prefix: str) -> list[StoredObject]:
        """Return the objects whose keys start with `prefix`, in the order of their keys."""
        ...

    def around(self, folder: str) -> tuple[list[StoredObject], list[str]]:
        """Return the objects directly in a folder, and the names of the folders in it. The folder is "" or
        has no slash at its end."""
        ...

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly below `prefix`, which is "" or ends in a slash."""
        ...

    def delete(self, prefix: str) -> None:
        """Delete every object whose key starts with `prefix`, which ends in a slash. Do nothing if no object matches."""
        ...

    def remove(self, key: str) -> None:
        """Delete one object. Do nothing if the object does not exist."""
        ...


def open_store(
    url: str,
    *,
    region: str | None = None,
    endpoint: str | None = None,
    credentials: Callable[[], S3Credential] | None = None,
    quick: bool = False,
    patience: RetryPolicy | None = None,
) -> JobStore:
    """Return the store at `url`: file:///absolute/folder or s3://bucket/prefix. Raises StoreError.

    The other arguments are only used for S3.

    region: the bucket's region. If None, the region is looked up.
    endpoint: address of a server other than AWS's.
    credentials: function that returns credentials (see `bai_agent.aws.credentials.from_botocore`). By default,
    credentials come from the environment, the AWS configuration or the instance's role.
    quick: whether to use short time limits and no retries, for optional requests.
    patience: retries and time limits, which override `quick`.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        # Imported here, because both modules import this module.
        from bai_agent.job.store.directory import DirectoryStore

        return DirectoryStore(Path(os.fsdecode(unquote_to_bytes(parts.path))))
    if is_s3(url):
        bucket, _, prefix = url[len("s3://") :].partition("/")
        prefix = prefix.strip("/")
        if bucket and all(part not in ("", ".", "..") for part in prefix.split("/") if prefix):
            from bai_agent.job.store.s3 import PATIENCE, QUICK, S3Store

            return S3Store(
                bucket,
                prefix,
                region=region,
                endpoint=endpoint,
                credentials=credentials,
                patience=patience or (QUICK if quick else PATIENCE),
            )
    raise StoreError(f'"{url}" is not a job store; write file:///absolute/folder or s3://bucket/prefix')


def scheme_of(named: str) -> str:
    """Return the scheme of a store's URL ("file", "s3"); "" for a plain path."""
    scheme, separator, _ = named.partition("://")
    return scheme if separator and _SCHEME.fullmatch(scheme) else ""


def is_s3(named: str) -> bool:
    return scheme_of(named) == "s3"


def check_key(key: str) -> list[str]:
    """Return the parts of `key`. Raises StoreError if `key` is not a valid key in every store."""
    parts = key.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise StoreError(f'"{key}" is not a valid key of an object')
    return parts
