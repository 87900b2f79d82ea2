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
        if job.strategy.processes_per_node.lstrip("0") != "1":
            raise DescriptorError(
                "[strategy] processes_per_node: each_node starts the command once on each node, so it must be 1, not "
                f'"{job.strategy.processes_per_node}"; the command starts more processes itself'
            )

    def launch(self, job: Job, command: Sequence[str], me: Peer, peers: Sequence[Peer]) -> Launch:
        return Launch(argv=tuple(command))

    def local_address(self, job: Job, node: int) -> str:
        return loopback_address(job, node)


def loopback_address(job: Job, node: int) -> str:
    """Return the address of a node of this machine that hardly any other node has."""
    network = 1 + zlib.crc32(job.job.id.encode()) % _JOBS
    address = network << 10 | 1 + node % _NODES
    return f"127.{address >> 16}.{address >> 8 & 255}.{address & 255}"
