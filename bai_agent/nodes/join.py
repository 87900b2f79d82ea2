"""The phase in which each node publishes its address and waits for the other nodes' addresses. After the
phase, each node knows all nodes, in the order of their ranks."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from itertools import takewhile
from typing import TYPE_CHECKING

from bai_agent.benchmark.children import Stopped
from bai_agent.errors import BaiError, MetadataError, RecordError, SetupError, StoreError
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import COORDINATOR, INTERFACE, Members, Peer
from bai_agent.machine.gpu import Gpus
from bai_agent.machine.readiness import count_gpus
from bai_agent.nodes.held_ports import hold_agent_port, hold_port
from bai_agent.nodes.members_file import write_members
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.clock import CLOCK, Clock, call_with_deadline
from bai_agent.runtime.stop import RunEndedError, StopReason
from bai_agent.strategy import PlacesNodes, SetsUp, Strategy, strategy_of

if TYPE_CHECKING:
    from bai_agent.benchmark.node_setup import NodeFacts
    from bai_agent.job.attempt import AttemptRecord, Version
    from bai_agent.job.descriptor.benchmark_tables import Benchmark
    from bai_agent.peers.peer_monitor import PeerMonitor

# Modules for several nodes are imported in functions, because these modules would delay the start of a job of
# one node.
log = logging.getLogger(__name__)

_ALONE = "127.0.0.1"
"""Address of a node if all nodes are on the same machine."""
_SIOCGIFADDR = 0x8915
"""netdevice(7)"""
_LOOK_SECONDS = 1.0
_LOOK_TOGETHER = 200
"""Number of nodes up to which each worker checks the store at the usual interval. In larger jobs each worker
checks less often, so that the store gets no more requests per second."""
_READ_AT_ONCE = 16
_DRIVER_SECONDS = 60.0
"""Seconds for NVIDIA's driver to report the number of GPUs."""


def join(ctx: RunContext) -> None:
    """Wait until all nodes have joined, and write `peers.json` and the hostfile. A job of one node does not
    wait.

    In an elastic job, the two files list the members of the first generation to which this node belongs.
    """
    strategy = strategy_of(ctx.job)
    facts = None
    if isinstance(strategy, SetsUp) and ctx.others is not None:
        facts = _set_up(ctx, strategy)
        for warning in facts.warnings:
            ctx.warn(warning)
    address = _address(ctx, strategy)
    if ctx.port is None:
        ctx.port = hold_port()
    if ctx.agent_port is None and ctx.others is not None:
        ctx.agent_port = hold_agent_port(address)
    me = Peer(
        rank=ctx.node.rank,
        address=address,
        slots=_slots(ctx),
        port=ctx.port.getsockname()[1],
        agent_port=ctx.agent_port.getsockname()[1] if ctx.agent_port is not None else 0,
        instance_id=ctx.node.instance_id,
        public_key=facts.public_key if facts is not None else None,
        interface=_interface(address),
        engine=facts.engine if facts is not None else None,
    )
    if ctx.elastic is not None:
        from bai_agent.nodes.membership import begin, next_membership

        membership = next_membership(ctx, ctx.elastic, me)
        assert membership is not None  # nothing has ended here
        begin(ctx, ctx.elastic, membership)
        return
    monitor = ctx.monitor
    members = Members(peers=(me,))
    if monitor is not None:
        from bai_agent.peers.reachability import unreachable

        nodes, limit = ctx.job.strategy.nodes, ctx.job.limits.join
        meeting = Meeting(
            monitor,
            me,
            nodes=nodes,
            limit=limit,
            stop=ctx.watch.reason,
            unreachable=lambda peers: unreachable(me, peers, started=False),
            clock=ctx.clock,
        )
        members = meeting.members()
        if isinstance(strategy, SetsUp) and (mismatch := strategy.mismatch(members.peers)) is not None:
            raise RunEndedError.of(Outcome.JOIN_FAILED, mismatch)
        if (why := unreachable(me, members.peers)) is not None:
            raise RunEndedError.of(Outcome.JOIN_FAILED, why)
    write_members(ctx.rundir, members)


class Meeting:
    """Waits until all nodes have published their addresses and the coordinator has published the complete
    list."""

    def __init__(
        self,
        monitor: PeerMonitor,
        me: Peer,
        *,
        nodes: int,
        limit: timedelta,
        stop: Callable[[], StopReason | None],
        unreachable: Callable[[Sequence[Peer]], str | None] = lambda _: None,
        clock: Clock = CLOCK,
    ) -> None:
        """limit: time without a heartbeat after which a node that has not joined counts as lost. stop:
        function that returns the reason to end the run, or None. unreachable: function that returns why the
        coordinator cannot reach one of the given nodes; None if the coordinator reaches all of them."""
        self._monitor, self._me = monitor, me
        self._attempt: AttemptRecord = monitor.attempt
        self._clock, self._stop, self._unreachable = clock, stop, unreachable
        self._limit = limit
        self._waited_for = dict.fromkeys(range(nodes), clock.monotonic())
        """For each rank, the time of its last heartbeat, or the time at which this wait started."""
        self._said: dict[int, tuple[tuple[Version, str], Peer]] = {}
        """Published facts of each node that has joined, with their version."""
        together = 1 if monitor.is_coordinator else nodes
        self._look_s = _LOOK_SECONDS * max(1.0, together / _LOOK_TOGETHER)

    def members(self) -> Members:
        """Return all nodes. Raises RunEndedError if a node does not join in time, or if the run must end."""
        while True:
            try:
                self._attempt.join(self._me)
                break
            except StoreError as error:
                self._wait(error)
        look = self._gather if self._monitor.is_coordinator else self._hear
        while True:
            try:
                if (found := look()) is not None:
                    return found
            except BaiError as error:
                if isinstance(error, StoreError) and not isinstance(error, RecordError):
                    self._wait(error)
                    continue
                raise RunEndedError.of(Outcome.JOIN_FAILED, f"{error}.") from error
            self._wait()

    def _gather(self) -> Members | None:
        """Publish and return the list of all nodes, if the last node has joined. Only the coordinator calls
        this method."""
        joined = {
            rank: version for rank, version in self._attempt.joined().items() if rank in self._waited_for
        }
        self._read(joined)
        if len(joined) < len(self._waited_for):
            # A node that joined and then stopped writing heartbeats, while other nodes are still pulling, is
            # also given up here.
            self._give_up(sorted(self._waited_for.keys() - {self._me.rank}))
            return None
        if (settled := self._settled()) is not None:
            return settled
        from bai_agent.peers.direct_question import new_key

        members = Members(peers=tuple(self._said[rank][1] for rank in sorted(joined)), key=new_key())
        if (why := self._unreachable(members.peers)) is not None:
            # At this point no node has started a program of the benchmark.
            raise RunEndedError.of(Outcome.JOIN_FAILED, why)
        return members if self._attempt.write_members(members) else self._settled()

    def _read(self, joined: Mapping[int, tuple[Version, str]]) -> None:
        """Read the addresses of nodes that have joined since the last call, so that little is left to read when
        the last node joins."""
        new = [
            rank
            for rank, version in joined.items()
            if rank not in self._said or self._said[rank][0] != version
        ]
        if not new:
            return
        from concurrent.futures import ThreadPoolExecutor

        # The addresses are read in parallel, because a thousand requests to a bucket would take half a minute
        # one after the other.
        with ThreadPoolExecutor(min(_READ_AT_ONCE, len(new))) as pool:
            for rank, peer in zip(new, pool.map(self._attempt.peer, new), strict=True):
                self._said[rank] = (joined[rank], peer)

    def _hear(self) -> Members | None:
        if (settled := self._settled()) is None:
            self._give_up([COORDINATOR])
        return settled

    def _settled(self) -> Members | None:
        """Return the members, which are read only once; None until the members are published."""
        if not self._attempt.control().peers:
            return None
        members = self._attempt.members()
        if (found := len(members.peers)) != (wanted := len(self._waited_for)):
            key = self._attempt.key("control/peers.json")
            raise RecordError(f"{key} lists {found} nodes, but this job has {wanted}")
        return members

    def _give_up(self, ranks: Sequence[int]) -> None:
        """Raise RunEndedError if one of the nodes `ranks` has written no heartbeat for longer than the
        limit."""
        from bai_agent.peers.node_monitor import FRESH_SECONDS, never_joined

        for rank in ranks:
            age_s = self._monitor.age_s(rank)
            if age_s is not None and age_s <= FRESH_SECONDS:
                self._waited_for[rank] = self._clock.monotonic()
        silent = [
            rank
            for rank in ranks
            if self._clock.monotonic() - self._waited_for[rank] > self._limit.total_seconds()
        ]
        if silent:
            self._monitor.give_up(silent)
            raise RunEndedError.of(
                Outcome.JOIN_FAILED,
                f"{never_joined(silent, self._limit)}, while node {self._me.rank} waited.",
            )

    def _wait(self, error: StoreError | None = None) -> None:
        if error is not None:
            log.warning("%s; asking again", error)
        if reason := self._stop():
            raise RunEndedError(reason)
        # The pause is random each time, so that the nodes of a job do not send their requests together.
        import random

        self._clock.sleep(self._look_s * random.uniform(0.5, 1.0))  # noqa: S311


def _set_up(ctx: RunContext, strategy: SetsUp) -> NodeFacts:
    """Prepare this node for the strategy, and return the facts about the node that it publishes to the other
    nodes. Raises RunEndedError if the node lacks something that the strategy needs."""
    from bai_agent.benchmark.node_setup import set_up_node

    try:
        return set_up_node(
            ctx.job,
            ctx.rundir,
            strategy.setup(ctx.job, ctx.node.rank),
            # In an elastic job, any node can be the first node of one generation and can be missing in the
            # next generation.
            serves=None if ctx.job.is_elastic else ctx.node.rank != COORDINATOR,
            may_install=ctx.node.instance_id is not None,
            scripts=ctx.scripts,
            stopping=ctx.watch.stopping,
        )
    except SetupError as error:
        raise RunEndedError.of(Outcome.PREPARE_FAILED, str(error)) from error
    except Stopped:
        ctx.watch.raise_reason()
        raise  # not reached, because a stop reason remains


def _address(ctx: RunContext, strategy: Strategy) -> str:
    """Return the address of this node for the other nodes. On EC2, the address is the node's address in the
    subnet. Outside EC2, all nodes run on this machine, and the address is this machine's."""
    if ctx.others is None:
        return _ALONE
    if ctx.node.instance_id is None:
        if isinstance(strategy, PlacesNodes):
            return strategy.local_address(ctx.job, ctx.node.rank)
        return _ALONE
    from bai_agent.aws import imds

    try:
        return imds.read("local-ipv4", environment=os.environ).strip()
    except MetadataError as error:
        raise RunEndedError.of(
            Outcome.JOIN_FAILED, f"This node does not know its address: {error}."
        ) from error


def _interface(address: str) -> str | None:
    """Return the name of the network interface whose first IPv4 address is `address`; None if no interface
    has the address."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as asked:
        for _, name in socket.if_nameindex():
            try:
                told = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", os.fsencode(name)))
            except OSError:  # the interface has no address, or has disappeared
                continue
            # struct ifreq: the name, 16 bytes; then struct sockaddr_in: family, port, address.
            if socket.inet_ntoa(told[20:24]) == address and INTERFACE.fullmatch(name):
                return name
    return None


def _slots(ctx: RunContext) -> int:
    """Return the number of benchmark processes on this node: the number from the descriptor, or one per GPU.
    A node without a GPU has one process.

    Raises RunEndedError if the number of GPUs of this node differs from the number that its instance type
    has.
    """
    strategy = ctx.job.strategy
    if strategy.processes_per_node != "gpus":
        return int(strategy.processes_per_node)
    found, by = _gpus(ctx)
    if strategy.gpus is not None and found != strategy.gpus:
        raise RunEndedError.of(
            Outcome.PREPARE_FAILED,
            f"Node {ctx.node.rank} has {found} GPUs (counted by {by}), but its instance type has {strategy.gpus}: "
            "run the job again on another machine, or set processes_per_instance.",
        )
    return max(1, _visible_gpus(ctx.job.benchmark, found))


def _visible_gpus(benchmark: Benchmark, found: int) -> int:
    """Return the number of this node's GPUs that CUDA shows to the benchmark.

    CUDA ignores the entries of CUDA_VISIBLE_DEVICES after the first invalid one, such as -1.
    """
    env = (dict(os.environ) if benchmark.inherit_env else {}) | benchmark.env
    listed = env.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return found
    entries = takewhile(lambda entry: entry.strip()[:1].isalnum(), listed.split(","))
    return min(found, len(list(entries)))


def _gpus(ctx: RunContext) -> tuple[int, str]:
    """Return the number of usable GPUs, and who counted them: "NVML" or "the PCI bus". The GPUs are counted
    on the PCI bus if NVIDIA's driver is missing or does not answer in time."""
    deadline = ctx.clock.monotonic() + _DRIVER_SECONDS
    over = lambda: ctx.clock.monotonic() > deadline  # noqa: E731
    counted = call_with_deadline(lambda: Gpus().count, over=over, name="counting GPUs")
    return (count_gpus(), "the PCI bus") if counted is None else (counted, "NVML")
