"""What nodes write about generations is read as anything that a stranger wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bai_agent.errors import BaiError, RecordError, StoreError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.generation_records import (
    DecisionKind,
    GenerationEnd,
    Leaving,
    Ledger,
    NextGeneration,
    ScaleRequest,
    Sign,
)
from bai_agent.job.peers import Members, Peer
from bai_agent.job.record import JobRecord
from bai_agent.job.store import StoredObject
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.light_dataclass import replace

PEERS = tuple(Peer(rank=rank, address=f"10.0.0.{rank}", port=1000 + rank) for rank in range(2))
NEXT = NextGeneration(
    kind=DecisionKind.RUN,
    members=[3, 0],
    why="lost",
    nodes=[1],
    planned=True,
    ledger=Ledger(restarts=1, waiting_since=5, losses={"1": 2}, began=1),
    sentence="Node 1 sent no heartbeat.",
    time=1000,
)


class LyingStore(DirectoryStore):
    """One that answers some puts with "exists" though nothing is there, as S3 does while another put is under way."""

    lies = 0

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        if if_absent and self.lies:
            self.lies -= 1
            return False
        return super().put(key, content, if_absent=if_absent)


@pytest.fixture
def store(tmp_path: Path) -> LyingStore:
    return LyingStore(tmp_path)


@pytest.fixture
def attempt(store: LyingStore) -> AttemptRecord:
    return AttemptRecord(JobRecord(store, "job"))


def test_a_decision_is_written_once_and_read_back(attempt: AttemptRecord) -> None:
    assert attempt.settle_generation(1, NEXT) == NEXT
    assert attempt.settle_generation(1, NextGeneration(kind=DecisionKind.END, outcome="failed")) == NEXT
    assert attempt.generation(1) == NEXT
    assert set(attempt.control().generations) == {1}


def test_a_decision_that_the_store_wrongly_reports_as_existing_is_written_again(
    store: LyingStore, attempt: AttemptRecord
) -> None:
    store.lies = 2

    assert attempt.settle_generation(1, NEXT) == NEXT


def test_a_decision_is_not_made_if_the_reported_object_never_appears(
    store: LyingStore, attempt: AttemptRecord
) -> None:
    store.lies = 100

    with pytest.raises(StoreError, match="cannot be written"):
        attempt.settle_generation(1, NEXT)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "walk"),
        ("kind", None),
        ("members", [0, 0]),
        ("members", []),
        ("members", [-1]),
        ("members", ["0"]),
        ("members", 3),
        ("nodes", [[]]),
        ("planned", 1),
        ("ledger", {"losses": {"1": -1}}),
        ("ledger", {"restarts": True}),
        ("backoff_seconds", -1),
        ("time", -1),
    ],
)
def test_a_malformed_decision_is_refused(
    store: LyingStore, attempt: AttemptRecord, name: str, value: Any
) -> None:
    attempt.settle_generation(1, NEXT)
    key = attempt.key("control/generation-000001.json")
    table = {**json.loads(store.get(key)), name: value}
    store.put(key, json.dumps(table).encode())

    with pytest.raises(RecordError, match=r"generation-000001\.json"):
        attempt.generation(1)


def test_a_decision_of_another_version_may_have_more_keys(store: LyingStore, attempt: AttemptRecord) -> None:
    key = attempt.key("control/generation-000001.json")
    store.put(key, b'{"kind": "end", "outcome": "failed", "weather": "fine"}')

    assert attempt.generation(1) == NextGeneration(kind=DecisionKind.END, outcome="failed")


@pytest.mark.parametrize("checkpoint", [None, "g000002-1"])
def test_a_generation_begins_once_with_its_members_and_checkpoint(
    attempt: AttemptRecord, checkpoint: str | None
) -> None:
    begun = attempt.begin_generation(2, Members(peers=PEERS, key=b"k" * 32), checkpoint=checkpoint)

    assert begun.members == Members(peers=PEERS, key=b"k" * 32)
    assert begun.checkpoint == checkpoint
    assert attempt.begin_generation(2, Members(peers=PEERS[:1])) == begun
    assert set(attempt.control().begun) == {2}


@pytest.mark.parametrize("checkpoint", ["../x", "", "a/b", ".hidden", 7, ["x"], "x" * 101])
def test_a_checkpoint_whose_name_is_a_path_is_refused(
    store: LyingStore, attempt: AttemptRecord, checkpoint: Any
) -> None:
    attempt.begin_generation(2, Members(peers=PEERS))
    key = attempt.key("control/begin-000002.json")
    store.put(key, json.dumps({**json.loads(store.get(key)), "checkpoint": checkpoint}).encode())

    with pytest.raises(BaiError, match="checkpoint"):
        attempt.beginning(2)


def test_announcing_a_launch_twice_has_no_effect(attempt: AttemptRecord) -> None:
    attempt.launch_generation(2)
    attempt.launch_generation(2)

    assert set(attempt.control().launches) == {2}


def test_a_node_that_joins_again_names_its_last_generation(attempt: AttemptRecord) -> None:
    attempt.join(PEERS[1])
    assert attempt.joined_node(1).after is None

    attempt.join(PEERS[1], after=3, boot="b-1")

    joined = attempt.joined_node(1)
    assert (joined.peer, joined.after, joined.boot) == (PEERS[1], 3, "b-1")
    assert attempt.peer(1) == PEERS[1]


@pytest.mark.parametrize("more", [{"after": -1}, {"after": "3"}, {"boot": 5}, {"rank": 2}])
def test_a_node_that_joined_with_nonsense_is_refused(
    store: LyingStore, attempt: AttemptRecord, more: dict[str, Any]
) -> None:
    attempt.join(PEERS[1])
    key = attempt.key("joined/1.json")
    store.put(key, json.dumps({**json.loads(store.get(key)), **more}).encode())

    with pytest.raises(RecordError, match=r"joined/1\.json"):
        attempt.joined_node(1)


def test_signs_of_life_contain_the_nodes_generation(attempt: AttemptRecord) -> None:
    sign = Sign(time=1, phase="run", silent_s=2.0, generation=4, restored=True, seen=["loss"])
    attempt.give_sign(3, sign)
    attempt.give_leader_sign(3, Sign(generation=4))
    attempt.leave(Leaving(node=2, seconds=110.0, time=5))
    attempt.be_ready(0, 1)

    found = attempt.last_sign(3)
    assert (found.node, found.generation, found.restored, found.seen) == (3, 4, True, ["loss"])
    assert attempt.last_sign(9) == Sign()
    assert attempt.leaving_node(2).seconds == 110.0
    seen = attempt.signs_seen()
    assert set(seen.nodes) == {3}
    assert set(seen.leaving) == {2}
    assert set(attempt.control().leaders) == {3}
    assert set(attempt.signs()) == {3}


def test_the_sign_of_life_of_a_fixed_job_is_read(attempt: AttemptRecord) -> None:
    attempt.sign(1, {"time": 5, "phase": "run", "silent_s": 7.0})

    assert attempt.last_sign(1) == Sign(time=5, phase="run", silent_s=7.0)


@pytest.mark.parametrize("name", ["signs/1", "signs/leaving-1"])
def test_a_record_of_one_node_about_another_one_is_refused(
    store: LyingStore, attempt: AttemptRecord, name: str
) -> None:
    content = {"node": 2, "rank": 2, "seconds": 1.0, "outcome": "failed"}
    store.put(attempt.key(name), json.dumps(content).encode())
    read: dict[str, Callable[[int], object]] = {
        "signs/1": attempt.last_sign,
        "signs/leaving-1": attempt.leaving_node,
    }

    with pytest.raises(RecordError, match="expected the rank 1 as in the object's name, got 2"):
        read[name](1)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"node": "1", "rank": "1"}', b'{"seconds": -1}'])
@pytest.mark.parametrize("name", ["signs/leaving-1", "signs/1", "requests/1.json"])
def test_a_malformed_record_of_a_node_is_refused(
    store: LyingStore, attempt: AttemptRecord, name: str, content: bytes
) -> None:
    if name == "signs/1" and content.startswith(b'{"seconds'):
        return  # it has no such key
    store.put(attempt.key(name), content)
    read: dict[str, Callable[[int], object]] = {
        "signs/1": attempt.last_sign,
        "signs/leaving-1": attempt.leaving_node,
        "requests/1.json": attempt.scale_request,
    }

    with pytest.raises(RecordError):
        read[name](1)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"rank": 2, "outcome": "failed"}', b'{"rank": 1}'])
def test_an_unreadable_end_of_a_generation_is_reported_as_agent_error(
    store: LyingStore, attempt: AttemptRecord, content: bytes
) -> None:
    store.put(attempt.key("ended/1-4.json"), content)

    end = attempt.generation_end(4, 1)

    assert (end.rank, end.outcome) == (1, "agent_error")
    assert "ended/1-4.json" in end.sentence


@pytest.mark.parametrize(
    ("before", "kind", "members"),
    [(None, DecisionKind.PARK, []), (NEXT, DecisionKind.RUN, [3, 0]), ("park", DecisionKind.PARK, [3, 0])],
)
def test_all_nodes_replace_an_unreadable_decision_by_the_same_decision(
    store: LyingStore, attempt: AttemptRecord, before: Any, kind: DecisionKind, members: list[int]
) -> None:
    if before is not None:
        word = NEXT if before is NEXT else replace(NEXT, kind=DecisionKind.PARK)
        attempt.settle_generation(0, word)
    number = 0 if before is None else 1
    store.put(attempt.key(f"control/generation-{number:06}.json"), b"{")
    # One after a gap is not a leader's.
    attempt.settle_generation(9, NextGeneration(kind=DecisionKind.END, outcome="failed"))

    control = attempt.control()
    found = attempt.decision(number, control)

    assert control.newest == number
    assert (found.kind, found.members, found.why, found.planned) == (kind, members, "unreadable", False)
    assert found.ledger.began is not None
    assert f"generation-{number:06}.json" in found.sentence


@pytest.mark.parametrize("content", [{"kind": "end"}, {"kind": "end", "outcome": "won"}, {"outcome": "won"}])
def test_a_decision_with_an_unknown_outcome_cannot_be_used(
    store: LyingStore, attempt: AttemptRecord, content: dict[str, Any]
) -> None:
    attempt.settle_generation(0, NEXT)
    table = {"kind": "run", "members": [3, 0], **content}
    store.put(attempt.key("control/generation-000001.json"), json.dumps(table).encode())

    found = attempt.decision(1, attempt.control())

    assert (found.kind, found.members, found.why) == (DecisionKind.RUN, [3, 0], "unreadable")
    assert "generation-000001.json: outcome" in found.sentence


def test_a_decision_to_end_is_final_despite_later_records(store: LyingStore, attempt: AttemptRecord) -> None:
    end = NextGeneration(kind=DecisionKind.END, outcome="succeeded")
    attempt.settle_generation(0, end)
    store.put(attempt.key("control/generation-000001.json"), b"{")

    assert attempt.decision(1, attempt.control()) == end


def test_the_end_of_a_generation_with_an_unknown_outcome_keeps_its_port(attempt: AttemptRecord) -> None:
    attempt.end_generation(4, GenerationEnd(rank=1, outcome="exploded", port=2001))

    assert attempt.generation_end(4, 1) == GenerationEnd(rank=1, outcome="agent_error", port=2001)


def test_an_end_of_a_generation_reports_a_checkpoint_in_progress(
    attempt: AttemptRecord,
) -> None:
    end = GenerationEnd(rank=1, outcome="failed", keeps=True)
    attempt.end_generation(4, end)

    assert attempt.generation_ended(4) == {1}
    assert attempt.generation_end(4, 1) == end


def test_requests_to_scale_are_numbered_in_their_order(attempt: AttemptRecord) -> None:
    first, second = ScaleRequest(desired=2, by="ann", time=1), ScaleRequest(desired=4, by="bob", time=2)

    assert attempt.request_scale(first) == 0
    assert attempt.request_scale(second) == 1
    assert sorted(attempt.scale_requests()) == [0, 1]
    assert attempt.scale_request(1) == second


def test_two_simultaneous_scale_requests_are_both_recorded(attempt: AttemptRecord, tmp_path: Path) -> None:
    class Blind(DirectoryStore):
        def find(self, prefix: str) -> list[StoredObject]:
            return []

    blind = AttemptRecord(JobRecord(Blind(tmp_path), "job"))

    assert [blind.request_scale(ScaleRequest(desired=each)) for each in (2, 3)] == [0, 1]
    assert [attempt.scale_request(number).desired for number in (0, 1)] == [2, 3]


@pytest.mark.parametrize("desired", [0, -1, "2", 2.0, True, None])
def test_a_request_without_a_valid_number_is_refused(
    store: LyingStore, attempt: AttemptRecord, desired: Any
) -> None:
    store.put(attempt.key("requests/0.json"), json.dumps({"desired": desired}).encode())

    with pytest.raises(RecordError, match="desired"):
        attempt.scale_request(0)
