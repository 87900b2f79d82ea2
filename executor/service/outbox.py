"""Stores each message before it is sent, so that exactly the same bytes are sent again after the process was
killed.

`outbox/<name>.json` is a message. A stored message is never replaced. `outbox/<name>.sent` records that Kafka
has acknowledged the message.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict

from bai_agent.decode import decode
from bai_agent.job.store import JobStore
from executor.errors import MessageTooLargeError
from executor.service.entries import place
from executor.service.events.messages import Message, without_event

log = logging.getLogger(__name__)


def _never() -> Message:
    raise ValueError("this message was not kept")


class Outbox:
    """The messages of one entry. All methods raise StoreError; methods that send also raise SendError."""

    def __init__(self, store: JobStore, entry: str, send: Callable[[Message], None]) -> None:
        """send: function that sends a message, and returns after Kafka has acknowledged the message."""
        self._store = store
        self._send = send
        self._place = f"{place(entry)}/outbox"
        self._there: set[str] | None = None

    def keep(self, name: str, make: Callable[[], Message] = _never) -> Message:
        """Return the stored message `name`. If no message `name` is stored, store and return the message that
        `make` returns. Raises ValueError if there is neither a stored message nor `make`."""
        if not self.is_kept(name):
            message = make()
            content = json.dumps(asdict(message)).encode() + b"\n"
            if self._put(f"{name}.json", content):
                return message
        return self._kept(name)

    def post(self, name: str, make: Callable[[], Message] = _never) -> Message:
        """Store the message `name` as `keep` does, send it unless it has already been sent, and return it.
        Also raises MessageTooLargeError.

        A message that is too large for Kafka is sent without the event that the message repeats.
        """
        message = self.keep(name, make)
        if not self.is_sent(name):
            try:
                self._send(message)
            except MessageTooLargeError as error:
                log.warning("%s; the message is sent without the event that it repeats", error)
                self._send(without_event(message))
            self._put(f"{name}.sent", b"{}\n")
        return message

    def is_kept(self, name: str) -> bool:
        return self._has(f"{name}.json")

    def is_sent(self, name: str) -> bool:
        return self._has(f"{name}.sent")

    def _kept(self, name: str) -> Message:
        key = f"{self._place}/{name}.json"
        return decode(Message, self._store.get(key), where=f"{self._store.url}/{key}")

    def _has(self, name: str) -> bool:
        if self._there is None:
            found = self._store.find(f"{self._place}/")
            self._there = {each.key.rpartition("/")[2] for each in found}
        return name in self._there

    def _put(self, name: str, content: bytes) -> bool:
        new = self._store.put(f"{self._place}/{name}", content, if_absent=True)
        if not new:
            # Another replica may also use this outbox, and may have added messages, so the outbox must be
            # read again.
            self._there = None
        elif self._there is not None:
            self._there.add(name)
        return new
