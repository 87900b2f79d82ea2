"""Decisions about generations are made once and by their content, whichever node looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor.restart_tables import Restart
from bai_agent.job.generation_records import DecisionKind, GenerationEnd, Ledger, NextGeneration
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Members, Peer
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.light_dataclass import replace
from bai_agent.peers.generation_control import GenerationControl

TWICE = Restart(max_restarts=2, backoff=timedelta(seconds=10))
SUCCESS = NextGeneration(kind=DecisionKind.END, outcome="succeeded")
PEERS = tuple(Peer(rank=rank, address=f"10.0.0.{rank}", port=1000 + rank) for rank in range(3))


class Job:
    """The nodes of a job, each with its own view."""

    def __init__(self, folder: Path, *, policy: Restart = TWICE, serving: Sequence[int] = ()) -> None:
        self.attempt = AttemptRecord(JobRecord(DirectoryStore(folder), "job"))
        self.now = 100.0
        self._policy, self._serving = policy, frozenset(serving)
        self.nodes = [self.node(rank) for rank in range(3)]

    def node(self, rank: int, *, generation: int = 0) -> GenerationControl:
        control = GenerationControl(self.attempt, rank=rank, policy=self._policy, clock=lambda: self.now)
        control.met(Members(peers=PEERS, key=b"k" * 32), serving=self._serving)
        control.begin(generation, Ledger(restarts=generation))
        return control

    def end(self, rank: int, outcome: Outcome = Outcome.SUCCEEDED, *, at: int = 5, code: int = 1) -> None:
        end = GenerationEnd(
            rank=rank,
            outcome=outcome.value,
            sentence="It ended.",
            code=code,
            failed=at,
            ended=at,
            port=2000 + rank,
        )
        self.nodes[rank].wait()
        self.nodes[rank].end(end)

    def look(self) -> None:
        for each in self.nodes:
            each.look(self.attempt.control())


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_no_decision_is_written_while_all_nodes_run(job: Job) -> None:
    job.look()

    assert [each.decision for each in job.nodes] == [None] * 3
    assert [each.reason() for each in job.nodes] == [None] * 3


def test_a_failure_stops_the_other_nodes_and_all_restart_together(job: Job) -> None:
    job.end(1, Outcome.FAILED)
    job.look()

    reasons = [each.reason() for each in job.nodes]
    assert [each.outcome if each else None for each in reasons] == [
        Outcome.PEER_FAILED,
        None,
        Outcome.PEER_FAILED,
    ]
    assert reasons[0] is not None
    assert reasons[0].message == "Node 1: It ended."
    job.end(0, Outcome.PEER_FAILED)
    job.now += 60
    job.look()
    assert [each.members for each in job.nodes] == [None] * 3
    job.end(2, Outcome.PEER_FAILED)
    job.look()
    members = job.nodes[0].members
    assert members is not None
    assert [each.port for each in members.peers] == [2000, 2001, 2002]
    assert members.key == b"k" * 32
    assert [each.members for each in job.nodes] == [members] * 3
    assert job.nodes[2].decision is not None
    assert job.nodes[2].decision.ledger.restarts == 1


def test_an_outcome_of_another_version_is_an_agents_error_and_ends_the_job(job: Job) -> None:
    job.nodes[1].wait()
    job.nodes[1].end(
        GenerationEnd(rank=1, outcome="exploded", sentence="It did.", failed=5, ended=5, port=2001)
    )

    job.look()

    decision = job.nodes[0].decision
    assert decision is not None
    assert (decision.kind, decision.outcome) == (DecisionKind.END, "agent_error")


def test_all_nodes_wait_for_the_pause_before_a_restart(job: Job) -> None:
    job.end(1, Outcome.FAILED)
    job.look()
    for rank in (0, 2):
        job.end(rank, Outcome.PEER_FAILED)
    job.now += 9.9
    job.look()
    assert job.nodes[0].members is None

    job.now += 0.1
    job.look()

    assert job.nodes[0].members is not None


def test_a_recorded_decision_overrides_what_a_new_coordinator_sees(job: Job) -> None:
    """One that was killed has settled it; what the next one sees since then, such as another cause, changes nothing."""
    settled = NextGeneration(
        kind=DecisionKind.RUN,
        members=[0, 1, 2],
        ledger=Ledger(restarts=1),
        outcome="failed",
        sentence="First.",
    )
    job.attempt.settle_generation(1, settled)
    job.end(1, Outcome.NOT_FOUND)
    job.end(0, Outcome.PEER_FAILED)
    job.end(2, Outcome.SUCCEEDED)

    coordinator = job.node(0)
    coordinator.look(job.attempt.control())

    assert coordinator.decision == settled
    assert coordinator.members is not None


def test_the_members_of_a_generation_are_decided_once(job: Job) -> None:
    first = Members(peers=PEERS, key=None)
    job.attempt.begin_generation(1, first)
    job.end(1, Outcome.FAILED)
    for rank in (0, 2):
        job.end(rank, Outcome.PEER_FAILED)
    job.look()
    job.now += 10

    job.look()

    assert [each.members for each in job.nodes] == [first] * 3


@pytest.mark.parametrize(
    ("outcome", "generation"), [(Outcome.NOT_FOUND, 0), (Outcome.FAILED, 2), (Outcome.CANCELLED, 0)]
)
def test_no_generation_follows_a_permanent_failure_or_the_last_restart(
    job: Job, outcome: Outcome, generation: int
) -> None:
    for each in job.nodes:
        each.begin(generation, Ledger(restarts=generation))
    job.end(1, outcome)

    job.look()

    assert [each.decision for each in job.nodes] == [replace(SUCCESS, outcome=outcome.value)] * 3
    assert [each.reason() for each in job.nodes] == [None] * 3


def test_the_job_ends_if_all_nodes_have_succeeded(job: Job) -> None:
    for rank in range(3):
        job.end(rank)
        job.look()

    assert [each.decision for each in job.nodes] == [SUCCESS] * 3


def test_a_job_succeeds_without_waiting_for_its_serving_nodes(tmp_path: Path) -> None:
    job = Job(tmp_path, serving=[1, 2])

    job.end(0)
    job.look()

    assert job.nodes[1].decision == SUCCESS


def test_only_the_first_failures_exit_code_is_compared_with_the_policy(tmp_path: Path) -> None:
    job = Job(tmp_path, policy=Restart(max_restarts=1, exit_codes=(7,)))
    job.end(1, Outcome.FAILED, at=5, code=7)
    job.end(2, Outcome.FAILED, at=6, code=1)

    job.look()

    assert job.nodes[0].decision is not None
    assert job.nodes[0].decision.runs


def test_a_failure_in_an_earlier_generation_is_ignored(job: Job) -> None:
    job.end(1, Outcome.FAILED)
    for each in job.nodes:
        each.begin(1, Ledger(restarts=1))

    job.look()

    assert [each.decision for each in job.nodes] == [None] * 3


@pytest.mark.parametrize("name", ["generation-000001.json", "begin-000001.json"])
def test_an_unreadable_record_of_the_next_generation_ends_the_job(job: Job, name: str) -> None:
    if name.startswith("begin"):
        job.attempt.settle_generation(1, NextGeneration(kind=DecisionKind.RUN, members=[0, 1, 2]))
    job.attempt.job.store.put(job.attempt.key(f"control/{name}"), b"{")
    job.end(1, Outcome.FAILED)

    job.look()

    for each in job.nodes:
        assert each.decision is not None
        assert each.decision.kind is DecisionKind.END
        assert name in each.decision.sentence
        assert each.members is None


def test_the_earliest_failure_counts_even_if_it_is_reported_later(job: Job) -> None:
    # Given a coordinator that knows since when each node has given a sign, and what it wakes
    signed: dict[int, float] = dict.fromkeys(range(3), job.now)
    woken: list[int] = []
    coordinator = GenerationControl(
        job.attempt,
        rank=0,
        policy=TWICE,
        clock=lambda: job.now,
        wake=lambda peers: woken.extend(each.rank for each in peers),
        lived_since=lambda rank, moment_s: signed[rank] >= moment_s,
    )
    coordinator.met(Members(peers=PEERS, key=b"k" * 32), serving=frozenset())
    job.nodes[0] = coordinator

    # when node 2 fails of it first, and node 1 is known to live before that alone
    job.end(2, Outcome.FAILED, at=7, code=1)
    job.look()
    assert coordinator.decision is None
    assert coordinator.is_changing
    assert set(woken) == {0, 1}
    job.now += 1
    signed[0] = job.now
    job.end(1, Outcome.FAILED, at=5, code=3)
    job.look()

    assert coordinator.decision is not None
    assert coordinator.decision.sentence.startswith("Node 1: ")
    assert coordinator.decision.runs


def test_a_failure_is_decided_without_waiting_for_nodes_that_still_run(job: Job) -> None:
    signed: dict[int, float] = dict.fromkeys(range(3), job.now)
    coordinator = GenerationControl(
        job.attempt,
        rank=0,
        policy=TWICE,
        clock=lambda: job.now,
        lived_since=lambda rank, moment_s: signed[rank] >= moment_s,
    )
    coordinator.met(Members(peers=PEERS, key=b"k" * 32), serving=frozenset())
    job.nodes[0] = coordinator
    job.end(2, Outcome.FAILED)
    job.look()
    assert coordinator.decision is None

    job.now += 2
    signed.update(dict.fromkeys(range(3), job.now))
    job.look()

    assert coordinator.decision is not None
    assert coordinator.decision.sentence.startswith("Node 2: ")
