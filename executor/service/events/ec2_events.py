"""Reads EC2's own events about instances, which EventBridge sends to an SQS queue.

An event of EC2 only causes an earlier check of a job. A lost, late or duplicate event does no harm, because
the regular checks continue.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bai_agent.decode import parse_json
from bai_agent.errors import RecordError
from bai_agent.light_dataclass import dataclass

_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")
_REGION = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-\d{1,2}")
_LARGEST = 2**18
"""Maximum number of characters of an event:
https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-putevents.html allows 256 KB."""
KINDS: Mapping[str, str] = {
    "EC2 Instance State-change Notification": "state-change",
    "EC2 Spot Instance Interruption Warning": "interruption",
}
"""https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-state-changes.html and spot-instance-termination-notices.html"""


class UnreadableInstanceEventError(ValueError):
    """Raised for a message that is not an event; the text contains the reason."""


@dataclass(frozen=True, kw_only=True)
class InstanceEvent:
    """An event about an instance. The instance need not belong to a job."""

    kind: str
    """Kind of the event: one of the values of `KINDS`."""
    instance_id: str
    region: str
    what: str
    """Current state of the instance, or the announced action."""


def read_instance_event(text: str) -> InstanceEvent | None:
    """Return the event in a JSON text; None if the text is about something else. Raises
    UnreadableInstanceEventError."""
    if len(text) > _LARGEST:
        raise UnreadableInstanceEventError(f"the message has {len(text):,} characters")
    try:
        event = parse_json(text, where="it")
    except RecordError as error:
        raise UnreadableInstanceEventError(str(error)) from error
    return instance_event(event)


def instance_event(event: Any) -> InstanceEvent | None:
    """Return the event in a table; None if the table is about something else. Raises
    UnreadableInstanceEventError."""
    if not isinstance(event, dict):
        raise UnreadableInstanceEventError("it is not a table")
    named = event.get("detail-type")
    kind = KINDS.get(named) if isinstance(named, str) else None
    if event.get("source") != "aws.ec2" or kind is None:
        return None
    detail = event.get("detail")
    detail = detail if isinstance(detail, dict) else {}
    return InstanceEvent(
        kind=kind,
        instance_id=_matching(_INSTANCE, detail.get("instance-id"), "detail.instance-id"),
        region=_matching(_REGION, event.get("region"), "region"),
        what=str(detail.get("state") or detail.get("instance-action") or "")[:32],
    )


def _matching(pattern: re.Pattern[str], value: Any, key: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise UnreadableInstanceEventError(f"the message's {key} is {str(value)[:60]!r}")
    return value
