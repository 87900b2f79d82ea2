"""Members that count as lost before the silence limit because of the state of their ports."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.generation_records import Sign
from bai_agent.job.peers import Peer
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.peers.direct_question import PeerAnswer
from bai_agent.peers.reachability import find_lost

GENERATION = 3
LIVES = PeerAnswer(rank=1, store_s=0.0, alone_s=0.0)


class Node:
    """Node 1, of which an agent and a shim may listen, and may answer."""

    def __init__(self, folder: Path, ports: ExitStack) -> None:
        self.attempt = AttemptRecord(JobRecord(DirectoryStore(folder), "job"))
        self._ports = ports
        self.agent, self.shim = self._listener(), self._listener()
        self.peer = Peer(rank=1, address="127.0.0.1", agent_port=self.agent.getsockname()[1])
        self.say(generation=GENERATION)

    def say(self, *, generation: int) -> None:
        sign = Sign(generation=generation, shim_port=self.shim.getsockname()[1])
        self.attempt.give_sign(1, sign)

    def is_lost(self, *, failed: bool, overdue: bool = False, answer: PeerAnswer | None = None) -> bool:
        found = find_lost(
            self.attempt,
            [self.peer],
            generation=GENERATION,
            failed=failed,
            is_overdue=lambda node: overdue,
            ask=lambda peer: answer,
        )
        return found == {1}

    def _listener(self) -> socket.socket:
        return self._ports.enter_context(socket.create_server(("127.0.0.1", 0)))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as ports:
        yield Node(tmp_path, ports)


def test_a_node_without_processes_is_lost_as_soon_as_another_one_fails(node: Node) -> None:
    node.agent.close()
    node.shim.close()

    assert node.is_lost(failed=True)
    # Without a failure its agent gets the time to be started again.
    assert not node.is_lost(failed=False)
    assert node.is_lost(failed=False, overdue=True)


def test_a_node_whose_agent_died_but_whose_benchmark_runs_is_not_lost(node: Node) -> None:
    node.agent.close()

    assert not node.is_lost(failed=True)
    assert not node.is_lost(failed=True, overdue=True)


def test_the_shim_port_of_another_generation_is_ignored(node: Node) -> None:
    node.say(generation=GENERATION - 1)
    node.agent.close()
    node.shim.close()

    assert not node.is_lost(failed=True, overdue=True)


def test_a_node_that_hangs_is_lost_after_half_of_the_time_if_another_one_fails(node: Node) -> None:
    assert node.is_lost(failed=True, overdue=True)
    assert not node.is_lost(failed=True)
    assert not node.is_lost(failed=False, overdue=True)
    assert not node.is_lost(failed=True, overdue=True, answer=LIVES)


def test_a_node_without_published_ports_is_judged_only_by_its_signs_of_life(node: Node) -> None:
    node.agent.close()
    node.shim.close()
    node.peer = Peer(rank=1, address="127.0.0.1")

    assert not node.is_lost(failed=True, overdue=True)
