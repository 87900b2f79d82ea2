"""The phase in which the nodes of an attempt meet: afterwards each knows all, in the order of their ranks."""

from __future__ import annotations

import fcntl
import logging
import os
import random
import socket
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

from bai_agent.aws import imds
from bai_agent.benchmark.children import Stopped
from bai_agent.benchmark.environment import SetupError
from bai_agent.benchmark.node_setup import NodeFacts, set_up_node
from bai_agent.errors import BaiError, StoreError
from bai_agent.job.attempt import COORDINATOR, AttemptRecord
from bai_agent.job.durations import format_duration
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import INTERFACE, Members, Peer, members_table, read_members
from bai_agent.job.run_directory import RunDir, read_json, write_atomic, write_json
from bai_agent.job.store import RecordError
from bai_agent.metrics.gpu import Gpus
from bai_agent.run.call_with_deadline import call_with_deadline
from bai_agent.run.clock import CLOCK, Clock
from bai_agent.run.context import RunContext
from bai_agent.run.direct_question import new_key
from bai_agent.run.machine import count_gpus
from bai_agent.run.peer_monitor import FRESH_SECONDS, PeerMonitor
from bai_agent.run.reachability import unreachable
from bai_agent.run.stop import RunEndedError, StopReason
from bai_agent.strategy import SetsUp, strategy_of

log = logging.getLogger(__name__)

_ALONE = "127.0.0.1"
"""A node that has no others, or none on another machine, reaches itself."""
_SIOCGIFADDR = 0x8915
"""netdevice(7)"""
_LOOK_SECONDS = 1.0
_READ_AT_ONCE = 16
_DRIVER_SECONDS = 60.0
"""For NVIDIA's driver to say how many GPUs there are."""


def join(ctx: RunContext) -> None:
    """Meet the other nodes, and write `peers.json` and the hostfile. A single node has nobody to wait for."""
    strategy = strategy_of(ctx.job)
    facts = NodeFacts()
    if isinstance(strategy, SetsUp) and ctx.monitor is not None:
        facts = _set_up(ctx, strategy)
    address = _address(ctx)
    if ctx.port is None:
        ctx.port = _hold_port()
    if ctx.agent_port is None and ctx.monitor is not None:
        ctx.agent_port = hold_agent_port(address)
    me = Peer(
        rank=ctx.node.rank,
        address=address,
        slots=_slots(ctx),
        port=ctx.port.getsockname()[1],
        agent_port=ctx.agent_port.getsockname()[1] if ctx.agent_port is not None else 0,
        instance_id=ctx.node.instance_id,
        public_key=facts.public_key,
        interface=_interface(address),
        engine=facts.engine,
    )
    monitor = ctx.monitor
    members = Members(peers=(me,))
    if monitor is not None:
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
            raise RunEndedError(StopReason(Outcome.JOIN_FAILED, mismatch))
        if (why := unreachable(me, members.peers)) is not None:
            raise RunEndedError(StopReason(Outcome.JOIN_FAILED, why))
    _write(ctx.rundir, members)


def peers_of(rundir: RunDir) -> tuple[Peer, ...]:
    """Return the nodes that met. Raises BaiError."""
    return members_of(rundir).peers


def members_of(rundir: RunDir) -> Members:
    """Return the nodes that met, and their key. Raises BaiError."""
    return read_members(read_json(rundir.peers) or {}, where=str(rundir.peers))


def hold_agent_port(address: str, port: int = 0) -> socket.socket | None:
    """Return a socket on which this node's agent can answer the others; None where there is none, which is logged.

    port: the one that an agent before this one has told them.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((address, port))
    except OSError as error:
        held.close()
        log.warning("the other nodes cannot ask this one directly: %s:%d: %s", address, port, error)
        return None
    return held


class Meeting:
    """Waits until all nodes have said where they are reached, and one of them that these are all."""

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
        """limit: how long a node is waited for that gives no sign of life. stop: why the run is to end, if it is.
        unreachable: why the coordinator cannot reach one of these, if it cannot."""
        self._monitor, self._me = monitor, me
        self._attempt: AttemptRecord = monitor.attempt
        self._clock, self._stop, self._unreachable = clock, stop, unreachable
        self._limit = limit
        self._waited_for = dict.fromkeys(range(nodes), clock.monotonic())
        """Since when each rank is waited for: its last sign of life, or our own coming."""

    def members(self) -> Members:
        """Return all nodes. Raises RunEndedError where one does not come, or the run is to end."""
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
                raise RunEndedError(StopReason(Outcome.JOIN_FAILED, f"{error}.")) from error
            self._wait()

    def _gather(self) -> Members | None:
        """As the coordinator: return all, and tell the others, once the last one has joined."""
        others = self._waited_for.keys() - {self._me.rank}
        if others - self._attempt.joined():
            # Also one that has joined, and is lost while others still pull.
            self._give_up(sorted(others))
            return None
        # Side by side: a thousand one after the other would take a bucket half a minute.
        with ThreadPoolExecutor(min(_READ_AT_ONCE, len(self._waited_for))) as pool:
            peers = tuple(pool.map(self._attempt.peer, self._waited_for))
        if not self._attempt.control().peers and (why := self._unreachable(peers)) is not None:
            # Nobody has started anything yet.
            raise RunEndedError(StopReason(Outcome.JOIN_FAILED, why))
        self._attempt.write_members(Members(peers=peers, key=new_key()))
        return self._settled()

    def _hear(self) -> Members | None:
        if self._attempt.control().peers:
            return self._settled()
        self._give_up([COORDINATOR])
        return None

    def _settled(self) -> Members:
        members = self._attempt.members()
        if (found := len(members.peers)) != (wanted := len(self._waited_for)):
            key = self._attempt.key("control/peers.json")
            raise RecordError(f"{key} has {found} nodes, and this job {wanted}")
        return members

    def _give_up(self, ranks: Sequence[int]) -> None:
        """Raise RunEndedError where one of these nodes has given no sign of life for the whole time."""
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
            which = f"Node {silent[0]}" if len(silent) == 1 else f"Nodes {', '.join(map(str, silent))}"
            raise RunEndedError(
                StopReason(
                    Outcome.JOIN_FAILED,
                    f"{which} gave no sign of life for limits.join ({format_duration(self._limit)}), while node "
                    f"{self._me.rank} waited.",
                )
            )

    def _wait(self, error: StoreError | None = None) -> None:
        if error is not None:
            log.warning("%s; asking again", error)
        if reason := self._stop():
            raise RunEndedError(reason)
        # Drawn anew each time, so that the nodes of a job do not ask together.
        self._clock.sleep(_LOOK_SECONDS * random.uniform(0.5, 1.0))  # noqa: S311


def _set_up(ctx: RunContext, strategy: SetsUp) -> NodeFacts:
    """Return what the others are to know of this node. Raises RunEndedError where it lacks what the strategy needs."""
    try:
        return set_up_node(
            ctx.job,
            ctx.rundir,
            strategy.setup(ctx.job, ctx.node.rank),
            serves=ctx.node.rank != COORDINATOR,
            may_install=ctx.node.instance_id is not None,
            scripts=ctx.scripts,
            stopping=ctx.watch.stopping,
        )
    except SetupError as error:
        raise RunEndedError(StopReason(Outcome.PREPARE_FAILED, str(error))) from error
    except Stopped:
        reason = ctx.watch.reason()
        assert reason is not None  # it stays
        raise RunEndedError(reason) from None


def _address(ctx: RunContext) -> str:
    """Return where other nodes reach this one: on EC2 its address in the subnet, elsewhere all nodes are on this machine."""
    if ctx.job.strategy.nodes == 1 or ctx.node.instance_id is None:
        return _ALONE
    try:
        token = imds.find_token(os.environ)
        if token is None:
            raise imds.MetadataError("the instance metadata service does not answer")
        return imds.read("local-ipv4", token=token, environment=os.environ).strip()
    except imds.MetadataError as error:
        raise RunEndedError(
            StopReason(Outcome.JOIN_FAILED, f"This node does not know its address: {error}.")
        ) from error


def _interface(address: str) -> str | None:
    """Return the network interface whose first IPv4 address that is; None where there is none."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as asked:
        for _, name in socket.if_nameindex():
            try:
                told = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", os.fsencode(name)))
            except OSError:  # it has no address, or went away
                continue
            # struct ifreq: the name, 16 bytes; then struct sockaddr_in: family, port, address.
            if socket.inet_ntoa(told[20:24]) == address and INTERFACE.fullmatch(name):
                return name
    return None


def _hold_port() -> socket.socket:
    """Return a socket that keeps a port for what this node starts after all have met: the kernel gives that port to nobody else.

    It does not listen itself, so that a server with SO_REUSEADDR does, as sshd and PyTorch's store have it: socket(7).
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held


def _slots(ctx: RunContext) -> int:
    """Return how many processes this node runs: a number, or one for each of its GPUs (one where it has none).

    Raises RunEndedError where it has not as many GPUs as were planned for.
    """
    strategy = ctx.job.strategy
    if strategy.processes_per_node != "gpus":
        return int(strategy.processes_per_node)
    found, by = _gpus(ctx)
    if strategy.gpus is not None and found != strategy.gpus:
        raise RunEndedError(
            StopReason(
                Outcome.PREPARE_FAILED,
                f"Node {ctx.node.rank} has {found} GPUs, counted by {by}, and its instance type has {strategy.gpus}: "
                "on another machine the job may run; else write how many processes each starts.",
            )
        )
    return max(1, found)


def _gpus(ctx: RunContext) -> tuple[int, str]:
    """Return how many GPUs the benchmark can use, and by whose word. A driver may hang, and one that is not there counts none."""
    deadline = ctx.clock.monotonic() + _DRIVER_SECONDS
    over = lambda: ctx.clock.monotonic() > deadline  # noqa: E731
    counted = call_with_deadline(lambda: Gpus().count, over=over, name="counting GPUs")
    return (count_gpus(), "the PCI bus") if counted is None else (counted, "NVML")


def _write(rundir: RunDir, members: Members) -> None:
    lines = [f"{peer.address} slots={peer.slots}\n" for peer in members.peers]
    write_atomic(rundir.hostfile, "".join(lines).encode())
    write_json(rundir.peers, members_table(members))
