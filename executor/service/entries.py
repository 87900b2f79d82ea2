"""What was accepted, in the bucket: `open/<entry>/` holds an event whole until all is said about it.

```
open/<entry>/event.json               the event, from its acceptance to its last message
open/<entry>/cost-<client>-<amount>   what the request may cost at most, in millionths of a dollar, as long
service/<entry>/closed.json           whose it was, from then on
service/<entry>/outbox/…              each message: see `outbox.py`
service/<entry>/children/<job-id>     a job whose parent this is
service/<entry>/targets.json          of a command: which jobs it ends
service/_letters/<message>.json       a message that cannot be read, and that its topic has not taken
```
An entry is a job id, or begins with `_`, which no job id does: a command, or a request under an id that another client holds.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from bai_agent.job.store import JobStore, MissingObjectError, RecordError
from executor.service.event import ENVELOPE, MAX_ID, Event, UnreadableEventError, read_event
from executor.service.requests import job_id_of

MAX_EVENT = 700_000
"""Bytes of an event that is passed on in our answers: a broker takes messages of a megabyte."""
_VERSION = 1
_MICRO = 1_000_000
_COST = re.compile(r"cost-([0-9a-f]{32})-([0-9]{1,30})")


class Kind(str, Enum):
    """What an event asks for."""

    JOB = "job"
    COMMAND = "command"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who has made a request."""

    client_id: str
    action_id: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An event that was accepted."""

    name: str
    kind: Kind
    event: Event
    received_ms: int
    size: int
    """Bytes of the message."""

    @property
    def owner(self) -> Owner:
        return Owner(client_id=self.event.client_id, action_id=self.event.action_id)

    @property
    def too_large(self) -> bool:
        """Whether only its envelope was kept."""
        return self.size > MAX_EVENT

    @property
    def is_taken(self) -> bool:
        """Whether the job of this id is another client's."""
        return self.kind is Kind.JOB and self.name.startswith("_")


class Entries:
    """The accepted events. All methods raise StoreError."""

    def __init__(self, store: JobStore) -> None:
        """store: the bucket, from its root."""
        self.store = store

    def accept(self, kind: Kind, event: Event, *, received_ms: int, size: int) -> str:
        """Keep an event, unless it was kept before; return its entry's name. It is safe then, and its parent's request knows of it."""
        owner = Owner(client_id=event.client_id, action_id=event.action_id)
        digest = hashlib.sha256(f"{owner.client_id}\0{owner.action_id}".encode()).hexdigest()[:32]
        if kind is Kind.COMMAND:
            names: tuple[str, ...] = (f"_command-{digest}",)
        else:
            names = (job_id_of(event.action_id), f"_taken-{digest}")
        # As we pass it on, which takes more room where it is not ASCII.
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
                # Now, not at its launch: whoever cancels the parent means what still waits, too.
                if kind is Kind.JOB and name == names[0] and event.parent_action_id is not None:
                    self._add_child(job_id_of(event.parent_action_id), name)
                return name
        raise RecordError(f"{self.store.url}/open/{names[-1]}/ holds another request than its name says")

    def read(self, name: str) -> Entry | None:
        """Return an open entry; None where it is not open any more."""
        content = self._get(_open(name))
        if content is None:
            return None
        where = f"{self.store.url}/{_open(name)}"
        try:
            table = json.loads(content)
            return Entry(
                name=name,
                kind=Kind(table["kind"]),
                event=read_event(json.dumps(table["event"]).encode()),
                received_ms=int(table["received"]),
                size=int(table["size"]),
            )
        except (ValueError, TypeError, KeyError, UnreadableEventError) as error:
            raise RecordError(f"{where} is not an accepted event: {error}") from error

    def owner(self, name: str) -> Owner | None:
        """Return whose an entry is or was; None where there never was one."""
        entry = self.read(name)
        return entry.owner if entry is not None else self._closed(name)

    def is_closed(self, name: str) -> bool:
        return self._closed(name) is not None

    def close(self, entry: Entry) -> None:
        """Let go of an event about which all is said."""
        owner = {"client_id": entry.owner.client_id, "action_id": entry.owner.action_id}
        self.store.put(f"{place(entry.name)}/closed.json", json.dumps(owner).encode() + b"\n", if_absent=True)
        self.forget(entry.name)

    def forget(self, name: str) -> None:
        """Remove the mark of an entry that is closed."""
        # The event goes last: as long as it is there, somebody takes it up.
        self._free(name)
        self.store.remove(_open(name))

    def open_names(self) -> list[str]:
        """Return the names of all open entries, in the order in which they were accepted."""
        found = [each for each in self.store.find("open/") if each.key.endswith("/event.json")]
        found.sort(key=lambda each: each.modified or 0)
        return list(dict.fromkeys(each.key.split("/")[1] for each in found))

    def reserve_cost(self, entry: Entry, dollars: float, *, most: float) -> float | None:
        """Note what an open request may cost, unless it may cost more than `most` with the others of its client that are open.

        Returns None, or what the others may cost where it is too much. Of two that ask at the same moment none is over the bound
        because of it: each sees the other, or comes after it.
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
        """Return the ids of the jobs that were made for the request whose entry is `parent`."""
        prefix = f"{place(parent)}/children/"
        return [each.key.removeprefix(prefix) for each in self.store.find(prefix)]

    def keep_targets(self, name: str, find: Callable[[], list[str]]) -> list[str]:
        """Return which jobs the command `name` is about: those that are kept, else those that `find` finds now."""
        key = f"{place(name)}/targets.json"
        content = self._get(key)
        if content is None:
            found = find()
            if self.store.put(key, json.dumps(found).encode() + b"\n", if_absent=True):
                return found
            content = self.store.get(key)
        try:
            return [str(each) for each in json.loads(content)]
        except (ValueError, TypeError) as error:
            raise RecordError(f"{self.store.url}/{key} is not a list of jobs: {error}") from error

    def keep_letter(self, name: str, content: bytes) -> None:
        """Keep a message that cannot be read."""
        self.store.put(f"{place('_letters')}/{name}.json", content)

    def _free(self, name: str) -> None:
        """Take back what a request may cost."""
        folder = _folder(name)
        for each in self.store.find(folder):
            if _COST.fullmatch(each.key.removeprefix(folder)):
                self.store.remove(each.key)

    def _add_child(self, parent: str, child: str) -> None:
        """Note that the job `child` was made for the request whose entry is `parent`."""
        self.store.put(f"{place(parent)}/children/{child}", b"{}\n")

    def _take(self, name: str, owner: Owner, content: bytes) -> bool:
        """Return whether the entry is `owner`'s, made now or before."""
        if (closed := self._closed(name)) is not None:
            return closed == owner
        if self.store.put(_open(name), content, if_absent=True):
            return True
        # Closed since we looked: as if it had been before.
        return self.owner(name) == owner

    def _closed(self, name: str) -> Owner | None:
        content = self._get(f"{place(name)}/closed.json")
        if content is None:
            return None
        try:
            table: dict[str, Any] = json.loads(content)
            return Owner(client_id=str(table["client_id"]), action_id=str(table["action_id"]))
        except (ValueError, TypeError, KeyError) as error:
            raise RecordError(f"{self.store.url}/{place(name)}/closed.json is not ours: {error}") from error

    def _get(self, key: str) -> bytes | None:
        if not any(each.key == key for each in self.store.find(f"{key.rpartition('/')[0]}/")):
            return None
        try:
            return self.store.get(key)
        except MissingObjectError:
            return None


def place(name: str) -> str:
    """Return the key below which all that lasts of an entry is, without a slash at its end."""
    return f"service/{name}"


def _envelope(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return of an event what an answer needs, whichever of its fields it is that is too large."""
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
