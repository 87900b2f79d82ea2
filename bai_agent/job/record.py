"""A job's record in a store. This module defines the names of the record's objects, and reads the record's
growing streams."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, TypeAlias

from bai_agent.decode import parse_json
from bai_agent.errors import MissingObjectError, RecordError, StoreError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor_file import parse_job, without_credentials
from bai_agent.job.run_directory import now_ms
from bai_agent.job.store import JobStore, StoredObject
from bai_agent.light_dataclass import dataclass

Stream: TypeAlias = str
"""A growing stream of a node: "log", "metrics", "events", or another folder below the node's folder."""

LARGEST_OBJECT = 16 << 20
"""Size limit of an object that is read as a whole (bytes). Objects that bai writes have only a few KiB."""
_TRIES = 3
"""Number of times that an object is put if the store answers that the object exists, but does not list the
object."""
_CHUNK = re.compile(r"(\d{20})(?:\.jsonl)?")
_parsed = lru_cache(32)(parse_job)
"""Caches the last parsed descriptors, because a command that shows one job reads the job's descriptor a dozen
times."""


@dataclass(frozen=True)
class JobRecord:
    """One job in `store`. Nothing is cached, so each call sends requests to the store."""

    store: JobStore
    job_id: str

    def key(self, name: str) -> str:
        """Return the key of the job's object `name`."""
        return f"{self.job_id}/{name}"

    def node(self, rank: int = 0, *, attempt: int = 0) -> NodeRecord:
        return NodeRecord(self, rank, attempt)

    def nodes(self) -> list[NodeRecord]:
        """Return the records of the nodes that have objects in the store, sorted by attempt and rank. Raises
        StoreError."""
        found = [
            (int(attempt), int(rank))
            for attempt in self.store.folders(self.key("attempts/"))
            if attempt.isdecimal()
            for rank in self.store.folders(self.key(f"attempts/{attempt}/nodes/"))
            if rank.isdecimal()
        ]
        return [NodeRecord(self, rank, attempt) for attempt, rank in sorted(found)]

    def exists(self) -> bool:
        return self.has("job.toml")

    def job(self) -> Job:
        """Return the job descriptor without credentials, for views and exports. Passwords and queries are
        removed from addresses.

        Raises MissingObjectError if there is no descriptor, DescriptorError if the descriptor is wrong.
        """
        return without_credentials(self.exact_job())

    def exact_job(self) -> Job:
        """Return the job descriptor with credentials, for the agents. Raises MissingObjectError, DescriptorError."""
        content = self._read(self.key("job.toml"))
        if content is None:
            raise MissingObjectError(f'there is no job "{self.job_id}" in {self.store.url}')
        return _parsed(content, where=f"{self.store.url}/{self.key('job.toml')}")

    def result(self) -> dict[str, Any] | None:
        """Return the job's result; None if the job has not ended."""
        return self.read_object(self.key("result.json"))

    def cancel(self, *, by: str) -> bool:
        """Request the job's cancellation. Return False if the cancellation was already requested."""
        content = json.dumps({"time": now_ms(), "by": by}).encode() + b"\n"
        return self.store.put(self.key("cancel.json"), content, if_absent=True)

    def cancelled(self) -> bool:
        return self.has("cancel.json")

    def has(self, name: str) -> bool:
        """Return whether the job's object `name` exists. Objects below `name/` are ignored, because any
        instance may write some of those objects."""
        return self._is_listed(self.key(name))

    def put_time(self, name: str) -> int | None:
        """Return when the job's object `name` was put (ms UTC, by the store's clock); None if the object does not
        exist."""
        key = self.key(name)
        return next((each.modified for each in self.store.find(key) if each.key == key), None)

    def read_object(self, key: str) -> dict[str, Any] | None:
        """Return the JSON object at `key` of the store; None if the key does not exist. Raises RecordError if
        the content is not a JSON object."""
        return self._table(key, self._read(key))

    def settle(self, key: str, content: bytes) -> bool:
        """Put an object, unless an object with the same key exists. Return whether this call put the object.
        Raises StoreError.

        The result may be False although an earlier try of the same put has written the object. S3 may also answer
        "exists" because of a concurrent put that failed later.
        """
        for _ in range(_TRIES):
            if self.store.put(key, content, if_absent=True):
                return True
            if self._is_listed(key):
                return False
        raise StoreError(
            f"{self.store.url}/{key} cannot be written: the store says that it exists, but does not list it"
        )

    def read_listed(self, key: str) -> dict[str, Any] | None:
        """Return the JSON object at `key`, with a single request. The caller must have listed the object before.

        `read_object` lists the folder first, because S3 gives an instance the same answer for a missing object and
        for a forbidden object.
        """
        return self._table(key, self._get(key))

    def _table(self, key: str, content: bytes | None) -> dict[str, Any] | None:
        if content is None:
            return None
        value = parse_json(content, where=f"{self.store.url}/{key}")
        if not isinstance(value, dict):
            raise RecordError(f"{self.store.url}/{key} is not a JSON object")
        return value

    def _read(self, key: str) -> bytes | None:
        return self._get(key) if self._is_listed(key) else None

    def _is_listed(self, key: str) -> bool:
        return any(each.key == key for each in self.store.find(key))

    def _get(self, key: str) -> bytes | None:
        try:
            content = self.store.get(key, limit=LARGEST_OBJECT + 1)
        except MissingObjectError:
            return None
        if len(content) > LARGEST_OBJECT:
            raise RecordError(
                f"{self.store.url}/{key} has more than {LARGEST_OBJECT:,} bytes, more than any record of a job"
            )
        return content


@dataclass(frozen=True)
class NodeRecord:
    """The record of a node in one attempt: objects and growing streams."""

    job: JobRecord
    rank: int = 0
    attempt: int = 0

    @property
    def place(self) -> str:
        """Key prefix of all of the node's objects, without a slash at the end."""
        return self.job.key(f"attempts/{self.attempt}/nodes/{self.rank}")

    def key(self, name: str) -> str:
        """Return the key of the node's object `name`."""
        return f"{self.place}/{name}"

    def url(self, name: str) -> str:
        """Return the address of the node's object `name`, for messages."""
        return f"{self.job.store.url}/{self.key(name)}"

    def read_object(self, name: str) -> dict[str, Any] | None:
        """Return the node's JSON object `name`, such as "ready.json"; None if the object does not exist. Raises
        StoreError, RecordError."""
        return self.job.read_object(self.key(name))

    def read(self, stream: Stream, position: int, *, limit: int = 2**20) -> bytes:
        """Return at most `limit` bytes of a stream, beginning at `position`; empty if the stream ends there or before.

        A stream is a sequence of objects, each named by the position of its first byte. Only the last object of a
        stream may still grow.
        """
        # The sizes in the listing show whether the stream has new content. Usually there is none, so a
        # request is saved.
        chunks = {start: each for start, each in self._chunks(stream) if start <= position}
        if not chunks:
            return b""
        start = max(chunks)
        if position >= start + chunks[start].size:
            return b""
        return self.job.store.get(chunks[start].key, start=position - start, limit=limit)

    def size(self, stream: Stream) -> int:
        """Return the current length of a stream (bytes)."""
        return max((start + each.size for start, each in self._chunks(stream)), default=0)

    def _chunks(self, stream: Stream) -> list[tuple[int, StoredObject]]:
        """Return a stream's objects, each with the position of its first byte."""
        store = self.job.store
        if stream == "events":
            key = self.key("events.jsonl")
            return [(0, each) for each in store.find(key) if each.key == key]
        named = (
            (_CHUNK.fullmatch(each.key.rpartition("/")[2]), each)
            for each in store.find(self.key(f"{stream}/"))
        )
        return [(int(name[1]), each) for name, each in named if name]
