"""A job's record in a store: the names of its objects, and how its growing streams are read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from bai_agent.errors import StoreError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor_file import parse_job, without_credentials
from bai_agent.job.run_directory import now_ms
from bai_agent.job.store import JobStore, MissingObjectError, RecordError, StoredObject

Stream: TypeAlias = str
"""A growing stream of a node: "log", "metrics", "events", or a folder of another one below the node's place."""

_LIMIT = 16 << 20
"""Bytes of an object that is read whole; ours have some KiB."""
_CHUNK = re.compile(r"(\d{20})(?:\.jsonl)?")


@dataclass(frozen=True)
class JobRecord:
    """One job in `store`. Nothing is cached: each call asks the store."""

    store: JobStore
    job_id: str

    def key(self, name: str) -> str:
        """Return the key of the job's object `name`."""
        return f"{self.job_id}/{name}"

    def node(self, rank: int = 0, *, attempt: int = 0) -> NodeRecord:
        return NodeRecord(self, rank, attempt)

    def nodes(self) -> list[NodeRecord]:
        """Return the nodes that have left something, by attempt and rank. Raises StoreError."""
        found = [
            (int(attempt), int(rank))
            for attempt in self.store.folders(self.key("attempts/"))
            if attempt.isdecimal()
            for rank in self.store.folders(self.key(f"attempts/{attempt}/nodes/"))
            if rank.isdecimal()
        ]
        return [NodeRecord(self, rank, attempt) for attempt, rank in sorted(found)]

    def exists(self) -> bool:
        return bool(self.store.find(self.key("job.toml")))

    def job(self) -> Job:
        """Return the job descriptor as everybody may see it. Raises StoreError if there is none, DescriptorError if it is wrong.

        Its sources' addresses hold no password and no query: all views and exports read a job here.
        """
        return without_credentials(self.exact_job())

    def exact_job(self) -> Job:
        """Return the job descriptor as its agents have it, for what starts them; see `job` for the errors."""
        content = self._read(self.key("job.toml"))
        if content is None:
            raise StoreError(f'there is no job "{self.job_id}" in {self.store.url}')
        return parse_job(content, where=f"{self.store.url}/{self.key('job.toml')}")

    def result(self) -> dict[str, Any] | None:
        """Return how the job ended, or None while it has not."""
        return self.read_object(self.key("result.json"))

    def cancel(self, *, by: str) -> bool:
        """Ask for the job's end; return False where that was asked before."""
        content = json.dumps({"time": now_ms(), "by": by}).encode() + b"\n"
        return self.store.put(self.key("cancel.json"), content, if_absent=True)

    def cancelled(self) -> bool:
        return bool(self.store.find(self.key("cancel.json")))

    def read_object(self, key: str) -> dict[str, Any] | None:
        """Return the JSON object at `key` of the store, or None where there is none. Raises RecordError where it is none."""
        content = self._read(key)
        if content is None:
            return None
        try:
            value = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{self.store.url}/{key} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise RecordError(f"{self.store.url}/{key} is not a JSON object")
        return value

    def _read(self, key: str) -> bytes | None:
        found = next((each for each in self.store.find(key) if each.key == key), None)
        if found is None:
            return None
        if found.size > _LIMIT:
            raise RecordError(
                f"{self.store.url}/{key} has {found.size:,} bytes; that is not a record of a job"
            )
        try:
            return self.store.get(key, limit=_LIMIT)
        except MissingObjectError:
            return None


@dataclass(frozen=True)
class NodeRecord:
    """What one node of an attempt has left: objects, and streams that grow."""

    job: JobRecord
    rank: int = 0
    attempt: int = 0

    @property
    def place(self) -> str:
        """The key below which all of it is, without a slash at its end."""
        return self.job.key(f"attempts/{self.attempt}/nodes/{self.rank}")

    def key(self, name: str) -> str:
        """Return the key of the node's object `name`."""
        return f"{self.place}/{name}"

    def url(self, name: str) -> str:
        """Return where `name` is, for a person."""
        return f"{self.job.store.url}/{self.key(name)}"

    def read_object(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object `name` ("ready.json", "heartbeat.json"), or None. Raises StoreError, RecordError."""
        return self.job.read_object(self.key(name))

    def read(self, stream: Stream, position: int, *, limit: int = 2**20) -> bytes:
        """Return what a stream holds from `position` on, at most `limit` bytes; empty where it has not come so far.

        A stream is a row of objects, each named by the position at which it starts; the last one may still grow.
        """
        # The sizes in the list spare a request for what is not there yet: most looks of whoever follows find nothing new.
        chunks = {start: each for start, each in self._chunks(stream) if start <= position}
        if not chunks:
            return b""
        start = max(chunks)
        if position >= start + chunks[start].size:
            return b""
        return self.job.store.get(chunks[start].key, start=position - start, limit=limit)

    def size(self, stream: Stream) -> int:
        """Return how many bytes a stream has so far."""
        return max((start + each.size for start, each in self._chunks(stream)), default=0)

    def _chunks(self, stream: Stream) -> list[tuple[int, StoredObject]]:
        """Return a stream's objects, each with the position at which it starts."""
        store = self.job.store
        if stream == "events":
            key = self.key("events.jsonl")
            return [(0, each) for each in store.find(key) if each.key == key]
        named = (
            (_CHUNK.fullmatch(each.key.rpartition("/")[2]), each)
            for each in store.find(self.key(f"{stream}/"))
        )
        return [(int(name[1]), each) for name, each in named if name]
