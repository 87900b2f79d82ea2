"""Events are read as they come, and those that cannot be answered are refused as unreadable."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service_events import JSON, encoded, fetcher_event

from executor.errors import UnreadableEventError
from executor.service.events.event import Event, read_event


def read_or_refused(content: bytes | None) -> Event | None:
    try:
        return read_event(content)
    except UnreadableEventError:
        return None


@given(st.binary(max_size=200) | st.none())
def test_any_bytes_are_an_event_or_refused(content: bytes | None) -> None:
    assert read_or_refused(content) is None


@given(JSON)
def test_any_json_is_an_event_or_refused(value: Any) -> None:
    read_or_refused(json.dumps(value).encode())


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5))
def test_unknown_fields_are_kept(fields: dict[str, Any]) -> None:
    table = {**fields, "action_id": "a", "client_id": "c"}

    event = read_or_refused(json.dumps(table).encode())

    if event is not None:
        assert json.dumps(event.table, sort_keys=True) == json.dumps(table, sort_keys=True)
        assert isinstance(event.payload, dict)
        assert event.parent_action_id is None or event.parent_action_id == table["parent_action_id"]


def test_quirks_of_the_services_own_events_are_accepted() -> None:
    quirks: dict[str, Any] = {"visited": [], "tstamp": 42, "client_version": "DONTCARE", "message_id": "x"}
    event = read_event(encoded(fetcher_event(action_id="ACTION-ID-12345678", **quirks)))

    assert (event.action_id, event.username) == ("ACTION-ID-12345678", "bellgav")
    assert event.table["tstamp"] == 42


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is empty"),
        (b"", "not JSON"),
        (b'{"action_id": "a", "client', "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "action_id is missing"),
        (b'{"action_id": 1, "client_id": "c"}', "action_id is missing or not a text"),
        (b'{"action_id": "", "client_id": "c"}', "action_id is missing"),
        (b'{"action_id": "a", "client_id": null}', "client_id is missing"),
        (b'{"action_id": "\\ud800", "client_id": "c"}', "not UTF-8"),
        (b'{"action_id": "' + b"a" * 1001 + b'", "client_id": "c"}', "longer than"),
        (b'{"action_id": "a", "client_id": "c", "client_username": "' + b"a" * 1001 + b'"}', "longer than"),
        (b'{"action_id": "a", "client_id": "c", "x": NaN}', "not JSON"),
        (b'{"action_id": "a", "client_id": "c", "x": 1e999}', "is too large for a number"),
        (b'{"action_id": "a", "client_id": "c", "x": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"action_id": "a", "client_id": "c", "x": ' + b"[" * 65 + b"]" * 65 + b"}", "deeper"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_an_event_that_cannot_be_answered_is_refused_with_a_reason(content: bytes | None, said: str) -> None:
    with pytest.raises(UnreadableEventError, match=said):
        read_event(content)
