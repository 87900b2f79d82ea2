"""Reads the reports that the nodes of an elastic job have written to the store. The leader uses the
reports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial

from bai_agent.errors import RecordError
from bai_agent.generations.decision import desired_nodes
from bai_agent.generations.observation import Member
from bai_agent.generations.policy import Policy
from bai_agent.job.attempt import AttemptRecord, Control, EndsSeen, SignsSeen, Version
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.descriptor.restart_tables import Checkpoint
from bai_agent.job.generation_records import (
    Beginning,
    GenerationEnd,
    Joined,
    NextGeneration,
    ScaleRequest,
    Sign,
)
from bai_agent.job.launches import JobMachines
from bai_agent.job.peers import Peer
from bai_agent.job.record_types import NodeOutcome
from bai_agent.light_dataclass import dataclass
from bai_agent.peers.direct_question import PeerAnswer

log = logging.getLogger(__name__)

_NONE_KNOWN = JobMachines(by_node={}, is_first_known=True)
TOGETHER_S = 8.0
"""Time after a planned decision at which the members stop, even if some members have not confirmed that they
have read the decision (seconds, store's clock)."""


@dataclass(frozen=True, kw_only=True)
class LeaderContext:
    """Data that the leader and its helper classes use, in addition to the nodes' reports."""

    attempt: AttemptRecord
    node: int
    """Number of the leader's own node."""
    policy: Policy
    desired: int
    """Number of nodes with which the job was launched."""
    limits: Limits
    checkpoint: Checkpoint | None
    clock: Callable[[], float]
    find_serving: Callable[[Sequence[Peer]], Collection[int]]
    """Function that returns those of the given nodes that run servers."""
    silent_s: Callable[[int], float]
    """Function that returns for how long a node has been silent (seconds). Only the time in which this node
    could check the store counts."""
    unheard_s: Callable[[int], float]
    """Function that returns for how long a node has been silent in total (seconds)."""
    answering: Callable[[Sequence[Peer]], Collection[int]]
    """Function that sends a direct request to each of the nodes and returns the nodes that answer."""
    ask: Callable[[Peer], PeerAnswer | None] = lambda peer: None
    """Function that sends a direct request to one node and returns the answer; None without an answer."""


@dataclass(frozen=True, kw_only=True)
class Decided:
    """A decision about generations that has been written to the store."""

    number: int
    word: NextGeneration
    put: Version
    """Version of the decision's object, which contains the time at which the decision was written."""


class NodeReports:
    """The reports of all nodes and the leaders' decisions, as read from the store. A report is read again
    only if its node has written a new version of the report."""

    def __init__(self, ctx: LeaderContext) -> None:
        self._ctx = ctx
        self.store_ms = 0
        """Time of the last check (ms, store's clock)."""
        self.decisions: dict[int, NextGeneration] = {}
        self.joined: dict[int, tuple[tuple[Version, str], Joined]] = {}
        self._unreadable: dict[int, tuple[Version, str]] = {}
        """Versions of those `joined` reports that cannot be read, by node."""
        self._not_launched: dict[int, tuple[tuple[Version, str], Joined]] = {}
        """`joined` reports that do not come from a machine that was launched for the job, by node."""
        self._launched_machines: JobMachines | None = _NONE_KNOWN
        """Machines that were launched for the job. None if no launch is recorded; the reports of all nodes
        are then accepted."""
        self.ends: dict[tuple[int, int], tuple[Version, GenerationEnd]] = {}
        """How each generation ended on each node, by node and generation."""
        self.outcomes: dict[int, tuple[Version, NodeOutcome]] = {}
        """The outcome of each node."""
        self.requests: dict[int, int] = {}
        """Requested numbers of nodes, by the serial number of the user's request."""
        self._proposals: dict[int, int] = {}
        """Numbers of nodes that leaders proposed because of the benchmark's hints, by the serial number of
        the proposal."""
        self.requested_ms = 0
        """Time of the last request for another number of nodes (ms, store's clock)."""
        self.begun: Beginning | None = None
        """The beginning of the newest generation. None if the newest generation has not begun."""
        self.ran: tuple[int, Beginning | None] = (0, None)
        """The most recent generation that began before the newest decision, and its beginning. The
        beginning is None if no generation of the job has begun."""
        self._restored: tuple[int, set[int]] = (-1, set())
        """Number of the generation for which `has_restored` was called last, and those members that have
        restored its checkpoint."""
        self._seen_by: tuple[int, set[int]] = (-1, set())
        """Number of a planned decision, and the members that have confirmed it."""

    def read(self, control: Control, ends: EndsSeen) -> None:
        """Read all reports and decisions that are new in the store. Raises BaiError."""
        for number in set(control.decided) - self.decisions.keys():
            self.decisions[number] = self._ctx.attempt.decision(number, control)
        newest = max(self.decisions, default=0)
        self.ran = self._begun_before(newest, control)
        self._read_joined()
        for key, put in ends.generations.items():
            # Ends of generations before the last one that ran are not needed any more.
            if key[1] >= min(self.ran[0], newest - 1) and self.ends.get(key, (None, None))[0] != put:
                self.ends[key] = (put, self._ctx.attempt.generation_end(key[1], key[0]))
        self._read_outcomes(ends)
        requests = self._ctx.attempt.scale_requests()
        self.requested_ms = max((put[0] for put in requests.values()), default=0)
        for number in requests.keys() - self.requests.keys():
            self.requests[number] = _size(partial(self._ctx.attempt.scale_request, number))

    def read_proposals(self, signs: SignsSeen) -> None:
        """Read the numbers of nodes that leaders proposed because of the benchmark's hints, unless this job
        ignores proposals. Raises StoreError."""
        if self._ctx.policy.takes_proposals:
            for number in signs.proposals.keys() - self._proposals.keys():
                self._proposals[number] = _size(partial(self._ctx.attempt.size_proposal, number))

    @property
    def desired(self) -> int:
        """The number of nodes that the job should have. A user's request takes precedence over a leader's
        proposal."""
        sizes = (size for each in (self._proposals, self.requests) for _, size in sorted(each.items()))
        return desired_nodes(sizes, self._ctx.policy, first=self._ctx.desired)

    def _read_joined(self) -> None:
        """Read the reports of nodes that have joined. Only reports of machines that were launched for the job
        are accepted, because a benchmark could also write a report.

        If a node's newest report cannot be read, the node's earlier report is used. Raises StoreError,
        RecordError.
        """
        found = self._not_launched
        for node, version in self._ctx.attempt.joined().items():
            known = [each[node][0] for each in (self.joined, found) if node in each]
            if version in (*known, self._unreadable.get(node)):
                continue
            try:
                found[node] = (version, self._ctx.attempt.joined_node(node))
            except RecordError as error:
                log.warning("node %d has not joined: %s", node, error)
                self._unreadable[node] = version
        if not all(self._is_launched(joined) for _, joined in found.values()):
            self._launched_machines = self._ctx.attempt.machines()
        for node in [each for each, (_, joined) in found.items() if self._is_launched(joined)]:
            self.joined[node] = found.pop(node)

    def _is_launched(self, joined: Joined) -> bool:
        """Return whether a node's report comes from a machine that was launched for this node. Return True
        for every report if the job's machines are not known."""
        machines, peer = self._launched_machines, joined.peer
        return machines is None or machines.has(peer.node, peer.instance_id, first=self._ctx.desired)

    def _read_outcomes(self, ends: EndsSeen) -> None:
        for node, version in ends.nodes.items():
            if self.outcomes.get(node, (None, None))[0] != version:
                self.outcomes[node] = (version, self._ctx.attempt.usable_outcome(node))

    def _begun_before(self, number: int, control: Control) -> tuple[int, Beginning | None]:
        """Return the number of the newest generation before `number` that began, and its beginning. Return
        (0, None) if no generation before `number` began. Raises StoreError."""
        for each in sorted((each for each in control.begun if each < number), reverse=True):
            if each == self.ran[0] and self.ran[1] is not None:
                return self.ran
            with suppress(RecordError):  # the generation never began
                return each, self._ctx.attempt.beginning(each, members=self.decisions[each].members)
        return 0, None

    def peers_of(self, members: Iterable[Member]) -> list[Peer]:
        """Return the addresses of those members that have joined."""
        return [self.joined[each.node][1].peer for each in members if each.node in self.joined]

    def is_ready(self, node: int, number: int) -> bool:
        """Return whether a member of the newest generation has no processes of earlier generations any
        more."""
        before = self.decisions.get(number - 1)
        if node not in self.joined:
            return False
        return before is None or node not in before.members or (node, number - 1) in self.ends

    def has_ended(self, node: int, generation: int) -> bool:
        """Return whether a node has reported that a generation, or its whole part of the job, has ended."""
        return (node, generation) in self.ends or node in self.outcomes

    def has_joined_after(self, node: int, last: int | None) -> bool:
        """Return whether a node joined again after its last generation, `last`. An earlier join report
        possibly comes from an agent that was killed later."""
        after = self.joined[node][1].after
        return last is None or (after is not None and after > last)

    def leaving(self, node: int, signs: SignsSeen) -> Version | None:
        """Return the version of a node's report that its machine is about to be terminated. Return None if
        the node did not report this, or has joined again after the report."""
        said, joined = signs.leaving.get(node), self.joined.get(node)
        return None if said is None or (joined is not None and joined[0][0][0] > said[0]) else said

    def has_seen(self, node: int, number: int) -> bool:
        """Return whether a member has confirmed that it has read a decision. Raises BaiError."""
        if self._seen_by[0] != number:
            self._seen_by = (number, {self._ctx.node})
        if node not in self._seen_by[1]:
            seen = self._last_sign(node).decided
            if seen is None or seen < number:
                return False
            self._seen_by[1].add(node)
        return True

    def has_restored(self, node: int, number: int) -> bool:
        """Return whether a member has reported that it has the checkpoint of a generation. Raises
        StoreError."""
        if self._restored[0] != number:
            self._restored = (number, set())
        if node not in self._restored[1]:
            sign = self._last_sign(node)
            if not sign.restored or sign.generation != number:
                return False
            self._restored[1].add(node)
        return True

    def _last_sign(self, node: int) -> Sign:
        """Return a node's last heartbeat, or an empty heartbeat if the last heartbeat cannot be read. Raises
        StoreError."""
        try:
            return self._ctx.attempt.last_sign(node)
        except RecordError as error:
            log.warning("a heartbeat cannot be read: %s", error)
            return Sign()

    def age_s(self, put: Version) -> float:
        """Return how many seconds ago an object was written, by the store's clock."""
        return (self.store_ms - put[0]) / 1000

    def local_s(self, store_ms: float) -> float:
        """Convert a time of the store's clock (ms) to a time of this process's clock (s)."""
        return self._ctx.clock() - (self.store_ms - store_ms) / 1000


def _size(read: Callable[[], ScaleRequest]) -> int:
    """Return a requested or proposed number of nodes. Return 0 if the number cannot be read, because a
    request for 0 nodes is always ignored. Raises StoreError."""
    try:
        return read().desired
    except RecordError as error:
        log.warning("a request for another number of nodes cannot be read: %s", error)
        return 0
