"""Runs the benchmark's command once on each node, without a launcher. The command finds the other nodes in
`BAI_NODE_ADDRS`."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor import Job
from bai_agent.job.peers import Peer
from bai_agent.strategy.launch import Launch

_JOBS = 2**14 - 2
"""Number of usable networks below 127.0.0.0/8. bai does not use the first network, which contains 127.0.0.1,
and the last network."""
_NODES = 2**10 - 1
"""Number of usable addresses in each network. The first address of a network is not used."""


class EachNode:
    """Runs the unchanged benchmark's command on each node of the job."""

    def check(self, job: Job) -> None:
        require_one_process(
            job, "each_node starts the command once on each node", "the command starts more processes itself"
        )

    def launch(self, job: Job, command: Sequence[str], me: Peer, peers: Sequence[Peer]) -> Launch:
        return Launch(argv=tuple(command))

    def local_address(self, job: Job, node: int) -> str:
        return loopback_address(job, node)


def require_one_process(job: Job, starts: str, advice: str = "") -> None:
    """Raise DescriptorError if the job requests several processes per node. Strategies that start only one
    process per node call this function. starts: part of the message that says what the strategy starts."""
    wanted = job.strategy.processes_per_node
    if wanted.lstrip("0") != "1":
        more = f"; {advice}" if advice else ""
        raise DescriptorError(
            f'[strategy] processes_per_node: {starts}, so it must be 1, not "{wanted}"{more}'
        )


def loopback_address(job: Job, node: int) -> str:
    """Return a loopback address for a node of a job on this machine. The address depends on the job, so a
    node of another job is unlikely to have it."""
    network = 1 + zlib.crc32(job.job.id.encode()) % _JOBS
    address = network << 10 | 1 + node % _NODES
    return f"127.{address >> 16}.{address >> 8 & 255}.{address & 255}"
