"""Writes events in our name, exactly as the benchmark service and its clients read them. Pure: clock and ids are passed in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Any

from executor.service.event import Event
from executor.service_config import Topics

SERVICE = "ec2-executor"
"""What we call ourselves in `visited`."""


class AppStatus(str, Enum):
    """What a status message says; the values are the wire's."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    FAILED = "FAILED"
    ERROR = "ERROR"
    INITIALIZING = "INITIALIZING"
    SUCCEEDED = "SUCCEEDED"
    CANCELED = "CANCELED"
    METRICS_AVAILABLE = "METRICS AVAILABLE"


class ReturnCode(IntEnum):
    """How a command went."""

    DONE = 0
    FAILED = 1
    INVALID_ARGUMENTS = 2


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message as it is sent."""

    topic: str
    key: str
    value: str
    """JSON."""

    @property
    def table(self) -> dict[str, Any]:
        """What the value holds."""
        table: dict[str, Any] = json.loads(self.value)
        return table


def without_event(message: Message) -> Message:
    """Return the same message without the event that it repeats, for a broker that takes no larger one."""
    table = message.table
    payload = table["payload"]
    for name in ("src_event", "cmd_submit", "return_value"):
        if name in payload:
            payload[name] = None
    if "job" in payload:
        table["payload"] = {"job": payload["job"]}
    return replace(message, value=json.dumps({**table, "visited": table["visited"][-1:]}, allow_nan=False))


@dataclass(frozen=True, kw_only=True)
class MessageWriter:
    """Makes messages: each with a message id and time of its own."""

    topics: Topics
    version: str
    """Ours."""
    node: str | None
    """The machine's name."""
    now_ms: Callable[[], int]
    new_id: Callable[[], str]
    """Draws a message id (uuid4)."""

    def status(
        self, source: Event, status: AppStatus, text: str, *, about: Mapping[str, Any] | None
    ) -> Message:
        """Return a status of the request `source`. about: the event that it speaks of."""
        payload = {"message": text, "status": status.value, "src_event": about}
        return self._message(source, self.topics.status, payload, before=())

    def executor_event(self, source: Event, job: Mapping[str, Any]) -> Message:
        """Return the event that says as which job the request `source` was launched."""
        payload = {**source.payload, "job": dict(job)}
        return self._message(source, self.topics.executor, payload, before=source.table.get("visited"))

    def command_response(
        self, source: Event, code: ReturnCode, text: str, value: Any | None = None
    ) -> Message:
        """Return the answer to the command `source`."""
        payload = {
            "return_code": int(code),
            "message": text,
            "cmd_submit": source.table,
            "return_value": value,
        }
        return self._message(source, self.topics.cmd_return, payload, before=source.table.get("visited"))

    def _message(self, source: Event, topic: str, payload: Mapping[str, Any], *, before: Any) -> Message:
        table, now = source.table, self.now_ms()
        ourselves = {"svc": SERVICE, "tstamp": now, "version": self.version, "node": self.node}
        event = {
            "action_id": source.action_id,
            "parent_action_id": source.parent_action_id,
            "message_id": self.new_id(),
            "client_id": source.client_id,
            "client_version": _text(table, "client_version"),
            "client_username": _text(table, "client_username"),
            "authenticated": table.get("authenticated") is True,
            "tstamp": now,
            "visited": [*(before if isinstance(before, (list, tuple)) else ()), ourselves],
            "type": topic,
            "payload": payload,
        }
        # Escaped beyond ASCII: an event that is passed on may hold halves of characters, which UTF-8 cannot.
        return Message(topic=topic, key=source.client_id, value=json.dumps(event, allow_nan=False))


def _text(table: Mapping[str, Any], name: str) -> str:
    value = table.get(name)
    return value if isinstance(value, str) else ""
