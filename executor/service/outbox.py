"""Messages that are kept before they are sent: whoever dies in between, the same bytes are sent again.

`outbox/<name>.json` is a message, and decides which one it is; `outbox/<name>.sent` says that Kafka has taken it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict

from bai_agent.job.store import JobStore, RecordError
from executor.service.broker import MessageTooLargeError
from executor.service.entries import place
from executor.service.messages import Message, without_event

log = logging.getLogger(__name__)


class Outbox:
    """The messages about one entry. All methods raise StoreError, and those that send SendError."""

    def __init__(self, store: JobStore, entry: str, send: Callable[[Message], None]) -> None:
        """send: returns when Kafka has taken a message."""
        self._store = store
        self._send = send
        self._place = f"{place(entry)}/outbox"
        self._there: set[str] | None = None

    def keep(self, name: str, make: Callable[[], Message]) -> Message:
        """Return the message `name`: the one that is kept, else the one that `make` makes now."""
        if not self.is_kept(name):
            message = make()
            content = json.dumps(asdict(message)).encode() + b"\n"
            if self._put(f"{name}.json", content):
                return message
        return self._kept(name)

    def post(self, name: str, make: Callable[[], Message]) -> Message:
        """Keep the message `name`, and have it sent unless it was; return it. Raises MessageTooLargeError, too.

        What Kafka finds too large is sent without the event that it repeats.
        """
        message = self.keep(name, make)
        if not self.is_sent(name):
            try:
                self._send(message)
            except MessageTooLargeError as error:
                log.warning("%s; it is sent without the event that it is about", error)
                self._send(without_event(message))
            self._put(f"{name}.sent", b"{}\n")
        return message

    def is_kept(self, name: str) -> bool:
        return self._has(f"{name}.json")

    def is_sent(self, name: str) -> bool:
        return self._has(f"{name}.sent")

    def _kept(self, name: str) -> Message:
        key = f"{self._place}/{name}.json"
        try:
            table = json.loads(self._store.get(key))
            return Message(topic=str(table["topic"]), key=str(table["key"]), value=str(table["value"]))
        except (ValueError, TypeError, KeyError) as error:
            raise RecordError(f"{self._store.url}/{key} is not a message: {error}") from error

    def _has(self, name: str) -> bool:
        if self._there is None:
            found = self._store.find(f"{self._place}/")
            self._there = {each.key.rpartition("/")[2] for each in found}
        return name in self._there

    def _put(self, name: str, content: bytes) -> bool:
        new = self._store.put(f"{self._place}/{name}", content, if_absent=True)
        if not new:
            # Somebody works on it beside us, and may have kept more.
            self._there = None
        elif self._there is not None:
            self._there.add(name)
        return new
