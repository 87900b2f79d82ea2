"""Takes up what was accepted and is not answered: by this replica before a restart, or by another one that has died.

Whose an entry is follows from Kafka's group: that of the replica which holds the partition of its client (`share.py`). A replica that
starts takes up all that is open at once, as it may be the only one and its partitions come some seconds later; what is another's by
then it lets go again. Two that work on one entry for a moment launch it once, and say everything once: the store decides both.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from bai_agent.errors import StoreError
from bai_agent.job.store import RecordError
from executor.service.entries import Entries, Kind
from executor.service.share import Share

log = logging.getLogger(__name__)

_EVERY_S = 60.0
_SHARE_LOOK_S = 1.0
"""Between two looks at whether our share has changed."""


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What is needed of an open entry, which never changes."""

    kind: Kind
    client_id: str
    received_ms: int


class Recovery:
    """Looks for open entries that nobody works on."""

    def __init__(
        self,
        entries: Entries,
        share: Share,
        *,
        take_up: Callable[[str, Kind, str], None],
        looked: Callable[[int], None],
    ) -> None:
        """take_up: called with an entry, its kind, and whose it is. looked: called after each look, with how many entries are open."""
        self._entries = entries
        self._share = share
        self._take_up = take_up
        self._looked = looked
        self._settled: set[str] = set()
        """Open entries about which all is said that this version has to say."""
        self._unshared: set[str] = set()
        """Entries that came to us, and whose client is another's: events with another key than their client."""
        self._known: dict[str, _Known] = {}
        self._seen: set[str] = set()
        self._version = -1

    def run(self, stopping: threading.Event) -> None:
        """Look now, then each minute, and whenever our share has changed."""
        due = 0.0
        while not stopping.is_set():
            if time.monotonic() >= due or self._share.version != self._version:
                due = time.monotonic() + (_EVERY_S if self.look() else _SHARE_LOOK_S)
            stopping.wait(_SHARE_LOOK_S)

    def look(self) -> bool:
        """Take up what is ours to take up; return whether it could be listed."""
        version = self._share.version
        before = {*self._settled, *self._unshared}
        try:
            names = self._entries.open_names()
        except StoreError as error:
            log.warning("what is open cannot be listed: %s", error)
            return False
        there = set(names)
        first, changed = self._version < 0, version != self._version
        # Not what came while they were listed.
        for kept in (self._settled, self._unshared):
            kept -= before - there
        self._known = {name: known for name, known in self._known.items() if name in there}
        # What came since the last look is being worked on by whoever has accepted it.
        found = [
            (name, known)
            for name in names
            if name not in self._settled
            and (changed or name in self._seen)
            and (known := self._read(name)) is not None
            and (first or self._share.holds(known.client_id))
        ]
        for name, known in sorted(found, key=lambda each: each[1].received_ms):
            self._take_up(name, known.kind, known.client_id)
        self._seen, self._version = there, version
        self._looked(len(names))
        return True

    def accepted(self, name: str, client_id: str) -> None:
        """Hear that an event came to us: we work on it, whosever its client is."""
        if not self._share.may_hold(client_id):
            self._unshared.add(name)

    def settle(self, name: str) -> None:
        """Hear that there is nothing left to be done for an entry."""
        self._settled.add(name)

    def is_ours(self, name: str, client_id: str) -> bool:
        """Return whether an entry that was taken up is still ours."""
        return name in self._unshared or self._share.may_hold(client_id)

    def _read(self, name: str) -> _Known | None:
        if name in self._known:
            return self._known[name]
        try:
            entry = self._entries.read(name)
        except StoreError as error:
            log.warning("%s", error)
            if isinstance(error, RecordError):
                self.settle(name)
            return None
        if entry is None:
            return None
        self._known[name] = _Known(
            kind=entry.kind, client_id=entry.owner.client_id, received_ms=entry.received_ms
        )
        return self._known[name]
