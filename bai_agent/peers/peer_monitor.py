"""Watches the heartbeats of the nodes of a fixed job, and ends the job on all nodes when one node fails or is
lost.

The monitor runs on a separate thread, because a check can hang in a network request. Rank 0, the coordinator,
watches all nodes and decides. The other nodes watch the coordinator. A heartbeat's age is the time since this
node saw a new version of the heartbeat, so that clocks of different machines are not compared. A silent node
gets a direct request before it counts as lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from bai_agent.errors import BaiError, RecordError
from bai_agent.job.attempt import AttemptRecord, StopOrder, Version
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.descriptor.restart_tables import Restart
from bai_agent.job.job_result import first_failure, sentence_of_node
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import COORDINATOR, Peer
from bai_agent.job.record_types import NodeOutcome
from bai_agent.job.run_directory import now_ms
from bai_agent.peers.direct_question import PeerAnswer, ask, ask_all
from bai_agent.peers.generation_control import GenerationControl
from bai_agent.peers.node_monitor import NodeMonitor
from bai_agent.runtime.stop import StopReason

log = logging.getLogger(__name__)

_DEFAULTS = Limits()
_ASKED_EARLY = 32
"""Largest number of silent nodes that get a direct request before their limit is reached. This is also the
number of requests that can be sent at the same time."""


class PeerMonitor(NodeMonitor):
    """Writes this node's heartbeats and watches those of the other nodes in a fixed job."""

    def __init__(
        self,
        attempt: AttemptRecord,
        *,
        rank: int,
        nodes: int,
        limits: Limits = _DEFAULTS,
        restart: Restart | None = None,
        clock: Callable[[], float] = time.monotonic,
        ask: Callable[[Peer, bytes], PeerAnswer | None] = ask,
    ) -> None:
        super().__init__(attempt, rank=rank, limits=limits, clock=clock, ask=ask)
        self.generations = (
            GenerationControl(
                attempt,
                rank=rank,
                policy=restart,
                clock=clock,
                wake=self.wake,
                lived_since=lambda node, moment_s: self._signed(node) >= moment_s,
            )
            if restart is not None and restart.max_restarts
            else None
        )
        """How the nodes agree on restarts; None if the job has no restarts."""
        self._nodes = nodes
        self._cut_off: dict[int, float] = {}
        """Time at which each silent node answered that it cannot reach the store."""
        self._reason: StopReason | None = None
        self._lost_coordinator = False
        self._unsaid: StopOrder | None = None
        """This coordinator's order to end the job, if the store has not accepted the order yet."""
        self._told = False
        """Whether this worker has seen the coordinator's order to end."""
        self._looking = threading.Lock()
        self._ended: dict[int, Version] = {}
        """For each node, the version of its outcome that was read."""
        self.outcomes: dict[int, NodeOutcome] = {}
        """Known outcomes of other nodes, including lost nodes."""
        self.lost: set[int] = set()
        """Nodes that count as lost and have not reported an outcome later."""
        self.finished = False
        """Whether the coordinator reports success."""
        self._silence_s: float | None = None
        """Time after which the job ends if no benchmark has printed anything (seconds). None if there is no
        limit."""
        self._all_silent = False

    @property
    def is_coordinator(self) -> bool:
        return self._rank == COORDINATOR

    @property
    def ends_job(self) -> bool:
        """Whether this node must end because of another node or because the store is unreachable."""
        return self._reason is not None

    @property
    def is_cut_off(self) -> bool:
        """Whether this node must end because the store has not accepted its heartbeats for too long."""
        return self.absence.too_long() is not None

    def reason(self, running_s: float | None) -> StopReason | None:
        if self._reason is None and self.serves and self.finished:
            return StopReason(Outcome.SUCCEEDED, "This node served the job until the job ended.")
        # The connection is also checked here, because the monitor's thread can hang in a network request.
        self._check_cut_off()
        if self._reason is None and self.generations is not None:
            return self.generations.reason()
        return self._reason

    def met(self, peers: Sequence[Peer], *, key: bytes | None = None) -> None:
        """Record the nodes of the job, and start to watch for silent nodes."""
        # The time is set first, because this monitor's thread can check the nodes as soon as it knows them.
        # No node is silent for longer than the time since they met.
        self._watched_from = self._clock()
        super().met(peers, key=key)

    def _ended_nodes(self) -> Collection[int]:
        return {rank for rank in self.outcomes if self._is_complete(rank)}

    def age_s(self, rank: int) -> float | None:
        """Return the age of a node's last heartbeat (seconds); None if no heartbeat is known. A worker reads
        only the coordinator's heartbeats."""
        return self._ages.age_s(rank)

    def stop_others(self, order: StopOrder) -> None:
        """As the coordinator, order all nodes to end. Raises StoreError; in this case, the next check sends
        the order again."""
        self._unsaid = order = self._unsaid or order
        self.attempt.order_stop(order)
        self._unsaid = None

    def all_silent(self, silence_s: float) -> bool:
        """Return whether all nodes' benchmarks had printed nothing for `silence_s` seconds at the last check.
        False on workers."""
        self._silence_s = silence_s
        return self._all_silent

    @property
    def lost_coordinator(self) -> bool:
        """Whether the coordinator counts as lost for this worker."""
        return not self.is_coordinator and self._lost_coordinator

    def give_up(self, ranks: Iterable[int]) -> None:
        """Count these nodes, which never joined, as lost."""
        self.lost.update(ranks)
        self._lost_coordinator = COORDINATOR in self.lost

    def wait_for_coordinator(self, *, over: Callable[[], bool]) -> None:
        """As a worker, wait until the coordinator orders the end. The wait also ends if the coordinator is
        lost, if this node cannot reach the store for too long, or if `over()` returns True."""
        while self._peers and not (self._told or self._lost_coordinator or over() or self.is_cut_off):
            self.wait_for_change()

    def wait_for_others(self, *, over: Callable[[], bool]) -> list[NodeOutcome]:
        """Wait until all other nodes have ended or are lost. The wait also ends if this node cannot reach the
        store for too long, or if `over()` returns True. Return the known outcomes.

        A worker calls this method after the coordinator is lost.
        """
        others = [peer for peer in self._peers if peer.rank != self._rank]
        warned = False
        while not over() and not self.is_cut_off:
            try:
                self._collect()
                warned = False
            except BaiError as error:
                if not warned:
                    log.warning("the other nodes' outcomes cannot be read: %s; trying again", error)
                warned = True
            left = [peer for peer in others if not self._is_complete(peer.rank)]
            if not left:
                break
            self.wait_for_change()
        # If the nodes have not met yet, the outcomes explain why a node does not join.
        return [self.outcomes[rank] for rank in sorted(self.outcomes) if rank != self._rank]

    def observe(self) -> None:
        """Write a heartbeat and check the other nodes once. Raises BaiError if the store cannot be reached or
        an object cannot be read."""
        try:
            self.attempt.sign(self._rank, {"time": now_ms(), "phase": self.phase, "silent_s": self.silent_s})
            self.absence.reached()
        finally:
            self._check_cut_off()
        if self.is_coordinator:
            self._look_at_workers()
            if self.generations is not None:
                self.generations.look(self.attempt.control())
        else:
            self._look_at_coordinator()

    def _look_at_workers(self) -> None:
        if (unsaid := self._unsaid) is not None:
            self.stop_others(unsaid)
        self._collect()
        self._all_silent = self._silence_s is not None and self._is_all_silent(self._silence_s)
        first = first_failure(self.outcomes.values())
        if first is not None and self._reason is None:
            lost = first.outcome == Outcome.PEER_LOST.value
            sentence = sentence_of_node(first.rank, Outcome(first.outcome), first.sentence)
            self._decide(Outcome.PEER_LOST if lost else Outcome.PEER_FAILED, sentence)
            self.stop_others(StopOrder(rank=first.rank, outcome=first.outcome, sentence=sentence))

    def _is_change_near(self) -> bool:
        return self.generations is not None and self.generations.is_changing

    def _is_all_silent(self, silence_s: float) -> bool:
        """Return whether the benchmark runs on at least one node, and has printed nothing for `silence_s`
        seconds on all nodes where it runs."""
        ended = self.generations.ended if self.generations is not None else frozenset()
        if self._rank not in ended and self.silent_s < silence_s:
            return False
        others = [peer.rank for peer in self._peers if peer.rank not in (self._rank, *self.outcomes, *ended)]
        # The other nodes' silence is checked last, because the check needs one request per node.
        is_silent = all(self.attempt.silent_s(rank) >= silence_s for rank in others)
        return is_silent and (bool(others) or self._rank not in ended)

    def _collect(self) -> None:
        """Read the heartbeats and outcomes of all other nodes, and give up the lost nodes."""
        with self._looking:
            signs = self.attempt.signs()
            self._observe_signs(signs, own=signs.get(self._rank))
            for rank, version in self.attempt.ended().items():
                if rank != self._rank and rank < self._nodes and self._ended.get(rank) != version:
                    self.outcomes[rank] = self.attempt.usable_outcome(rank)
                    self._ended[rank] = version
                    self.lost.discard(rank)
            left = [
                peer for peer in self._peers if peer.rank != self._rank and not self._is_complete(peer.rank)
            ]
            for peer in self._lost(left):
                self._give_up(peer)

    def _read_order(self) -> StopOrder:
        try:
            return self.attempt.stop_order()
        except RecordError as error:
            sentence = f"The coordinator's order to end cannot be used: {error}."
            return StopOrder(outcome=Outcome.AGENT_ERROR.value, sentence=sentence)

    def _give_up(self, peer: Peer) -> None:
        sentence = self._silence(peer)
        self.lost.add(peer.rank)
        if peer.rank in self.outcomes:
            # The node reported a failure, and was lost before it had sent all of its records.
            self.outcomes[peer.rank] = replace(self.outcomes[peer.rank], complete=True)
            return
        log.warning("%s", sentence)
        # The time of the node's loss is the time of its last heartbeat. Benchmarks that failed because of the
        # loss failed later, so the loss counts as the cause.
        failed = now_ms() - round(1000 * self._unheard_s(peer.rank))
        self.outcomes[peer.rank] = NodeOutcome(
            rank=peer.rank, outcome=Outcome.PEER_LOST.value, sentence=sentence, failed=failed, ended=now_ms()
        )

    def _is_complete(self, rank: int) -> bool:
        return rank in self.outcomes and self.outcomes[rank].complete

    def _look_at_coordinator(self) -> None:
        control = self.attempt.control()
        if self.generations is not None:
            self.generations.look(control)
        self._observe_signs({} if control.sign is None else {COORDINATOR: control.sign}, own=None)
        self._told = control.stop
        if control.stop and self._reason is None and not self.finished:
            order = self._read_order()
            self.finished = order.finished
            if not order.finished:
                lost = order.outcome == Outcome.PEER_LOST.value
                self._decide(Outcome.PEER_LOST if lost else Outcome.PEER_FAILED, order.sentence)
        elif not control.stop and self._peers:
            for peer in self._lost([self._peers[COORDINATOR]]):
                self.give_up([COORDINATOR])
                self._decide(Outcome.PEER_LOST, self._silence(peer))

    def _check_cut_off(self) -> None:
        if (sentence := self.absence.too_long()) is not None:
            self._decide(Outcome.PEER_LOST, sentence)

    def _lost(self, nodes: Sequence[Peer]) -> list[Peer]:
        """Return the lost nodes of `nodes`.

        A silent node gets a direct request after half of the limit. A node that cannot reach the store ends
        itself at the limit, so the request must come earlier.
        """
        now, half_s = self._clock(), self._silence_limit / 2
        silent = [each for each in nodes if self._silent_s(each.rank) > self._silence_limit]
        early = [each for each in nodes if self._silent_s(each.rank) > half_s]
        for rank, answer in ask_all(
            dict.fromkeys([*silent, *early[:_ASKED_EARLY]]), self._ask_directly
        ).items():
            if answer is not None:
                self._answered[rank] = now - answer.store_s
                if answer.store_s > half_s:
                    self._cut_off[rank] = now
        return [each for each in silent if self._silent_s(each.rank) > self._silence_limit]

    def _silence(self, peer: Peer) -> str:
        who = f"{peer.title}, the coordinator," if peer.rank == COORDINATOR else peer.title
        was_cut_off = self._cut_off.get(peer.rank, 0.0) > self._signed(peer.rank)
        did = "ran, but did not reach the job store" if was_cut_off else "sent no heartbeat"
        return f"{who} {did} for {self._silence_limit:.0f} s."

    def _signed(self, rank: int) -> float:
        """Return the time at which a node was last known to be alive (seconds of this node's clock)."""
        return self._clock() - self._unheard_s(rank)

    def _decide(self, outcome: Outcome, sentence: str) -> None:
        if self._reason is None:
            log.warning("%s", sentence)
            self._reason = StopReason(outcome, sentence)
