"""Sources with s3://bucket/key and s3://bucket/folder/ addresses. Large objects are fetched in parallel
ranges. Several small objects are fetched at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from bai_agent.aws.s3_client import DENIED_OR_MISSING, RetryPolicy, classify_s3_error, connect
from bai_agent.errors import CredentialsError, PullError, S3Error
from bai_agent.job.descriptor.source_tables import Source, SourceKind
from bai_agent.job.schema.source_schemes import source_name
from bai_agent.pull.draft import PartialFile
from bai_agent.pull.landing import Landing
from bai_agent.pull.progress import PullEndedError, PullWatch
from bai_agent.pull.remote import Remote, RemoteListing

if TYPE_CHECKING:
    from obstore.store import S3Store

T = TypeVar("T")

PART = 16 << 20
"""Size of the parts in which a large object is fetched (bytes). After a kill, only unfinished parts are
fetched again."""
RANGES = 16
"""Number of parts that are fetched at a time."""
PIECE = 1 << 20
"""Number of bytes that a thread reads from the network before it passes them to the thread that writes the
file."""
OBJECTS = 64
"""Number of small objects that are fetched at a time."""
PATIENCE = RetryPolicy(
    retries=9, retry_for=timedelta(minutes=3), silence=timedelta(seconds=30), request=timedelta(minutes=30)
)
"""How often requests are retried. If an endpoint does not answer at all, all retries and their pauses take
about 35 seconds."""


class S3Origin:
    """Origin of a source that is a key or a prefix in a bucket."""

    def __init__(self, source: Source, watch: PullWatch, *, part_bytes: int = PART) -> None:
        bucket, _, key = source.src[len("s3://") :].partition("/")
        self._src = source_name(source.src)
        if not bucket:
            raise PullError(f"{self._src}: names no bucket; write s3://bucket/key")
        if key and any(part in ("", ".", "..") for part in key.removesuffix("/").split("/")):
            raise PullError(
                f'{self._src}: the key has an empty, "." or ".." part and cannot be a file; rename it'
            )
        self._source = source
        self._key = key
        self._watch = watch
        self._part_bytes = part_bytes
        try:
            self._store: S3Store = connect(
                bucket,
                patience=PATIENCE,
                region=source.region,
                endpoint=source.endpoint,
                anonymous=source.anonymous,
            )
        except CredentialsError as error:
            table = "[[server.models]]" if source.server else "[[data.sources]]"
            public = f", or write anonymous = true in {table} of a public bucket"
            advice = public if source.kind is SourceKind.DATA else ""  # scripts have no such key
            raise PullError(f"{self._src}: {error}{advice}") from error
        except S3Error as error:
            raise PullError(f"{self._src}: {error}") from error

    def survey(self) -> RemoteListing:
        """List the object, or all objects below the prefix. Raises PullError."""
        return self._run(self._survey())

    def fetch(
        self, remotes: Sequence[Remote], landing: Landing, *, keep: Callable[[PartialFile, Remote], None]
    ) -> None:
        """Fetch the objects `remotes`. Call `keep` with each complete temporary file. Raises PullError."""
        self._run(self._fetch(remotes, landing, keep))

    def _run(self, work: Awaitable[T]) -> T:
        return asyncio.run(_until_ended(work, self._watch))

    async def _survey(self) -> RemoteListing:
        import obstore

        if self._source.directory or self._key.endswith("/") or not self._key:
            return RemoteListing(await self._list(), folder=True)
        try:
            meta = await obstore.head_async(self._store, self._key)
        except (FileNotFoundError, ValueError, obstore.exceptions.BaseError) as error:
            denied = isinstance(error, obstore.exceptions.PermissionDeniedError)
            if not denied and not isinstance(error, FileNotFoundError):
                raise _problem(self._src, error) from error
            # A list request is sent, because an error response to it has a body with the reason. The response
            # to HEAD has no body.
            below = await self._list(missing=DENIED_OR_MISSING if denied else None)
            if below:
                return RemoteListing(below, folder=True)
            raise _problem(self._src, error) from error
        self._check_etag(meta["e_tag"])
        name = self._key.rpartition("/")[2]
        return RemoteListing(
            (Remote(name=name, key=self._key, size=meta["size"], tag=meta["e_tag"]),), folder=False
        )

    def _check_etag(self, tag: str | None) -> None:
        """Raise PullError if the object has changed since the job was planned."""
        wanted, found = self._source.etag, (tag or "").strip('"')
        if wanted is not None and found != wanted:
            raise PullError(
                f"{self._src}: its ETag is {found}, but {wanted} was expected; the object has changed since the job was planned"
            )

    async def _list(self, *, missing: str | None = None) -> tuple[Remote, ...]:
        import obstore

        prefix = self._key.strip("/")
        remotes = []
        try:
            async for metas in obstore.list(self._store, prefix or None, chunk_size=1000):
                for meta in metas:
                    path = meta["path"]
                    name = path[len(prefix) :].lstrip("/")
                    if name:  # an empty name is the folder's own marker
                        remotes.append(Remote(name=name, key=path, size=meta["size"], tag=meta["e_tag"]))
        except (FileNotFoundError, ValueError, obstore.exceptions.BaseError) as error:
            raise _problem(self._src, error, missing=missing) from error
        return tuple(remotes)

    async def _fetch(
        self, remotes: Sequence[Remote], landing: Landing, keep: Callable[[PartialFile, Remote], None]
    ) -> None:
        small = iter([remote for remote in remotes if (remote.size or 0) <= self._part_bytes])
        await _side_by_side(OBJECTS, lambda: self._small_objects(small, landing, keep))
        for large in (remote for remote in remotes if (remote.size or 0) > self._part_bytes):
            await self._large_object(large, landing, keep)

    async def _small_objects(
        self, remotes: Iterator[Remote], landing: Landing, keep: Callable[[PartialFile, Remote], None]
    ) -> None:
        import obstore

        for remote in remotes:
            try:
                answer = await obstore.get_async(self._store, remote.key, options={"if_match": remote.tag})
                content = await answer.bytes_async()
            except FileNotFoundError as error:
                if remote.size == 0:
                    # In a listing, the marker object "a/" of a folder looks like an empty object "a". A HEAD
                    # request distinguishes them.
                    landing.forget(remote)
                    continue
                raise _problem(f"{self._src} (key {remote.key})", error) from error
            except (ValueError, obstore.exceptions.BaseError) as error:
                raise _problem(f"{self._src} (key {remote.key})", error) from error
            with landing.small(remote.name) as draft:
                draft.append(memoryview(content))
                landing.tally.bytes += len(content)
                keep(draft, remote)

    async def _large_object(
        self, remote: Remote, landing: Landing, keep: Callable[[PartialFile, Remote], None]
    ) -> None:
        if remote.size is None:
            raise PullError(f"{self._src}: S3 reports no size of {remote.key}")
        with landing.draft(
            remote.name, tag=remote.tag, size=remote.size, part_bytes=self._part_bytes
        ) as draft:
            draft.reserve(remote.size)
            count = -(-remote.size // self._part_bytes)
            arrived = draft.begun.parts
            landing.tally.bytes += sum(self._length(remote.size, number) for number in arrived)
            missing = iter([number for number in range(count) if number not in arrived])
            # One other thread writes while this thread receives, because several writing threads would wait
            # for the file's lock in the kernel. The writing thread ends before the temporary file is closed,
            # so that it never writes into another file.
            with ThreadPoolExecutor(max_workers=1) as writer:
                await _side_by_side(RANGES, lambda: self._parts(missing, remote, draft, landing, writer))
            await asyncio.to_thread(keep, draft, remote)

    async def _parts(
        self, numbers: Iterator[int], remote: Remote, draft: PartialFile, landing: Landing, writer: Executor
    ) -> None:
        import obstore

        loop = asyncio.get_running_loop()
        for number in numbers:
            start = offset = number * self._part_bytes
            end = start + self._length(remote.size or 0, number)
            try:
                answer = await obstore.get_async(
                    self._store, remote.key, options={"range": (start, end), "if_match": remote.tag}
                )
                async for chunk in answer.stream(min_chunk_size=PIECE):
                    await loop.run_in_executor(writer, draft.write_at, chunk, offset)
                    offset += len(chunk)
                    landing.tally.bytes += len(chunk)
            except (FileNotFoundError, ValueError, obstore.exceptions.BaseError) as error:
                raise _problem(f"{self._src} (key {remote.key})", error) from error
            if offset != end:
                raise PullError(
                    f"{self._src}: S3 sent {offset - start:,} of {end - start:,} bytes of {remote.key}"
                )
            draft.part_arrived(number)

    def _length(self, size: int, number: int) -> int:
        return min(self._part_bytes, size - number * self._part_bytes)


async def _until_ended(work: Awaitable[T], watch: PullWatch) -> T:
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=0.1)
        if watch.ended and not task.done():
            task.cancel()
            await asyncio.wait([task])
            raise PullEndedError
    return task.result()


async def _side_by_side(count: int, worker: Callable[[], Awaitable[None]]) -> None:
    """Run `count` workers until all have ended. The first error ends all workers."""
    tasks = [asyncio.ensure_future(worker()) for _ in range(count)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _problem(src: str, error: Exception, *, missing: str | None = None) -> PullError:
    return PullError(f"{src}: {classify_s3_error(error, missing=missing)}")
