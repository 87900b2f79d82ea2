"""A strategy decides which program each node of a job starts. Each strategy has a module in this folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.strategy_tables import SERVER_NODE

if TYPE_CHECKING:
    from bai_agent.job.peers import Peer
    from bai_agent.strategy.failure import Cause, Remains
    from bai_agent.strategy.launch import Launch, Role, Setup


class Strategy(Protocol):
    """A way in which the nodes of a job work together, such as `torchrun`."""

    def check(self, job: Job) -> None:
        """Raise DescriptorError if this strategy cannot run the job."""
        ...

    def launch(self, job: Job, command: Sequence[str], me: Peer, peers: Sequence[Peer]) -> Launch:
        """Return the launch of the node `me`: the program that the node starts. peers: all nodes, in the
        order of their ranks. command: the benchmark's own command. The method has no side effects."""
        ...


@runtime_checkable
class ExplainsFailure(Protocol):
    """A strategy whose launcher reports which of its processes failed. With all other strategies, bai only
    knows how the launcher itself ended."""

    def explain(self, job: Job, remains: Remains, me: Peer, peers: Sequence[Peer]) -> Cause | None:
        """Return which process on the node `me` failed first; None if unknown. Has no side effects.

        remains: the output and files of the launch. They are untrusted, because the benchmark can have
        written them.
        """
        ...


@runtime_checkable
class SetsUp(Strategy, Protocol):
    """A strategy whose nodes must be set up before they join the job."""

    def setup(self, job: Job, rank: int) -> Setup:
        """Return the requirements that the node `rank` must meet in a job of several nodes. Has no side
        effects."""
        ...

    def mismatch(self, peers: Sequence[Peer]) -> str | None:
        """Return a sentence that says why the nodes `peers` cannot work together; None if there is no
        obstacle. Has no side effects."""
        ...


@runtime_checkable
class PlacesNodes(Strategy, Protocol):
    """A strategy whose nodes need different addresses even if all nodes are on this machine."""

    def local_address(self, job: Job, node: int) -> str:
        """Return the loopback address of the node with this number. Has no side effects."""
        ...


_STRATEGIES: Mapping[str, str] = {
    "single_node": "single_node:SingleNode",
    "each_node": "each_node:EachNode",
    "adaptdl": "adaptdl:AdaptDl",
    "horovod": "mpi:Horovod",
    "inference": "inference:Inference",
    "mpi": "mpi:Mpi",
    "ray": "ray_cluster:Ray",
    "torchrun": "torchrun:Torchrun",
}
"""Module and class of each strategy, by its name. A job imports only the module of its own strategy."""


def _find_strategy(name: str) -> Strategy | None:
    module, _, kind = _STRATEGIES.get(name, "").partition(":")
    if not module:
        return None
    strategy: Strategy = getattr(import_module(f"bai_agent.strategy.{module}"), kind)()
    return strategy


def strategy_of(job: Job) -> Strategy:
    """Return the job's strategy. Raises DescriptorError for a strategy that this agent does not know, or that
    cannot run the job."""
    found = _find_strategy(job.strategy.name)
    if found is None:
        known = ", ".join(f'"{name}"' for name in _STRATEGIES)
        raise DescriptorError(f'[strategy] name: this agent runs {known}, not "{job.strategy.name}"')
    found.check(job)
    return found


def explain_failure(job: Job, remains: Remains, me: Peer, peers: Sequence[Peer]) -> Cause | None:
    """Return which process on the node `me` failed first; None if the strategy cannot find out."""
    strategy = _find_strategy(job.strategy.name)
    return strategy.explain(job, remains, me, peers) if isinstance(strategy, ExplainsFailure) else None


def role_of(job: Job, me: Peer, peers: Sequence[Peer]) -> Role:
    """Return whether the node `me` computes or serves other nodes. peers: all nodes, in the order of their
    ranks."""
    return strategy_of(job).launch(job, (), me, peers).role


def node_environment(job: Job, me: Peer, peers: Sequence[Peer], *, hostfile: str) -> dict[str, str]:
    """Return the environment variables that every process of the benchmark gets, whatever the strategy.

    hostfile: the path of a file with a line "ADDRESS slots=N" for each node, as Open MPI reads it.
    """
    return {
        "BAI_ATTEMPT": str(job.job.attempt),
        "BAI_HOSTFILE": hostfile,
        "BAI_MASTER_ADDR": peers[0].address,
        "BAI_MAX_NODES": str(job.strategy.nodes),
        "BAI_MIN_NODES": str(job.strategy.min_nodes or job.strategy.nodes),
        "BAI_NODE": str(me.node),
        "BAI_NODE_ADDRS": ",".join(peer.address for peer in peers),
        "BAI_NODE_RANK": str(me.rank),
        "BAI_NUM_NODES": str(len(peers)),
        **(job.server.environment(peers[SERVER_NODE].address) if job.server is not None else {}),
    }
