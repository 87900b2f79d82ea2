"""An elastic job's newest generation and the number of nodes that it should have, from what its nodes have decided."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from elastic_record import ElasticRecord
from handmade_job import START, HandmadeJob

from bai_agent.job.generation_records import Change, DecisionKind, Ledger
from bai_agent.job.peers import Peer
from bai_agent.job.record_types import NodeOutcome
from executor.documents.screen import show_blocks
from executor.documents.status import generation_sentence, nodes_table, size_facts
from executor.errors import UsageError
from executor.records.generation_status import (
    check_scale,
    desired_nodes,
    generation_status,
    request_scale,
    requested_nodes,
    size_status,
)
from executor.records.node_status import node_statuses


@pytest.fixture
def elastic(tmp_path: Path) -> ElasticRecord:
    return ElasticRecord(tmp_path)


def test_a_fixed_job_and_an_elastic_job_before_its_start_have_no_generation(tmp_path: Path) -> None:
    fixed = HandmadeJob(tmp_path / "fixed", nodes=4)
    gathers = ElasticRecord(tmp_path / "elastic")

    assert generation_status(fixed.record, fixed.job) is None
    assert generation_status(gathers.record, gathers.job.job) is None


def test_the_newest_generation_lists_its_members_and_why_others_left(elastic: ElasticRecord) -> None:
    elastic.decides(0, 0, 1, 2, 3)
    elastic.decides(1, 0, 1, 2, why=Change.SCALED, nodes=(3,))
    elastic.decides(2, 0, 2, why=Change.LOST, nodes=(1,), ledger=Ledger(restarts=1))

    found = elastic.newest

    assert (found.number, found.members, found.has_begun, found.is_parked) == (2, (0, 2), True, False)
    assert (found.why, found.restarts, found.desired) == ("node 1 sent no heartbeat", 1, 4)
    assert found.left == {3: "no longer wanted in generation 0", 1: "lost in generation 1"}
    assert [found.rank(node) for node in range(4)] == [0, None, 1, None]


def test_a_node_that_returned_is_a_member_again(elastic: ElasticRecord) -> None:
    elastic.decides(0, 0, 1, 2)
    elastic.decides(1, 0, 2, why=Change.LOST, nodes=(1,))
    # A node that waits has never been a member.
    elastic.decides(2, 0, 2, 1, why=Change.JOINED, nodes=(1, 5), begins=False)

    assert elastic.newest.left == {}
    assert elastic.newest.rank(1) == 2
    assert "3 members about to begin, since nodes 1 and 5 joined" in generation_sentence(elastic.newest)


def test_a_parked_job_names_remaining_nodes_and_waiting_time(elastic: ElasticRecord) -> None:
    elastic.decides(0, 0, 1)
    waits = Ledger(waiting_since=START)
    elastic.decides(1, 0, why=Change.LOST, nodes=(1,), kind=DecisionKind.PARK, begins=False, ledger=waits)

    found = elastic.newest

    assert (found.is_parked, found.members, found.until) == (True, (0,), START + 600_000)
    assert found.rank(0) is None
    assert "1 of at least 2 nodes left for" in generation_sentence(found)


def test_an_ended_job_shows_the_generation_that_ran_last(elastic: ElasticRecord) -> None:
    elastic.decides(0, 0, 1)
    elastic.decides(1, kind=DecisionKind.END, begins=False)

    assert (elastic.newest.number, elastic.newest.members) == (0, (0, 1))


def test_the_newest_valid_request_counts(elastic: ElasticRecord) -> None:
    assert desired_nodes(elastic.attempt, elastic.job.job) == 4
    elastic.asks(3)
    elastic.asks(9)
    elastic.job.store.put(elastic.attempt.key("requests/2.json"), b"[")

    assert desired_nodes(elastic.attempt, elastic.job.job) == 3


def test_a_table_of_nodes_has_their_ranks(elastic: ElasticRecord, capsys: pytest.CaptureFixture[str]) -> None:
    elastic.decides(0, 0, 1, 2, 3)
    elastic.decides(1, 2, 0, why=Change.LOST, nodes=(1,))
    for node in range(4):
        elastic.attempt.join(Peer(rank=node, address=f"10.0.0.{node}"))
        elastic.job.on(node).phases("prepare", until="run")
    elastic.attempt.end(NodeOutcome(rank=3, outcome="succeeded", sentence="It ran for 9 s.", ended=START))

    nodes = node_statuses(elastic.record, elastic.newest)
    show_blocks([nodes_table(nodes, is_over=False, is_elastic=True)])

    heading, zero, one, two, three = capsys.readouterr().out.splitlines()
    assert heading.split() == ["node", "rank", "instance", "address", "phase", "last", "sign", "end"]
    assert zero.split() == ["0", "1", "here", "10.0.0.0", "run"]
    assert one.split() == ["1", "–", "here", "10.0.0.1", "–", "lost", "in", "generation", "0"]
    assert two.split() == ["2", "0", "here", "10.0.0.2", "run"]
    assert three.split() == ["3", "–", "here", "10.0.0.3", "succeeded"]


def test_scaling_to_a_number_outside_the_range_is_refused(elastic: ElasticRecord) -> None:
    for nodes in (1, 5):
        with pytest.raises(UsageError, match=f"^{nodes} nodes?: digits-1 runs on 2 to 4 nodes"):
            check_scale(elastic.record, nodes)

    check_scale(elastic.record, 2)
    request_scale(elastic.record, 2)
    assert desired_nodes(elastic.attempt, elastic.job.job) == 2


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ([2, 4], [4, 4]),
        ([3, 2, 4], [4, 4, 4]),
        ([2, "obeyed", 4], [2, 4]),
        ([2, "obeyed in part", 4], [3, 4]),
        ([2, 4, "lost"], [4, 4]),
        ([3, 2], [4, 2]),
    ],
)
def test_a_request_to_shrink_that_is_withdrawn_in_time_is_ignored(
    elastic: ElasticRecord, asked: list[int | str], found: list[int]
) -> None:
    times = iter(range(START // 1000, START // 1000 + 10))

    def put_now(key: str) -> None:
        """Every object is a second younger than the one before."""
        now = next(times)
        os.utime(elastic.job.store.folder / elastic.attempt.key(key), (now, now))

    elastic.decides(0, 0, 1, 2, 3)
    put_now("control/generation-000000.json")
    requests = 0
    for each in asked:
        if isinstance(each, int):
            elastic.asks(each)
            put_now(f"requests/{requests}.json")
            requests += 1
        else:
            elastic.decides(1, *range(3 if each == "obeyed in part" else 2))
            put_now("control/generation-000001.json")

    assert requested_nodes(elastic.attempt, elastic.job.job) == found


def test_a_job_that_cannot_be_scaled_is_refused(tmp_path: Path) -> None:
    fixed, cancelled = HandmadeJob(tmp_path / "fixed", nodes=4), ElasticRecord(tmp_path / "cancelled")
    cancelled.record.cancel(by="a test")
    ended = ElasticRecord(tmp_path / "ended")
    ended.job.ends()

    with pytest.raises(UsageError, match="it always runs on 4 nodes"):
        check_scale(fixed.record, 3)
    with pytest.raises(UsageError, match="is being cancelled"):
        check_scale(cancelled.record, 3)
    with pytest.raises(UsageError, match="has ended"):
        check_scale(ended.record, 3)


def test_a_benchmarks_proposals_apply_until_a_user_scales_the_job(tmp_path: Path) -> None:
    made = ElasticRecord(tmp_path, is_adaptdl=True)
    attempt, job = made.attempt, made.job.job
    assert desired_nodes(attempt, job) == 1
    made.proposes(3)
    made.proposes(9)
    attempt.job.store.put(attempt.key("signs/size-2.json"), b"{}")
    assert (desired_nodes(attempt, job), requested_nodes(attempt, job)) == (3, [3])

    made.asks(2)
    made.proposes(4)

    assert (desired_nodes(attempt, job), requested_nodes(attempt, job)[-1]) == (2, 2)


def test_proposals_are_ignored_for_a_job_with_a_fixed_policy(elastic: ElasticRecord) -> None:
    elastic.proposes(2)

    assert desired_nodes(elastic.attempt, elastic.job.job) == 4
    assert requested_nodes(elastic.attempt, elastic.job.job) == []
    assert size_status(elastic.record, elastic.job.job) is None


def test_the_status_says_who_set_the_desired_number_of_nodes(tmp_path: Path) -> None:
    made = ElasticRecord(tmp_path, is_adaptdl=True)

    def shown() -> str:
        [fact] = size_facts(size_status(made.record, made.job.job))
        return fact.text

    assert shown() == "goodput has proposed no other number of nodes"
    made.proposes(3)
    assert shown().startswith("goodput proposed 3 nodes ")
    made.asks(1)
    assert shown() == "`bai scale` has set 1 node, and goodput has proposed no other number since then"
