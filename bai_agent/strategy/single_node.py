"""Runs the benchmark's command unchanged, as one process on one node."""

from __future__ import annotations

from collections.abc import Sequence

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor import Job
from bai_agent.job.peers import Peer
from bai_agent.strategy.launch import Launch


class SingleNode:
    """Starts the benchmark's command on the job's only node."""

    def check(self, job: Job) -> None:
        if job.strategy.nodes != 1:
            raise DescriptorError(
                f"[strategy] nodes: single_node runs on 1 node, not on {job.strategy.nodes}"
            )

    def launch(self, job: Job, command: Sequence[str], me: Peer, peers: Sequence[Peer]) -> Launch:
        return Launch(argv=tuple(command))
