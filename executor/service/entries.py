"""Stores the accepted events in the bucket. `open/<entry>/` contains the whole event until the last message
about the event has been sent.

```
open/<entry>/event.json               the event, from its acceptance to its last message
open/<entry>/cost-<client>-<amount>   maximum cost of the request (millionths of a dollar); deleted with event.json
service/<entry>/closed.json           its owner, after the last message
service/<entry>/outbox/…              each message: see `outbox.py`
service/<entry>/children/<job-id>     a child of this request
service/<entry>/targets.json          the jobs that a command ends
service/_letters/<message>.json       a message that cannot be read, and that its topic has refused
```
The name of an entry is a job id, or begins with `_`, with which no job id begins. Names with `_` belong to
commands, and to requests whose job id another client already uses.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from bai_agent.decode import decode
from bai_agent.errors import MissingObjectError, RecordError
from bai_agent.job.record_types import Count, Moment
from bai_agent.job.store import JobStore
from bai_agent.light_dataclass import asdict, dataclass
from executor.errors import UnreadableEventError
from executor.service.events.event import ENVELOPE, MAX_ID, Event, read_event
from executor.service.events.requests import action_job_id

MAX_EVENT = 700_000
"""Maximum size of an event that answers repeat (bytes), because a Kafka broker accepts messages of up to a
megabyte."""
_VERSION = 1
_MICRO = 1_000_000
_COST = re.compile(r"cost-([0-9a-f]{32})-([0-9]{1,30})")


class Kind(str, Enum):
    """The kind of an event."""

    JOB = "job"
    COMMAND = "command"


@dataclass(frozen=True, kw_only=True)
class _EntryFile:
    kind: Kind
    received: Moment
    size: Count
    event: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The author of a request."""

    client_id: str
    action_id: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An accepted event."""

    name: str
    kind: Kind
    event: Event
    received_ms: int
    size: int
    """Size of the message (bytes)."""

    @property
    def owner(self) -> Owner:
        return Owner(client_id=self.event.client_id, action_id=self.event.action_id)

    @property
    def too_large(self) -> bool:
        """Whether only the event's envelope was stored."""
        return self.size > MAX_EVENT

    @property
    def is_taken(self) -> bool:
        """Whether the job of this id belongs to another client."""
        return self.kind is Kind.JOB and self.name.startswith("_")


class Entries:
    """The accepted events in the bucket. All methods raise StoreError."""

    def __init__(self, store: JobStore) -> None:
        """store: a store of objects at the root of the bucket."""
        self.store = store

    def accept(self, kind: Kind, event: Event, *, received_ms: int, size: int) -> str:
        """Store an event unless it is already stored. If the event's request has a parent, record the request
        as a child of the parent. Return the name of the event's entry."""
        owner = Owner(client_id=event.client_id, action_id=event.action_id)
        digest = hashlib.sha256(f"{owner.client_id}\0{owner.action_id}".encode()).hexdigest()[:32]
        if kind is Kind.COMMAND:
            names: tuple[str, ...] = (f"_command-{digest}",)
        else:
            names = (action_job_id(event.action_id), f"_taken-{digest}")
        # Size of the event as repeated in answers, which is larger than the message if the event is not
        # ASCII.
        size = max(size, len(json.dumps(event.table)))
        table = event.table if size <= MAX_EVENT else _envelope(event.table)
        content = {
            "version": _VERSION,
            "kind": kind.value,
            "received": received_ms,
            "size": size,
            "event": table,
        }
        for name in names:
            if self._take(name, owner, json.dumps(content, allow_nan=False).encode()):
                # The child is recorded at acceptance and not at the launch, because a cancellation of the
                # parent also ends children that are still waiting.
                if kind is Kind.JOB and name == names[0] and event.parent_action_id is not None:
                    self._add_child(action_job_id(event.parent_action_id), name)
                return name
        raise RecordError(f"{self.store.url}/open/{names[-1]}/ holds another request than the name says")

    def read(self, name: str) -> Entry | None:
        """Return the entry `name` with its event; None if the entry is not open any more."""
        content = self._get(_open(name))
        if content is None:
            return None
        where = f"{self.store.url}/{_open(name)}"
        found = decode(_EntryFile, content, where=where)
        try:
            event = read_event(json.dumps(found.event).encode())
        except UnreadableEventError as error:
            raise RecordError(f"{where} is not an accepted event: {error}") from error
        return Entry(name=name, kind=found.kind, event=event, received_ms=found.received, size=found.size)

    def owner(self, name: str) -> Owner | None:
        """Return the owner of an open or closed entry; None if the entry never existed."""
        entry = self.read(name)
        return entry.owner if entry is not None else self._closed(name)

    def is_closed(self, name: str) -> bool:
        return self._closed(name) is not None

    def close(self, entry: Entry) -> None:
        """Close the entry of an event after its last message."""
        content = json.dumps(asdict(entry.owner)).encode() + b"\n"
        self.store.put(f"{place(entry.name)}/closed.json", content, if_absent=True)
        self.forget(entry.name)

    def forget(self, name: str) -> None:
        """Remove the folder `open/<entry>/` of a closed entry."""
        # `event.json` is removed last, because replicas adopt an entry as long as its event exists.
        self._free(name)
        self.store.remove(_open(name))

    def open_names(self) -> list[str]:
        """Return the names of all open entries, in the order of their acceptance."""
        found = [each for each in self.store.find("open/") if each.key.endswith("/event.json")]
        found.sort(key=lambda each: each.modified or 0)
        return list(dict.fromkeys(each.key.split("/")[1] for each in found))

    def reserve_cost(self, entry: Entry, dollars: float, *, most: float) -> float | None:
        """Reserve the maximum cost of an open request, unless all open requests of its client together could
        then cost more than `most`. Return None, or the cost of the client's other requests if the reservation
        is not possible. At least one of two concurrent reservations sees the other reservation.
        """
        client = hashlib.sha256(entry.owner.client_id.encode()).hexdigest()[:32]
        amount = math.ceil(dollars * _MICRO)
        self.store.put(f"{_folder(entry.name)}cost-{client}-{amount}", b"")
        there = [each.key.split("/")[1:] for each in self.store.find("open/")]
        is_open = {name for name, *rest in there if rest == ["event.json"]}
        costs: dict[str, int] = {}
        for name, *rest in there:
            noted = _COST.fullmatch("/".join(rest))
            if name in is_open and name != entry.name and noted is not None and noted[1] == client:
                costs[name] = max(costs.get(name, 0), int(noted[2]))
        others = sum(costs.values())
        if amount + others <= math.floor(most * _MICRO):
            return None
        self._free(entry.name)
        return others / _MICRO

    def children(self, parent: str) -> list[str]:
        """Return the ids of the children of the request with the entry `parent`."""
        prefix = f"{place(parent)}/children/"
        return [each.key.removeprefix(prefix) for each in self.store.find(prefix)]

    def keep_targets(self, name: str, find: Callable[[], list[str]]) -> list[str]:
        """Return the jobs that the command `name` concerns. The first call gets the jobs from `find` and
        records them, so that later calls return the same jobs."""
        key = f"{place(name)}/targets.json"
        content = self._get(key)
        if content is None:
            found = find()
            if self.store.put(key, json.dumps(found).encode() + b"\n", if_absent=True):
                return found
            content = self.store.get(key)
        return decode(list[str], content, where=f"{self.store.url}/{key}")

    def keep_letter(self, name: str, content: bytes) -> None:
        """Store a message that cannot be read."""
        self.store.put(f"{place('_letters')}/{name}.json", content)

    def _free(self, name: str) -> None:
        """Remove the reservation of a request's cost."""
        folder = _folder(name)
        for each in self.store.find(folder):
            if _COST.fullmatch(each.key.removeprefix(folder)):
                self.store.remove(each.key)

    def _add_child(self, parent: str, child: str) -> None:
        """Record the job `child` as a child of the request with the entry `parent`."""
        self.store.put(f"{place(parent)}/children/{child}", b"{}\n")

    def _take(self, name: str, owner: Owner, content: bytes) -> bool:
        """Create the entry unless it exists; return whether the entry belongs to `owner`."""
        if (closed := self._closed(name)) is not None:
            return closed == owner
        if self.store.put(_open(name), content, if_absent=True):
            return True
        # Another process has closed the entry since this process read it.
        return self.owner(name) == owner

    def _closed(self, name: str) -> Owner | None:
        key = f"{place(name)}/closed.json"
        content = self._get(key)
        return None if content is None else decode(Owner, content, where=f"{self.store.url}/{key}")

    def _get(self, key: str) -> bytes | None:
        if not any(each.key == key for each in self.store.find(f"{key.rpartition('/')[0]}/")):
            return None
        try:
            return self.store.get(key)
        except MissingObjectError:
            return None


def place(name: str) -> str:
    """Return the key of an entry's second folder, without a final slash. Its objects remain after the entry
    is closed."""
    return f"service/{name}"


def _envelope(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an event that an answer needs, without any field that is too large."""
    kept = {name: table[name] for name in ENVELOPE if name in table}
    short = {name: each for name, each in kept.items() if not isinstance(each, (dict, list))}
    return {
        **{name: each for name, each in short.items() if not isinstance(each, str) or len(each) <= MAX_ID},
        "visited": [],
        "payload": {},
    }


def _folder(name: str) -> str:
    return f"open/{name}/"


def _open(name: str) -> str:
    return f"{_folder(name)}event.json"
