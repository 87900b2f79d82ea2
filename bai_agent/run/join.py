"""The phase in which the nodes of an attempt meet: afterwards each knows all, in the order of their ranks."""

from __future__ import annotations

from collections.abc import Sequence

from bai_agent.job.descriptor import Job
from bai_agent.job.peers import Peer, peers_table, read_peers
from bai_agent.job.run_directory import RunDir, read_json, write_atomic, write_json
from bai_agent.run.context import RunContext
from bai_agent.run.machine import count_gpus
from bai_agent.strategy import strategy_of

_ALONE = "127.0.0.1"
"""A node that has no others reaches itself."""


def join(ctx: RunContext) -> None:
    """Meet the other nodes, and write `peers.json` and the hostfile. A single node has nobody to wait for."""
    strategy_of(ctx.job)
    me = Peer(rank=ctx.node.rank, address=_ALONE, slots=_slots(ctx.job))
    _write(ctx.rundir, [me])


def peers_of(rundir: RunDir) -> tuple[Peer, ...]:
    """Return the nodes that met. Raises BaiError."""
    return read_peers((read_json(rundir.peers) or {}).get("peers"), where=str(rundir.peers))


def _slots(job: Job) -> int:
    """Return how many processes this node runs: a number, or one for each of its GPUs (one where it has none)."""
    wanted = job.strategy.processes_per_node
    return max(1, count_gpus()) if wanted == "gpus" else int(wanted)


def _write(rundir: RunDir, peers: Sequence[Peer]) -> None:
    lines = [f"{peer.address} slots={peer.slots}\n" for peer in peers]
    write_atomic(rundir.hostfile, "".join(lines).encode())
    write_json(rundir.peers, {"peers": peers_table(peers)})
