"""Messages of the service have exactly the form that its readers expect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service_events import CLIENT, cancel_event, encoded, fetcher_event

from executor.configuration.service_config import Topics
from executor.errors import UnreadableEventError
from executor.service.events.event import Event, read_event
from executor.service.events.messages import AppStatus, MessageWriter, ReturnCode

ENVELOPE = {
    *("action_id", "parent_action_id", "message_id", "client_id", "client_version", "client_username"),
    *("authenticated", "tstamp", "visited", "type", "payload"),
}
OURS = {"svc": "ec2-executor", "tstamp": 7, "version": "1.2.3", "node": "here"}
ODD = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.lists(st.text())
    | st.dictionaries(st.text(), st.text())
)


def writer() -> MessageWriter:
    ids = (f"id-{number}" for number in range(100))
    return MessageWriter(
        topics=Topics(), version="1.2.3", node="here", now_ms=lambda: 7, new_id=lambda: next(ids)
    )


def event(**changes: Any) -> Event:
    return read_event(encoded(fetcher_event(**changes)))


def test_a_status_message_has_every_field_and_only_this_service_in_visited() -> None:
    source = event()

    message = writer().status(source, AppStatus.METRICS_AVAILABLE, "Metrics available", about=source.table)

    assert (message.topic, message.key) == ("BAI_APP_STATUS", CLIENT)
    assert json.loads(message.value) == {
        "action_id": source.action_id,
        "parent_action_id": None,
        "message_id": "id-0",
        "client_id": CLIENT,
        "client_version": "0.6.2",
        "client_username": "bellgav",
        "authenticated": False,
        "tstamp": 7,
        "visited": [OURS],
        "type": "BAI_APP_STATUS",
        "payload": {
            "message": "Metrics available",
            "status": "METRICS AVAILABLE",
            "src_event": fetcher_event(),
        },
    }


def test_the_executor_event_adds_the_job_and_this_service_to_the_fetcher_event() -> None:
    source = event(parent="cron-1")
    job = {"id": "j", "output": None, "extras": {"region": "r"}}

    sent = writer().executor_event(source, job).table

    assert sent["payload"] == {**fetcher_event()["payload"], "job": job}
    assert sent["visited"] == [*fetcher_event()["visited"], OURS]
    assert (sent["type"], sent["parent_action_id"]) == ("BAI_APP_EXECUTOR", "cron-1")


def test_an_answer_to_a_command_repeats_the_whole_command() -> None:
    asked = cancel_event({"target_action_id": "x"})

    message = writer().command_response(
        read_event(encoded(asked)), ReturnCode.INVALID_ARGUMENTS, "Cancel command failed: Invalid args"
    )

    assert (message.topic, message.table["action_id"]) == ("CMD_RETURN", "cancel-1")
    assert message.table["payload"] == {
        "return_code": 2,
        "message": "Cancel command failed: Invalid args",
        "cmd_submit": asked,
        "return_value": None,
    }


def test_null_fields_are_written_in_messages() -> None:
    message = writer().status(event(), AppStatus.ERROR, "no", about=None)

    assert '"src_event": null' in message.value
    assert '"parent_action_id": null' in message.value


def test_each_message_has_an_id_of_its_own() -> None:
    write = writer()

    ids = [write.status(event(), AppStatus.PENDING, "", about=None).table["message_id"] for _ in range(3)]

    assert ids == ["id-0", "id-1", "id-2"]


@pytest.mark.parametrize("visited", [None, "bff", 3, {"svc": "x"}])
def test_a_visited_that_is_not_a_list_is_replaced(visited: Any) -> None:
    assert writer().executor_event(event(visited=visited), {}).table["visited"] == [OURS]


@given(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("client_version", "client_username", "authenticated", "tstamp", "visited", "payload", "x"), ODD
        ),
    )
)
def test_any_event_gives_an_envelope_with_valid_types(fields: Mapping[str, Any]) -> None:
    try:
        source = read_event(encoded({"action_id": "a", "client_id": "ü", **fields}))
    except UnreadableEventError:
        return
    for message in (
        writer().status(source, AppStatus.FAILED, "t", about=source.table),
        writer().executor_event(source, {}),
        writer().command_response(source, ReturnCode.DONE, "t"),
    ):
        table = json.loads(message.value.encode())
        assert table.keys() == ENVELOPE
        assert message.key.encode() == "ü".encode()
        assert isinstance(table["client_version"], str)
        assert isinstance(table["client_username"], str)
        assert type(table["authenticated"]) is bool
        assert type(table["tstamp"]) is int
        assert table["visited"][-1] == OURS
        assert isinstance(table["payload"], dict)
