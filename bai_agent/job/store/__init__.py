"""The job store: all that is known of a job, as whole objects under keys, in a folder or in S3.

```
<job-id>/  job.toml  cancel.json  result.json  artifacts/…
           attempts/<n>/nodes/<rank>/  ready.json  heartbeat.json  events.jsonl  log/<offset>  metrics/<offset>.jsonl  result.json
```
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote_to_bytes, urlsplit

from bai_agent.errors import StoreError

if TYPE_CHECKING:
    from obstore.store import S3Credential


class StoreRefusedError(StoreError):
    """The store says no, and will say so again: a wrong bucket, no rights, no credentials."""


class MissingObjectError(StoreError):
    """There is no object of this key. S3 may say so only to those who may list; so ask by `find` what may be absent."""


class RecordError(StoreError):
    """An object is there, and not what its name says: broken, foreign, or of another version."""


@dataclass(frozen=True)
class StoredObject:
    """An object's key, and its size in bytes."""

    key: str
    size: int
    modified: int | None = field(default=None, compare=False)
    """When it was written, ms UTC by the store's own clock."""


class JobStore(Protocol):
    """Objects under keys such as "job-1/result.json": written once, or replaced whole, never seen half-written.

    All methods raise StoreError where the place cannot be reached or refuses.
    """

    @property
    def url(self) -> str: ...

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        """Write an object. With `if_absent`, return False and leave it alone where one is already there."""
        ...

    def put_file(self, key: str, path: Path) -> None:
        """Write the file `path` as an object, of any size."""
        ...

    def get(self, key: str, *, start: int = 0, limit: int | None = None) -> bytes:
        """Return an object's bytes from `start`, at most `limit`; empty past its end. Raises MissingObjectError."""
        ...

    def find(self, prefix: str) -> list[StoredObject]:
        """Return the objects whose keys start with `prefix`, in the order of their keys."""
        ...

    def folders(self, prefix: str) -> list[str]:
        """Return the names directly below `prefix` ("" or ending in a slash) that have objects below them."""
        ...

    def delete(self, prefix: str) -> None:
        """Delete every object whose key starts with `prefix`, which ends in a slash; absent ones are no error."""
        ...


def open_store(
    url: str,
    *,
    region: str | None = None,
    endpoint: str | None = None,
    credentials: Callable[[], S3Credential] | None = None,
    quick: bool = False,
) -> JobStore:
    """Return the store at `url`: file:///absolute/folder or s3://bucket/prefix. Raises StoreError.

    The others are for S3. region: the bucket's, found out where it is not said. endpoint: another server than AWS's own.
    credentials: whose (see `bai_agent.aws.credentials.from_botocore`); unset, those of the environment, the AWS
    configuration or the instance's role. quick: it is asked in passing; nothing is tried again or waited for.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        from bai_agent.job.store.directory import DirectoryStore

        return DirectoryStore(Path(os.fsdecode(unquote_to_bytes(parts.path))))
    if url.startswith("s3://"):
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
                patience=QUICK if quick else PATIENCE,
            )
    raise StoreError(f'"{url}" is no job store; write file:///absolute/folder or s3://bucket/prefix')


def check_key(key: str) -> list[str]:
    """Return the parts of `key`. Raises StoreError where it could not name an object everywhere."""
    parts = key.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise StoreError(f'"{key}" is no key of an object')
    return parts
