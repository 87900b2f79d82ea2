"""What EC2 says about instances by itself: events of EventBridge, which come through an SQS queue.

They say earlier what a look would find. One that is lost, late or there twice changes nothing: looks go on without them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")
_REGION = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-\d{1,2}")
_LARGEST = 2**18
"""Characters of an event: https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-putevents.html has 256 KB."""
KINDS: Mapping[str, str] = {
    "EC2 Instance State-change Notification": "state-change",
    "EC2 Spot Instance Interruption Warning": "interruption",
}
"""https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-state-changes.html and spot-instance-termination-notices.html"""


class UnreadableInstanceEventError(ValueError):
    """What came is no event; the text says why."""


@dataclass(frozen=True, kw_only=True)
class InstanceEvent:
    """Something has happened to an instance, of a job or not."""

    kind: str
    """One of the values of `KINDS`."""
    instance_id: str
    region: str
    what: str
    """The state that it has now, or the action that is announced."""


def read_instance_event(text: str) -> InstanceEvent | None:
    """Return what an event in JSON says; None where it is about something else. Raises UnreadableInstanceEventError."""
    if len(text) > _LARGEST:
        raise UnreadableInstanceEventError(f"it has {len(text):,} characters")
    try:
        return instance_event(json.loads(text))
    except RecursionError as error:
        raise UnreadableInstanceEventError("it is nested too deeply") from error
    except ValueError as error:
        raise UnreadableInstanceEventError(str(error)) from error


def instance_event(event: Any) -> InstanceEvent | None:
    """Return what an event says; None where it is about something else. Raises UnreadableInstanceEventError."""
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
        raise UnreadableInstanceEventError(f"its {key} is {str(value)[:60]!r}")
    return value
