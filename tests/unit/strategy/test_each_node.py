"""What each_node starts, and where its nodes are if one machine has all of them."""

from __future__ import annotations

import ipaddress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.strategy_tables import StrategyTable
from bai_agent.job.peers import Peer
from bai_agent.strategy import PlacesNodes, strategy_of
from bai_agent.strategy.launch import Launch

COMMAND = ("python3", "serve.py")
PEERS = [Peer(rank=rank, address=f"10.0.0.{rank + 1}") for rank in range(2)]
JOB = Job(
    job=Identity(id="j"),
    benchmark=Benchmark(argv=COMMAND),
    strategy=StrategyTable(name="each_node", nodes=2),
)


def address(job_id: str, node: int) -> ipaddress.IPv4Address:
    """Return the address of a node on a machine that has all of them."""
    strategy = strategy_of(JOB)
    assert isinstance(strategy, PlacesNodes)
    return ipaddress.IPv4Address(strategy.local_address(replace(JOB, job=Identity(id=job_id)), node))


def test_each_node_launches_the_plain_command_on_each_node() -> None:
    for me in PEERS:
        assert strategy_of(JOB).launch(JOB, COMMAND, me, PEERS) == Launch(argv=COMMAND)


@pytest.mark.parametrize("processes", ["2", "gpus"])
def test_each_node_refuses_more_than_one_process_per_node(processes: str) -> None:
    table = StrategyTable(name="each_node", nodes=2, processes_per_node=processes)

    with pytest.raises(DescriptorError, match=f'it must be 1, not "{processes}"'):
        strategy_of(replace(JOB, strategy=table))


@given(job_id=st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True), node=st.integers(0, 1022))
def test_nodes_on_one_machine_have_separate_loopback_addresses(job_id: str, node: int) -> None:
    found = address(job_id, node)

    assert found.is_loopback
    # 127.0.0.0/22 belongs to other programs, and 127.255.255.255 is the network's broadcast.
    assert ipaddress.IPv4Address("127.0.4.0") <= found < ipaddress.IPv4Address("127.255.252.0")
    assert found not in {address(job_id, other) for other in range(1023) if other != node}


def test_concurrent_jobs_have_different_loopback_addresses() -> None:
    assert len({address(f"job-{number}", 0) for number in range(20)}) == 20
