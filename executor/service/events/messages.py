"""Writes messages in the form that the benchmark service and its clients expect. Only `message_writer` does
I/O; the clock and new ids are passed in."""

from __future__ import annotations

import json
import platform
import uuid
from collections.abc import Callable, Mapping
from enum import Enum, IntEnum
from typing import Any

from bai_agent import __version__
from bai_agent.job.run_directory import now_ms
from bai_agent.light_dataclass import dataclass, replace
from executor.configuration.service_config import Topics
from executor.descriptor.raw_table import text_at
from executor.service.events.event import Event

SERVICE = "ec2-executor"
"""Name of this service in `visited`."""


class AppStatus(str, Enum):
    """The status in a message. The values are sent unchanged."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    FAILED = "FAILED"
    ERROR = "ERROR"
    INITIALIZING = "INITIALIZING"
    SUCCEEDED = "SUCCEEDED"
    CANCELED = "CANCELED"
    METRICS_AVAILABLE = "METRICS AVAILABLE"


class ReturnCode(IntEnum):
    """The result of a command."""

    DONE = 0
    FAILED = 1
    INVALID_ARGUMENTS = 2


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message for Kafka."""

    topic: str
    key: str
    value: str
    """Value of the message, as JSON."""

    @property
    def table(self) -> dict[str, Any]:
        """The decoded value."""
        table: dict[str, Any] = json.loads(self.value)
        return table


def without_event(message: Message) -> Message:
    """Return the message without its copy of the event, for a broker with a low limit on message sizes."""
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
    """Creates messages, each with a new message id and the current time."""

    topics: Topics
    version: str
    """Version of this service."""
    node: str | None
    """Name of this machine; None if unknown."""
    now_ms: Callable[[], int]
    new_id: Callable[[], str]
    """Returns a new message id (uuid4)."""

    def status(
        self, source: Event, status: AppStatus, text: str, *, about: Mapping[str, Any] | None
    ) -> Message:
        """Return a status message for the request `source`. about: the event that the message repeats."""
        payload = {"message": text, "status": status.value, "src_event": about}
        return self._message(source, self.topics.status, payload, before=())

    def executor_event(self, source: Event, job: Mapping[str, Any]) -> Message:
        """Return the event that describes the launched job of the request `source`."""
        payload = {**source.payload, "job": dict(job)}
        return self._message(source, self.topics.executor, payload, before=source.table.get("visited"))

    def command_response(
        self, source: Event, code: ReturnCode, text: str, value: Any | None = None
    ) -> Message:
        """Return the answer to the command in the event `source`."""
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
            "client_version": text_at(table, "client_version"),
            "client_username": text_at(table, "client_username"),
            "authenticated": table.get("authenticated") is True,
            "tstamp": now,
            "visited": [*(before if isinstance(before, (list, tuple)) else ()), ourselves],
            "type": topic,
            "payload": payload,
        }
        # All characters beyond ASCII are escaped, because a repeated event may contain lone surrogates, which
        # UTF-8 cannot encode.
        return Message(topic=topic, key=source.client_id, value=json.dumps(event, allow_nan=False))


def message_writer(topics: Topics) -> MessageWriter:
    """Return a writer with the name and clock of this machine."""
    return MessageWriter(
        topics=topics,
        version=__version__,
        node=platform.node() or None,
        now_ms=now_ms,
        new_id=lambda: str(uuid.uuid4()),
    )
