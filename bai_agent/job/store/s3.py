"""A job store in a bucket: the objects below `s3://bucket/prefix`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError

from bai_agent.aws.s3_client import RetryPolicy, classify_s3_error, code_of, connect, is_refusal
from bai_agent.errors import CredentialsError, MissingObjectError, S3Error, StoreError, StoreRefusedError
from bai_agent.job.store import StoredObject, check_key

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import S3Credential
    from obstore.store import S3Store as Client

    from bai_agent.aws.s3_listing import UsableListing

PATIENCE = RetryPolicy(
    retries=4,
    retry_for=timedelta(seconds=30),
    silence=timedelta(seconds=20),
    request=timedelta(seconds=60),
    longest_pause=timedelta(seconds=5),
)
"""Time limits and retries of usual requests. The time limits are short, because callers report an unreachable
store and try again later."""
QUICK = RetryPolicy(
    retries=0,
    retry_for=timedelta(seconds=3),
    silence=timedelta(seconds=3),
    request=timedelta(seconds=3),
)
"""Time limits and retries of optional requests, which callers can repeat later."""

_PART = 8 << 20
_PARTS = 9_000
"""Maximum number of parts of an upload. S3 accepts 10,000 parts:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html"""
_AT_A_TIME = 4
"""Number of parts that are uploaded at the same time. An upload needs memory for this number of parts."""
_DENIED = "access denied; the credentials need s3:GetObject and s3:PutObject below the store's prefix, and s3:ListBucket on its bucket"


class S3Store:
    """A store in which each object is an S3 object. Keys cannot lead out of the prefix."""

    folder = None

    def __init__(
        self,
        bucket: str,
        prefix: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        credentials: Callable[[], S3Credential] | None = None,
        patience: RetryPolicy = PATIENCE,
    ) -> None:
        self._url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._timeout = patience.request
        try:
            self._client: Client = connect(
                bucket,
                prefix=prefix or None,
                patience=patience,
                region=region,
                endpoint=endpoint,
                credentials=credentials,
            )
        except (CredentialsError, S3Error) as error:
            raise StoreRefusedError(f"the job store {self._url}: {error}") from error

    @property
    def url(self) -> str:
        return self._url

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        check_key(key)
        with self._plain_errors(key):
            try:
                # obstore's multipart uploads do not support the condition that the object must not exist.
                obstore.put(
                    self._client,
                    key,
                    content,
                    mode="create" if if_absent else "overwrite",
                    use_multipart=False,
                )
            except obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def put_file(self, key: str, path: Path) -> None:
        check_key(key)
        size = path.stat().st_size
        part = max(_PART, -(-size // _PARTS))
        with self._plain_errors(key):
            obstore.put(
                self._client,
                key,
                path,
                use_multipart=size > part,
                chunk_size=part,
                max_concurrency=_AT_A_TIME,
            )

    def get(self, key: str, *, start: int = 0, limit: int | None = None) -> bytes:
        check_key(key)
        if limit == 0:
            return b""
        wanted = {"range": {"offset": start}} if limit is None else {"range": (start, start + limit)}
        with self._plain_errors(key):
            try:
                answer = obstore.get(
                    self._client,
                    key,
                    options=None if start == 0 and limit is None else wanted,  # type: ignore[arg-type] # one of its forms
                )
                return bytes(answer.bytes())
            except obstore.exceptions.BaseError as error:
                # The error's text also contains the object's key, so an HTTP status is not recognised by its
                # number alone.
                if "status code: 416" in str(error) or code_of(error) == "InvalidRange":
                    return b""
                raise

    def find(self, prefix: str) -> list[StoredObject]:
        with self._plain_errors(prefix):
            if not prefix or prefix.endswith("/"):
                found = self._below(prefix)
            else:
                # obstore can only list a whole folder, so list the parent folder and select the keys that
                # start with `prefix`.
                folder, _, name = prefix.rpartition("/")
                objects, below = self._around(folder)
                found = [each for each in objects if each.key.startswith(prefix)]
                for each in below:
                    if each.startswith(name):
                        found += self._below(f"{folder}/{each}" if folder else each)
        return sorted(found, key=lambda each: each.key)

    def around(self, folder: str) -> tuple[list[StoredObject], list[str]]:
        with self._plain_errors(folder):
            return self._around(folder)

    def _around(self, folder: str) -> tuple[list[StoredObject], list[str]]:
        try:
            found = obstore.list_with_delimiter(self._client, folder or None)
            objects, folders = found["objects"], found["common_prefixes"]
        except obstore.exceptions.InvalidPathError:
            listing = self._usable(folder, recursive=False)
            objects, folders = listing.objects, listing.folders
        described = sorted(map(_described, objects), key=lambda each: each.key)
        return described, sorted(each.rstrip("/").rpartition("/")[2] for each in folders)

    def folders(self, prefix: str) -> list[str]:
        with self._plain_errors(prefix):
            return self._around(prefix.rstrip("/"))[1]

    def delete(self, prefix: str) -> None:
        if not prefix.endswith("/"):
            raise StoreError(f'only a folder\'s worth is deleted: "{prefix}" does not end in a slash')
        with self._plain_errors(prefix):
            keys = [each.key for each in self._below(prefix)]
            if keys:
                obstore.delete(self._client, keys)

    def remove(self, key: str) -> None:
        check_key(key)
        with self._plain_errors(key), suppress(FileNotFoundError):
            obstore.delete(self._client, key)

    def _below(self, folder: str) -> list[StoredObject]:
        folder = folder.rstrip("/")
        try:
            pages = obstore.list(self._client, folder or None, chunk_size=1000)
            return [_described(each) for page in pages for each in page]
        except obstore.exceptions.InvalidPathError:
            return [_described(each) for each in self._usable(folder, recursive=True).objects]

    def _usable(self, folder: str, *, recursive: bool) -> UsableListing:
        """List a folder that contains keys that obstore rejects, and leave these keys out. Raises S3Error."""
        # Imported here, because hardly any folder contains keys that obstore rejects.
        from bai_agent.aws.s3_listing import list_usable

        return list_usable(self._client, folder, recursive=recursive, timeout=self._timeout)

    @contextmanager
    def _plain_errors(self, key: str) -> Iterator[None]:
        where = f"the job store {self._url}/{key}"
        try:
            yield
        except FileNotFoundError as error:
            if is_refusal(error):  # a bucket that does not exist
                raise StoreRefusedError(f"{where}: {classify_s3_error(error)}") from error
            raise MissingObjectError(f"{self._url}: there is no {key}") from error
        except (BaseError, ValueError, OSError, S3Error) as error:
            kind = StoreRefusedError if is_refusal(error) else StoreError
            raise kind(f"{where}: {classify_s3_error(error, denied=_DENIED)}") from error


def _described(item: ObjectMeta) -> StoredObject:
    written = round(item["last_modified"].timestamp() * 1000)
    return StoredObject(item["path"], item["size"], written, item["e_tag"] or "")
