"""The benchmark's command once on each node: it finds the other nodes by `BAI_NODE_ADDRS`, and needs no launcher."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor import Job
from bai_agent.job.peers import Peer
from bai_agent.strategy.launch import Launch

_JOBS = 2**14 - 2
"""Networks below 127.0.0.0/8, without the first, in which 127.0.0.1 is, and the last."""
_NODES = 2**10 - 1
"""Addresses in each of them, without the first."""


class EachNode:
    """The benchmark's command, unchanged, on each node of one or several."""

    def check(self, job: Job) -> None:
        require_one_process(
            job, "each_node starts the command once on each node", "the command starts more processes itself"
        )

    def launch(self, job: Job, command: Sequence[str], me: Peer, peers: Sequence[Peer]) -> Launch:
        return Launch(argv=tuple(command))

    def local_address(self, job: Job, node: int) -> str:
        return loopback_address(job, node)


def require_one_process(job: Job, starts: str, advice: str = "") -> None:
    """Raise DescriptorError if the job wants several processes of a strategy that starts one. starts: half a sentence."""
    wanted = job.strategy.processes_per_node
    if wanted.lstrip("0") != "1":
        more = f"; {advice}" if advice else ""
        raise DescriptorError(
            f'[strategy] processes_per_node: {starts}, so it must be 1, not "{wanted}"{more}'
        )


def loopback_address(job: Job, node: int) -> str:
    """Return the address of a node of this machine that hardly any other node has."""
    network = 1 + zlib.crc32(job.job.id.encode()) % _JOBS
    address = network << 10 | 1 + node % _NODES
    return f"127.{address >> 16}.{address >> 8 & 255}.{address & 255}"
