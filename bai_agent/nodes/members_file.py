"""The files of the run directory that list the nodes that work together: `peers.json` of each generation, and
the hostfile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bai_agent.job.peers import Members, Peer, members_table, read_members
from bai_agent.job.run_directory import RunDir, make_folder, read_json, write_atomic, write_json

if TYPE_CHECKING:
    from bai_agent.run.run_context import RunContext


def is_first_member(ctx: RunContext) -> bool:
    """Return whether this node has group rank 0 in its generation. Before the `join` phase is over, return
    whether this node is the job's first node. Raises BaiError."""
    if ctx.job.strategy.nodes == 1:
        return True
    if not ctx.rundir.of_generation(0).peers.exists() and not ctx.rundir.peers.exists():
        return ctx.node.rank == 0
    return peers_of(ctx.rundir)[0].node == ctx.node.rank


def peers_of(rundir: RunDir) -> tuple[Peer, ...]:
    """Return the nodes that `peers.json` lists. Raises BaiError."""
    return members_of(rundir).peers


def members_of(rundir: RunDir) -> Members:
    """Return the nodes that `peers.json` lists, and the secret with which these nodes sign requests to each
    other. Raises BaiError."""
    # After a restart of a job of one node, only the first generation's directory has `peers.json`.
    own = rundir if rundir.peers.exists() else rundir.of_generation(0)
    return read_members(read_json(own.peers) or {}, where=str(own.peers))


def write_members(rundir: RunDir, members: Members) -> None:
    """Write the nodes that work together to `peers.json` for `bai`, and to the hostfile for the benchmark."""
    make_folder(rundir.shim_folder, private=rundir.path)
    lines = [f"{peer.address} slots={peer.slots}\n" for peer in members.peers]
    write_atomic(rundir.hostfile, "".join(lines).encode())
    write_json(rundir.peers, members_table(members))
