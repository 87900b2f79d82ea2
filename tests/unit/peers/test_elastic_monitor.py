"""When a node of an elastic job looks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bai_agent.generations.policy import Policy
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.descriptor.restart_tables import Restart
from bai_agent.job.generation_records import DecisionKind, NextGeneration, ScaleRequest
from bai_agent.job.peers import Members, Peer
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.light_dataclass import replace
from bai_agent.nodes.held_ports import hold_agent_port
from bai_agent.peers.direct_question import AnswerPort, PeerAnswer
from bai_agent.peers.elastic_monitor import ElasticMonitor

KEY = b"k" * 32
POLICY = Policy(restart=Restart(), min_nodes=1, nodes=4)


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptRecord:
    return AttemptRecord(JobRecord(DirectoryStore(tmp_path), "job"))


def monitor(attempt: AttemptRecord, node: int) -> ElasticMonitor:
    return ElasticMonitor(attempt, node=node, policy=POLICY, desired=2, limits=Limits())


@pytest.fixture
def leader() -> Iterator[tuple[Peer, threading.Event]]:
    """Where node 0's agent listens, and whether it was woken."""
    held = hold_agent_port("127.0.0.1")
    assert held is not None
    woken = threading.Event()
    peer = Peer(rank=0, address="127.0.0.1", agent_port=held.getsockname()[1])
    port = AnswerPort(
        held, rank=0, key=KEY, answer=lambda: PeerAnswer(rank=0, store_s=0.0, alone_s=0.0), woken=woken.set
    )
    port.start()
    yield peer, woken
    port.end()
    port.join(60)


def returns(wait: Callable[[], object]) -> bool:
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


def test_a_scale_request_in_a_local_store_wakes_the_leader(attempt: AttemptRecord) -> None:
    it = monitor(attempt, 0)
    it.observe()
    assert it.leads

    attempt.request_scale(ScaleRequest(desired=3))

    assert returns(lambda: it.pause(3600))


def test_members_wake_their_leader_after_a_write(
    attempt: AttemptRecord, leader: tuple[Peer, threading.Event]
) -> None:
    peer, woken = leader
    attempt.settle_generation(0, NextGeneration(kind=DecisionKind.RUN, members=[0, 1]))
    it = monitor(attempt, 1)
    it.observe()
    it.met([peer, Peer(rank=1, address="127.0.0.1")], key=KEY)
    it.begin(0)
    assert not woken.is_set()

    it.leave(60)
    it.observe()

    assert woken.wait(60)


def test_a_node_that_joins_later_wakes_the_leader_of_the_others(
    attempt: AttemptRecord, leader: tuple[Peer, threading.Event]
) -> None:
    peer, woken = leader
    attempt.settle_generation(0, NextGeneration(kind=DecisionKind.RUN, members=[0]))
    attempt.begin_generation(0, Members(peers=(peer,), key=KEY))
    it = monitor(attempt, 1)

    it.say_joined(Peer(rank=1, address="127.0.0.1"), after=0, boot="b")
    it.observe()

    assert it.key == KEY
    assert woken.wait(60)


def test_members_confirm_a_planned_change_and_stop_together(
    attempt: AttemptRecord,
) -> None:
    attempt.settle_generation(0, NextGeneration(kind=DecisionKind.RUN, members=[0, 1, 2]))
    it = monitor(attempt, 1)
    it.observe()
    it.begin(0)
    attempt.settle_generation(
        1, NextGeneration(kind=DecisionKind.RUN, members=[0, 1], planned=True, sentence="Node 2 left.")
    )

    it.observe()

    assert attempt.last_sign(1).decided == 1
    assert it.change() is None
    attempt.stop_together(1)
    it.observe()
    reason = it.change()
    assert reason is not None
    assert reason.message == "Node 2 left."


def test_only_a_leader_publishes_the_proposals_of_its_benchmark(attempt: AttemptRecord) -> None:
    policy = replace(POLICY, takes_proposals=True)
    attempt.settle_generation(0, NextGeneration(kind=DecisionKind.RUN, members=[0, 1]))
    leader, member = (
        ElasticMonitor(attempt, node=node, policy=policy, desired=2, limits=Limits()) for node in (0, 1)
    )
    for it in (leader, member):
        it.observe()

    member.propose(3)
    member.observe()
    assert not attempt.signs_seen().proposals

    leader.propose(4)
    leader.observe()
    leader.observe()
    assert [attempt.size_proposal(each).desired for each in attempt.signs_seen().proposals] == [4]
