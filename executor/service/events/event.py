"""Reads the benchmark service's events. Unknown fields are accepted, but fields that answers repeat are
checked strictly. The module does no I/O."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from bai_agent.light_dataclass import dataclass
from executor.descriptor.raw_table import at
from executor.errors import UnreadableEventError

MAX_DEPTH = 64
"""Maximum nesting depth of tables and lists in an event. A descriptor needs five levels."""
MAX_ID = 1000
"""Maximum number of characters of an id, which becomes part of messages, tags and labels."""

ENVELOPE = (
    "action_id",
    "parent_action_id",
    "message_id",
    "client_id",
    "client_version",
    "client_username",
    "authenticated",
    "tstamp",
    "visited",
    "type",
    "payload",
)
"""The standard fields of an event."""
_REPEATED = ("parent_action_id", "client_version", "client_username")
"""Text fields of an event that each answer contains as its own fields, in addition to the repeated event."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event that can be answered."""

    table: Mapping[str, Any]
    """The whole event, including unknown fields."""
    action_id: str
    client_id: str

    @property
    def payload(self) -> Mapping[str, Any]:
        """Payload of the event; empty if the payload is not a table."""
        return at(self.table, "payload")

    @property
    def parent_action_id(self) -> str | None:
        """Action id of the parent request; None if there is no parent request."""
        parent = self.table.get("parent_action_id")
        return parent if isinstance(parent, str) and parent and is_utf8(parent) else None

    @property
    def username(self) -> str | None:
        """User name of the event's author, as the service knows the author."""
        name = self.table.get("client_username")
        return name if isinstance(name, str) and name and is_utf8(name) else None


def read_event(content: bytes | None) -> Event:
    """Return the event that a message contains. Raises UnreadableEventError."""
    if content is None:
        raise UnreadableEventError("the message is empty")
    try:
        value = json.loads(content, parse_constant=_not_json, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise UnreadableEventError(f"the message is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnreadableEventError("the message is not a JSON object")
    if _depth(value) > MAX_DEPTH:
        raise UnreadableEventError(f"the message nests deeper than {MAX_DEPTH} tables and lists")
    for name in _REPEATED:
        text = value.get(name)
        if isinstance(text, str) and len(text) > MAX_ID:
            raise UnreadableEventError(f"{name} is longer than {MAX_ID} characters")
    return Event(
        table=value, action_id=_identifier(value, "action_id"), client_id=_identifier(value, "client_id")
    )


def is_utf8(text: str) -> bool:
    """Return whether `text` can be encoded as UTF-8. Text from JSON may contain lone surrogates, which cannot
    be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _identifier(table: Mapping[str, Any], name: str) -> str:
    value = table.get(name)
    if not isinstance(value, str) or not value:
        raise UnreadableEventError(f"{name} is missing or not a text, so that no answer is possible")
    if len(value) > MAX_ID or not is_utf8(value):
        raise UnreadableEventError(f"{name} is longer than {MAX_ID} characters, or not UTF-8")
    return value


def _depth(value: Any) -> int:
    """Return the nesting depth of `value`. The function is not recursive, because `value` may be nested as
    deeply as the JSON reader allows."""
    deepest, level = 0, [value]
    while level:
        deepest += 1
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
        ]
    return deepest


def _not_json(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large for a number")
    return number
