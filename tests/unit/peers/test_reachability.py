"""Nodes that do not reach each other: found out right after they have met."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bai_agent.job.peers import Peer
from bai_agent.nodes.held_ports import hold_agent_port
from bai_agent.peers.reachability import unreachable

ME = Peer(rank=0, address="127.0.0.1", instance_id="i-0")


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Yield a port at which the kernel drops each new connection, as a security group does."""
    with ExitStack() as held:
        full = held.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        while True:
            taken = held.enter_context(socket.socket())
            taken.settimeout(0.3)
            try:
                taken.connect(full.getsockname())
            except TimeoutError:
                break
        yield full.getsockname()[1]


def node(port: int, agent_port: int = 0, *, rank: int = 1) -> Peer:
    return Peer(rank=rank, address="127.0.0.1", port=port, agent_port=agent_port, instance_id=f"i-{rank}")


def test_a_port_that_refuses_or_accepts_connections_counts_as_reachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listens, ExitStack() as held:
        refuses = hold_agent_port("127.0.0.1")
        assert refuses is not None
        held.enter_context(refuses)
        peer = node(refuses.getsockname()[1], listens.getsockname()[1])

        assert unreachable(ME, [ME, peer], started=False) is None
    assert unreachable(ME, [ME], started=False) is None


def test_reachability_checks_do_not_connect_to_the_benchmarks_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        assert unreachable(ME, [ME, node(server.getsockname()[1])]) is None

        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("agents", [False, True])
def test_a_port_without_any_answer_names_the_security_group(silent_port: int, agents: bool) -> None:
    closed = node(0, silent_port) if agents else node(silent_port)
    peers = [ME, *(node(1, rank=rank) for rank in range(2, 100)), closed]

    assert unreachable(ME, peers, started=agents, timeout_s=1.0) == (
        f"Node 0 (i-0, 127.0.0.1) cannot reach node 1 (i-1, 127.0.0.1) on port {silent_port}: there was no answer within 1 s. "
        "Their security group must allow traffic between its members on all ports."
    )
