"""Elastic jobs under faults of the store and hung leaders: each decision is made once, and all nodes follow it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from agent_runs import is_alive, wait_until
from elastic_jobs import (
    S3,
    WAIT_S,
    ElasticJob,
    FaultyPut,
    Hang,
    false_conflict,
    late_answer,
    own_conflict,
    start_apart,
)
from node_agents import Nodes
from s3_gate import Gate, another_gate

from bai_agent.job.generation_records import DecisionKind
from executor.records.node_status import node_statuses

DECISIONS = ("generation", "begin", "launch")
EVERY = os.environ.get("EVERY_FAULT") == "1"
"""Whether a leader hangs before each of them; `tests/unit/peers/test_faulty_histories.py` has the others in a simulated time."""


@pytest.fixture
def gates(gate: Gate, moto: str) -> Iterator[list[Gate]]:
    """The ways of three nodes to the store."""
    with ExitStack() as stack:
        yield [stack.enter_context(another_gate(moto, gate.s3)) for _ in range(3)]


def test_a_decision_is_made_once_despite_lost_answers_and_hanging_leaders(
    make: Callable[..., Nodes], tmp_path: Path, gates: list[Gate]
) -> None:
    job = ElasticJob(tmp_path, make, nodes=3, store=S3, checkpoint={"path": "checkpoints", "every": "off"})
    start_apart(job, gates)

    # Each put of three changes is answered wrongly
    for change, spoil in enumerate((own_conflict, false_conflict, late_answer)):
        faulty = FaultyPut(DECISIONS, spoil)
        gates[0].around = faulty
        job.fail(change, 1)
        assert job.wait_for_all(after=change) == change + 1
        assert faulty.left == []
        assert job.newest.why == "failed"

    # The leader of a change hangs before one of its puts, until the others have gone on without it
    for restarts, word in enumerate(DECISIONS if EVERY else DECISIONS[-1:], start=3):
        before, leader = job.number, job.newest.members[0]
        hang = Hang(job.nodes.agents[leader].pid)
        faulty = FaultyPut([word], hang)
        gates[leader].around = faulty
        job.fail(before, job.newest.members[-1])
        others = [node for node in job.all if node != leader]
        wait_until(lambda: hang.name, seconds=WAIT_S)  # noqa: B023
        hung_at = int(hang.name.partition("-")[2].partition(".")[0])
        newest = hung_at if word == "generation" else hung_at + 1
        job.wait(newest, *others)
        assert leader not in job.newest.members
        hang.wake()
        newest = job.wait_for_all(after=newest)
        assert job.newest.why == "joined"
        assert job.newest.members[-1] == leader
        assert job.newest.ledger.restarts <= restarts + 1
    job.check(restarts=job.newest.ledger.restarts)


def test_a_node_that_alone_cannot_reach_the_store_joins_again(
    make: Callable[..., Nodes], tmp_path: Path, gates: list[Gate]
) -> None:
    job = ElasticJob(tmp_path, make, nodes=3, store=S3)
    start_apart(job, gates)

    # For longer than a node may be silent, one of them gets errors and the others no answer
    cut(gates[0])
    cut(gates[1])
    gates[2].refuse = lambda _method, _path: (503, b"<Error><Code>SlowDown</Code></Error>")
    time.sleep(35)
    assert [job.starts(node) for node in job.all] == [[0]] * 3
    for each in gates:
        restore(each)
    wait_until(lambda: job.signed_s() < 5)
    assert job.number == 0

    # The leader alone misses it, and ends what it runs before it reaches the store again
    cut(gates[0])
    started = json.loads((job.nodes.rundir(0) / "started.json").read_bytes())
    job.wait(1, 1, 2)
    assert job.newest.members == [1, 2]
    wait_until(lambda: not is_alive(started["pid"]))
    restore(gates[0])
    assert job.wait_for_all(after=1) == 2
    assert job.newest.members == [1, 2, 0]
    job.check(restarts=0)


def cut(gate: Gate) -> None:
    gate.release.clear()
    gate.swallow = lambda _method, _path: True


def restore(gate: Gate) -> None:
    gate.refuse = lambda _method, _path: None
    gate.swallow = lambda _method, _path: False
    gate.release.set()


def test_unreadable_records_in_the_store_start_new_generations_but_do_not_end_the_job(
    make: Callable[..., Nodes], tmp_path: Path
) -> None:
    job = ElasticJob(tmp_path, make, nodes=2)
    job.nodes.start_all(0, 1)
    job.wait_for_all(after=-1)
    store, key = job.record.store, job.attempt.key
    for name in ("control/begin-000002.json", "control/generation-000040.json", "joined/7.json"):
        store.put(key(name), b"{")

    store.put(key("control/generation-000001.json"), b'{"kind": "ru')
    job.wait(1, 0, 1)
    job.fail(1, 1)
    job.wait(3, 0, 1)

    status = job.status()
    assert status is not None
    assert (status.number, status.why) == (3, "the record of a generation could not be read")
    job.check(restarts=1)
    result = job.record.result()
    assert result is not None
    assert [each["generation"] for each in result["generations"]] == [0, 1, 3]
    assert "begin-000002.json" in job.attempt.generation(3).sentence


def test_a_job_waits_for_a_node_that_cannot_resolve_a_secret_and_names_it(
    make: Callable[..., Nodes], tmp_path: Path
) -> None:
    job = ElasticJob(
        tmp_path,
        make,
        nodes=2,
        strategy={"min_nodes": 2},
        benchmark={"secrets": {"TOKEN": "env:THE_TOKEN"}},
    )
    for node in job.all:
        job.nodes.start(node, {"THE_TOKEN": "hush"})
    job.wait_for_all(after=-1)

    # What runs goes on without it, but another generation cannot
    job.nodes.kill(1)
    job.nodes.start(1)
    job.fail(0, 0)
    wait_until(lambda: job.newest.kind is DecisionKind.PARK, seconds=WAIT_S)
    wait_until(lambda: "THE_TOKEN" in (node_statuses(job.record, job.status())[1].trouble or ""))
    assert job.newest.members == [0]
    assert "THE_TOKEN" in job.newest.sentence

    job.nodes.kill(1)
    job.nodes.start(1, {"THE_TOKEN": "hush"})
    job.wait_for_all(after=job.number)
    assert [1 in job.starts(node) for node in job.all] == [False, False]
    job.check(restarts=1)
