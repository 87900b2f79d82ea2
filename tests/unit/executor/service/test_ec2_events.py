"""What EC2 says about instances is read, and nothing else is taken for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from instance_events import INSTANCE, REGION, interruption, scheduled, state_change
from service_events import JSON

from executor.service.event_queue import queue_region
from executor.service.events.ec2_events import (
    InstanceEvent,
    UnreadableInstanceEventError,
    read_instance_event,
)


@pytest.mark.parametrize(
    ("event", "kind", "what"),
    [(state_change(), "state-change", "terminated"), (interruption(), "interruption", "terminate")],
)
def test_sample_events_of_the_ec2_documentation_are_read(event: dict[str, Any], kind: str, what: str) -> None:
    assert read_instance_event(json.dumps(event)) == InstanceEvent(
        kind=kind, instance_id=INSTANCE, region=REGION, what=what
    )


@pytest.mark.parametrize(
    "event",
    [
        scheduled(),
        {**state_change(), "source": "mine"},
        {**state_change(), "detail-type": "EBS Volume Notification"},
        {**state_change(), "detail-type": ["EC2 Instance State-change Notification"]},
        {},
    ],
)
def test_events_that_are_not_about_instances_are_ignored(event: dict[str, Any]) -> None:
    assert read_instance_event(json.dumps(event)) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("[]", "not a table"),
        ("[" * 100_000, "nested|recursion"),
        (json.dumps({**state_change(), "padding": "x" * 300_000}), "characters"),
        (json.dumps(state_change("i-1\n")), "instance-id"),
        (json.dumps(state_change("../../etc")), "instance-id"),
        (json.dumps(state_change(region="evil.example.com/")), "region"),
        (json.dumps({**state_change(), "detail": ["i-0abcd1111abcd1111"]}), "instance-id"),
    ],
    ids=["empty", "list", "deep", "huge", "short id", "path", "host", "no detail"],
)
def test_a_message_that_is_no_event_is_refused_with_a_reason(text: str, why: str) -> None:
    with pytest.raises(UnreadableInstanceEventError, match=why):
        read_instance_event(text)


@given(
    JSON,
    st.sampled_from([None, "detail", "region", "detail-type", "source"]),
)
def test_any_message_is_read_or_refused(anything: Any, key: str | None) -> None:
    event = anything if key is None else {**state_change(), key: anything}
    try:
        found = read_instance_event(json.dumps(event))
    except UnreadableInstanceEventError:
        return
    assert found is None or found.instance_id == INSTANCE


@given(st.text())
def test_a_plain_string_is_refused_as_an_event(text: str) -> None:
    with pytest.raises(UnreadableInstanceEventError):
        read_instance_event(f"{text}x")


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("https://sqs.eu-central-1.amazonaws.com/123456789012/bai", "eu-central-1"),
        ("https://us-east-1.queue.amazonaws.com/123456789012/bai", "us-east-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/123456789012/bai.fifo", "cn-north-1"),
        ("http://127.0.0.1:4566/123456789012/bai", None),
    ],
)
def test_the_region_of_a_queue_is_read_from_its_url(url: str, region: str | None) -> None:
    assert queue_region(url) == region
