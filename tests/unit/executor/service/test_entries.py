"""Accepted events in the store: each once, each with one owner, for as long as something is to be said."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from service_events import ACTION, CLIENT, cancel_event, encoded, fetcher_event

from bai_agent.errors import RecordError
from bai_agent.job.store.directory import DirectoryStore
from executor.service.entries import MAX_EVENT, Entries, Entry, Kind
from executor.service.events.event import read_event


@pytest.fixture
def entries(tmp_path: Path) -> Entries:
    return Entries(DirectoryStore(tmp_path))


def accept(entries: Entries, *, size: int = 100, **options: Any) -> str:
    event = read_event(encoded(fetcher_event(**options)))
    return entries.accept(Kind.JOB, event, received_ms=7, size=size)


def entry(entries: Entries, name: str) -> Entry:
    found = entries.read(name)
    assert found is not None
    return found


def test_an_accepted_event_is_stored_completely(entries: Entries) -> None:
    name = accept(entries)

    assert name == ACTION
    found = entry(entries, name)
    assert (found.event.table, found.received_ms, found.is_taken) == (fetcher_event(), 7, False)
    assert entries.open_names() == [ACTION]


def test_open_requests_are_listed_in_the_order_of_acceptance(entries: Entries, tmp_path: Path) -> None:
    for time, action_id in enumerate(("b", "c", "a")):
        accept(entries, action_id=action_id)
        os.utime(tmp_path / "open" / action_id / "event.json", (time, time))

    assert entries.open_names() == ["b", "c", "a"]


def test_a_repeated_request_is_the_same_entry(entries: Entries) -> None:
    names = {accept(entries), accept(entries, message_id="again")}

    assert names == {ACTION}
    assert entry(entries, ACTION).event.table == fetcher_event()


def test_an_event_with_an_id_of_another_client_is_stored_as_taken(entries: Entries) -> None:
    accept(entries)

    second = accept(entries, client_id="mallory")

    assert second.startswith("_taken-")
    assert entry(entries, second).is_taken
    assert accept(entries, client_id="mallory") == second
    assert entry(entries, ACTION).event.client_id == CLIENT


def test_a_closed_request_still_belongs_to_its_owner(entries: Entries) -> None:
    accept(entries)
    entries.close(entry(entries, ACTION))

    assert entries.open_names() == []
    assert accept(entries) == ACTION
    assert entries.open_names() == [], "a closed request is not opened again"
    assert accept(entries, client_id="mallory").startswith("_taken-")
    owner = entries.owner(ACTION)
    assert owner is not None
    assert owner.client_id == CLIENT


def test_closing_a_request_twice_has_no_effect(entries: Entries) -> None:
    accept(entries)
    found = entry(entries, ACTION)

    entries.close(found)
    entries.close(found)

    assert entries.is_closed(ACTION)
    assert entries.read(ACTION) is None


def test_the_entry_of_a_command_cannot_collide_with_that_of_a_job(entries: Entries) -> None:
    event = read_event(encoded(cancel_event({"target_action_id": "x"}, action_id=ACTION)))

    name = entries.accept(Kind.COMMAND, event, received_ms=7, size=1)
    accept(entries)

    assert name.startswith("_command-")
    assert entry(entries, name).kind is Kind.COMMAND
    assert len(entries.open_names()) == 2


def test_only_the_envelope_of_a_too_large_event_is_kept(entries: Entries) -> None:
    found = entry(entries, accept(entries, size=MAX_EVENT + 1))

    assert found.too_large
    assert (found.event.action_id, found.event.client_id, found.event.payload) == (ACTION, CLIENT, {})


@pytest.mark.parametrize("field", ["unknown", "visited", "message_id", "type"])
def test_an_event_with_an_overlarge_field_can_still_be_answered(entries: Entries, field: str) -> None:
    large: dict[str, Any] = {field: "x" * (MAX_EVENT + 1)}

    found = entry(entries, accept(entries, **large))

    assert found.too_large
    assert len(encoded(found.event.table)) < 1000
    assert found.event.username == "bellgav"


def test_an_events_size_is_that_of_its_escaped_text(entries: Entries) -> None:
    text = "é" * 150_000
    event = fetcher_event(payload={"x": text})

    name = entries.accept(
        Kind.JOB, read_event(json.dumps(event, ensure_ascii=False).encode()), received_ms=7, size=300_000
    )

    assert entry(entries, name).too_large, "escaped it is three times as large"


def test_an_accepted_event_is_found_by_its_parent(entries: Entries) -> None:
    for action_id in ("a", "b", "a"):
        accept(entries, action_id=action_id, parent="parent")
    accept(entries, action_id="a", parent="parent", client_id="mallory")

    assert entries.children("parent") == ["a", "b"]
    assert entries.children("other") == []


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"kind": "job", "event": {}, "received": 1, "size": 1}']
)
def test_an_unreadable_stored_event_is_reported(entries: Entries, content: bytes) -> None:
    entries.store.put("open/x/event.json", content)

    with pytest.raises(RecordError, match="open/x"):
        entries.read("x")


def test_open_requests_of_a_client_cost_no_more_than_its_bound(entries: Entries) -> None:
    mine = [entry(entries, accept(entries, action_id=f"job-{number}")) for number in range(3)]
    theirs = entry(entries, accept(entries, action_id="theirs", client_id="mallory"))

    assert entries.reserve_cost(theirs, 9, most=10) is None
    assert [entries.reserve_cost(each, 5, most=10) for each in mine] == [None, None, 10]
    # the same request again, after a kill, counts once
    assert entries.reserve_cost(mine[0], 5, most=10) is None
    # what has ended costs no more, and what was refused nothing
    entries.close(mine[1])
    assert entries.reserve_cost(mine[2], 5, most=10) is None
    assert sorted(entries.open_names()) == ["job-0", "job-2", "theirs"]


def test_a_closed_request_has_no_open_objects(entries: Entries, tmp_path: Path) -> None:
    mine = entry(entries, accept(entries))
    entries.reserve_cost(mine, 5, most=10)

    entries.close(mine)

    assert [each for each in (tmp_path / "open").rglob("*") if each.is_file()] == []


def test_concurrent_requests_together_stay_below_the_cost_bound(tmp_path: Path) -> None:
    replicas = [Entries(DirectoryStore(tmp_path)) for _ in range(6)]
    mine = [accept(replicas[0], action_id=f"job-{number}") for number in range(6)]
    together = Barrier(len(mine))

    def reserve(replica: Entries, name: str) -> float | None:
        found = entry(replica, name)
        together.wait(60)
        return replica.reserve_cost(found, 1, most=3)

    with ThreadPoolExecutor(len(mine)) as threads:
        refused = list(threads.map(reserve, replicas, mine))

    assert refused.count(None) <= 3
    # and what was refused leaves its room to others
    left = [name for name, why in zip(mine, refused, strict=True) if why is not None]
    granted = [replicas[0].reserve_cost(entry(replicas[0], name), 1, most=3) for name in left]
    assert refused.count(None) + granted.count(None) == 3
