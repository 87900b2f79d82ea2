"""Runs a server on node 1, and the benchmark's command on node 0. The command is the client that measures the
server.

`Job.of_node` gives each node its own command, data and metrics.
"""

from __future__ import annotations

from collections.abc import Sequence

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.strategy_tables import SERVER_NODE
from bai_agent.job.peers import Peer
from bai_agent.strategy.each_node import require_one_process
from bai_agent.strategy.launch import Launch, Role, Setup


class Inference:
    """Starts the client when the server is ready. After the client has ended, the server is stopped. The job
    fails if the server ends before the client."""

    def check(self, job: Job) -> None:
        require_one_process(job, "inference starts each command once")

    def setup(self, job: Job, rank: int) -> Setup:
        return Setup(ports=job.server.ports if job.server is not None and rank == SERVER_NODE else ())

    def mismatch(self, peers: Sequence[Peer]) -> str | None:
        return None

    def launch(self, job: Job, command: Sequence[str], me: Peer, peers: Sequence[Peer]) -> Launch:
        if me.rank == SERVER_NODE:
            return Launch(argv=tuple(command), role=Role.SERVE)
        return Launch(argv=tuple(command), server=peers[SERVER_NODE])
