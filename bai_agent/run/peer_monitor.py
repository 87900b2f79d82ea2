"""Signs of life between the nodes of an attempt, and one fate for all: what a node's end means for the others.

On a thread of its own, as a look may take long. Rank 0, the coordinator, looks at all others and decides; the others look at
it. Ages are counted by whether a sign has changed between two looks, so that no two clocks are compared. Before a silent node is
given up it is asked directly.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from bai_agent.aws.s3_client import Patience
from bai_agent.errors import BaiError
from bai_agent.job.attempt import COORDINATOR, AttemptRecord, StopOrder, Version
from bai_agent.job.descriptor import Limits
from bai_agent.job.job_result import first_failure, sentence_of_node
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Peer
from bai_agent.job.record_types import NodeOutcome
from bai_agent.job.run_directory import now_ms
from bai_agent.job.store import RecordError
from bai_agent.run.direct_question import PeerAnswer, ask, ask_all
from bai_agent.run.stop import StopReason
from bai_agent.run.store_absence import StoreAbsence

log = logging.getLogger(__name__)

SIGN_PATIENCE = Patience(
    retries=1,
    retry_for=timedelta(seconds=5),
    silence=timedelta(seconds=5),
    request=timedelta(seconds=5),
)
"""A request that hangs holds no sign up for so long that the node counts as lost: two are tried within that time."""
SIGN_SECONDS = 5.0
"""Between two signs of life, and between two looks."""
FRESH_SECONDS = 20.0
"""A node whose sign has changed within so long is there, and is waited for."""
_GAP_SECONDS = 2 * SIGN_SECONDS
"""After so long without a look, such as while the store was away for all, the others get the time for new signs first."""


_DEFAULTS = Limits()
_OUTCOMES = frozenset(each.value for each in Outcome)


class SignAges:
    """How long ago each sign of life was seen to change."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[int, tuple[Version, float]] = {}

    def observe(self, signs: Mapping[int, Version], *, own: Version | None = None) -> None:
        """Take note of the version of each rank's sign. own: of this node's last one, if it is known.

        One that is seen for the first time is at least so much older than our own as the store says.
        """
        for rank, version in signs.items():
            if rank not in self._seen:
                older_s = max(0, own[0] - version[0]) / 1000 if own is not None else 0.0
                self._seen[rank] = (version, self._clock() - older_s)
            elif self._seen[rank][0] != version:
                self._seen[rank] = (version, self._clock())

    def age_s(self, rank: int) -> float | None:
        """Return how long ago a rank's sign was seen to change; None: none was seen."""
        return self._clock() - self._seen[rank][1] if rank in self._seen else None


class PeerMonitor(threading.Thread):
    """Gives this node's sign of life, and looks at those of the others. A `StopSource`."""

    def __init__(
        self,
        attempt: AttemptRecord,
        *,
        rank: int,
        nodes: int,
        limits: Limits = _DEFAULTS,
        clock: Callable[[], float] = time.monotonic,
        ask: Callable[[Peer, bytes], PeerAnswer | None] = ask,
    ) -> None:
        super().__init__(name="peers", daemon=True)
        self.attempt = attempt
        self._rank, self._nodes = rank, nodes
        self._clock = clock
        self._changed = threading.Condition()
        self._over = False
        self._ages = SignAges(clock=clock)
        self.absence = StoreAbsence(rank=rank, limits=limits, clock=clock)
        """For how long no sign of ours has reached the store."""
        self._silence_limit = limits.peer_silence.total_seconds()
        self._ask = ask
        self._key: bytes | None = None
        """Of the nodes of this job, for questions that they ask each other directly; None: they ask none."""
        self._answered: dict[int, float] = {}
        """When a node that gives no sign of life has answered that it reaches the store."""
        self._met_at = clock()
        self._reason: StopReason | None = None
        self._peers: tuple[Peer, ...] = ()
        self._lost_coordinator = False
        self._unsaid: StopOrder | None = None
        """What this coordinator has to say to the others, and could not."""
        self._told = False
        """Whether this worker has seen the coordinator's word that the job is over, or is to end."""
        self._watching_since = self._looked = clock()
        """Since when there was no gap between two looks at the others, and when the last one was."""
        self._looking = threading.Lock()
        self._ended: dict[int, Version] = {}
        """What was read of each node's end."""
        self.outcomes: dict[int, NodeOutcome] = {}
        """How the parts of other nodes ended, as far as that was seen; those of lost nodes among them."""
        self.lost: set[int] = set()
        """Nodes that were given up, and have not said since how they ended."""
        self.finished = False
        """Whether the coordinator says that the job is over, and well."""
        self.serves = False
        """Whether this node's part is over when the job is."""
        self.phase = "prepare"
        self.silent_s = 0.0
        """For how long the benchmark of this node has printed nothing."""
        self._silence_s: float | None = None
        """The silence of all nodes that somebody wants to know of."""
        self._all_silent = False

    @property
    def is_coordinator(self) -> bool:
        return self._rank == COORDINATOR

    @property
    def is_cut_off(self) -> bool:
        """Whether the store has not taken a sign of this node for so long that it has to end itself."""
        return self.absence.too_long() is not None

    def reason(self, running_s: float | None) -> StopReason | None:
        if self._reason is None and self.serves and self.finished:
            return StopReason(Outcome.SUCCEEDED, "This node has served the job until it was over.")
        # Here too: a look may hang for as long as the network does.
        self._check_cut_off()
        return self._reason

    def met(self, peers: tuple[Peer, ...], *, key: bytes | None = None) -> None:
        """Know who takes part: from now on a node that is silent is lost. key: with which they ask each other directly."""
        self._peers, self._key = peers, key
        self._met_at = self._clock()
        self.absence.met(peers)

    def look_for_store(self) -> None:
        """Ask the other nodes whether they miss the store too, if this node does."""
        ended = {rank for rank in self.outcomes if self._is_complete(rank)}
        self.absence.look(self._ask_directly, ended=ended)

    def age_s(self, rank: int) -> float | None:
        """Return how old the sign of life of a node is; None: it gave none. The coordinator knows all, a worker knows the coordinator's."""
        return self._ages.age_s(rank)

    def stop_others(self, order: StopOrder) -> None:
        """Say as the coordinator that the job is over, or is to end. Raises StoreError; it is then said at a later look."""
        self._unsaid = order = self._unsaid or order
        self.attempt.order_stop(order)
        self._unsaid = None

    def all_silent(self, silence_s: float) -> bool:
        """Return as the coordinator whether the benchmark of no other node has printed anything for so long, as of the last look."""
        self._silence_s = silence_s
        return self._all_silent

    def wait_for_change(self) -> None:
        """Return after the next look, within a second."""
        with self._changed:
            self._changed.wait(timeout=1.0)

    @property
    def lost_coordinator(self) -> bool:
        """Whether this worker has given the coordinator up."""
        return not self.is_coordinator and self._lost_coordinator

    def give_up(self, ranks: Iterable[int]) -> None:
        """Take these nodes for lost, which never came."""
        self.lost.update(ranks)
        self._lost_coordinator = COORDINATOR in self.lost

    def wait_for_coordinator(self, *, over: Callable[[], bool]) -> None:
        """Return as a worker once the coordinator has said that the job is over, or is lost; or where `over()`, or cut off."""
        while self._peers and not (self._told or self._lost_coordinator or over() or self.is_cut_off):
            self.wait_for_change()

    def wait_for_others(self, *, over: Callable[[], bool]) -> list[NodeOutcome]:
        """Return how the parts of all other nodes ended, once each has ended or is lost.

        Of those that have, where `over()`, or where this node is cut off from the store. A worker, whose coordinator is lost,
        waits for the other workers.
        """
        others = [peer for peer in self._peers if peer.rank != self._rank]
        warned = False
        while not over() and not self.is_cut_off:
            try:
                self._collect()
                warned = False
            except BaiError as error:
                if not warned:
                    log.warning("cannot see how the other nodes ended: %s; asking again", error)
                warned = True
            left = [peer for peer in others if not self._is_complete(peer.rank)]
            if not left:
                break
            self.wait_for_change()
        # Before the nodes have met, those that have said why they do not come.
        return [self.outcomes[rank] for rank in sorted(self.outcomes) if rank != self._rank]

    def end(self) -> None:
        """Give no more signs."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def run(self) -> None:
        warned = told_defect = False
        while not self._over:
            try:
                self.observe()
                warned = told_defect = False
            except BaiError as error:
                if not warned:
                    log.warning("cannot look after the other nodes: %s", error)
                warned = True
            except BaseException:
                # The thread's outermost frame, and a panic of obstore's is not an Exception: without signs this node is given up.
                if not told_defect:
                    log.exception("cannot look after the other nodes; looking again")
                told_defect = True
            with self._changed:
                self._changed.notify_all()
                if not self._over:
                    # Drawn anew each time, so that the nodes of a job do not ask together.
                    self._changed.wait(timeout=SIGN_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311

    def observe(self) -> None:
        """Give a sign and look once. Raises BaiError where the store cannot be reached, or holds what nobody can read."""
        try:
            self.attempt.sign(self._rank, {"time": now_ms(), "phase": self.phase, "silent_s": self.silent_s})
            self.absence.reached()
        finally:
            self._check_cut_off()
        if self.is_coordinator:
            self._look_at_workers()
        else:
            self._look_at_coordinator()

    def _look_at_workers(self) -> None:
        if (unsaid := self._unsaid) is not None:
            self.stop_others(unsaid)
        self._collect()
        if self._silence_s is not None and self.silent_s >= self._silence_s:
            # Only then: it takes a request for each node.
            others = (peer.rank for peer in self._peers if peer.rank not in (self._rank, *self.outcomes))
            self._all_silent = all(self.attempt.silent_s(rank) >= self._silence_s for rank in others)
        first = first_failure(self.outcomes.values())
        if first is not None and self._reason is None:
            lost = first.outcome == Outcome.PEER_LOST.value
            sentence = sentence_of_node(first.rank, Outcome(first.outcome), first.sentence)
            self._decide(Outcome.PEER_LOST if lost else Outcome.PEER_FAILED, sentence)
            self.stop_others(StopOrder(rank=first.rank, outcome=first.outcome, sentence=sentence))

    def _collect(self) -> None:
        """Take note of the signs and ends of all workers."""
        with self._looking:
            self._observe_signs(self.attempt.signs())
            for rank, version in self.attempt.ended().items():
                if rank != self._rank and rank < self._nodes and self._ended.get(rank) != version:
                    self.outcomes[rank] = self._read_outcome(rank)
                    self._ended[rank] = version
                    self.lost.discard(rank)
            silent = [
                peer
                for peer in self._peers
                if peer.rank != self._rank and not self._is_complete(peer.rank) and self._is_silent(peer.rank)
            ]
            for peer, answer in self._lost(silent):
                self._give_up(peer, answer)

    def _read_outcome(self, rank: int) -> NodeOutcome:
        """Return how a node ended: a record that no agent writes is a failure of that node, and of no other one. Raises StoreError."""
        try:
            outcome = self.attempt.node_outcome(rank)
            if outcome.outcome in _OUTCOMES:
                return outcome
            why = f'its outcome is "{outcome.outcome[:40]}", which no agent of this version writes'
        except RecordError as error:
            why = str(error)
        log.warning("how node %d ended cannot be read: %s", rank, why)
        sentence = f"What this node wrote of its end cannot be used: {why}."
        return NodeOutcome(
            rank=rank, outcome=Outcome.AGENT_ERROR.value, sentence=sentence, failed=now_ms(), ended=now_ms()
        )

    def _read_order(self) -> StopOrder:
        try:
            return self.attempt.stop_order()
        except RecordError as error:
            sentence = f"The coordinator's word that the job ends cannot be used: {error}."
            return StopOrder(outcome=Outcome.AGENT_ERROR.value, sentence=sentence)

    def _observe_signs(self, signs: Mapping[int, Version]) -> None:
        now = self._clock()
        if now - self._looked > _GAP_SECONDS:
            self._watching_since = now
        self._looked = now
        self._ages.observe(signs, own=signs.get(self._rank))

    def _give_up(self, peer: Peer, answer: PeerAnswer | None) -> None:
        sentence = self._silence(peer, answer)
        self.lost.add(peer.rank)
        if peer.rank in self.outcomes:
            # It has said that it failed, and was then lost before it had sent all.
            self.outcomes[peer.rank] = replace(self.outcomes[peer.rank], complete=True)
            return
        log.warning("%s", sentence)
        # It was lost at its last sign. A benchmark that breaks because this node is gone broke later, and is not the cause.
        failed = now_ms() - round(1000 * self._silent_s(peer.rank))
        self.outcomes[peer.rank] = NodeOutcome(
            rank=peer.rank, outcome=Outcome.PEER_LOST.value, sentence=sentence, failed=failed, ended=now_ms()
        )

    def _is_complete(self, rank: int) -> bool:
        return rank in self.outcomes and self.outcomes[rank].complete

    def _look_at_coordinator(self) -> None:
        control = self.attempt.control()
        self._observe_signs({} if control.sign is None else {COORDINATOR: control.sign})
        self._told = control.stop
        if control.stop and self._reason is None and not self.finished:
            order = self._read_order()
            self.finished = order.finished
            if not order.finished:
                lost = order.outcome == Outcome.PEER_LOST.value
                self._decide(Outcome.PEER_LOST if lost else Outcome.PEER_FAILED, order.sentence)
        elif not control.stop and self._peers and self._is_silent(COORDINATOR):
            for peer, answer in self._lost([self._peers[COORDINATOR]]):
                self.give_up([COORDINATOR])
                self._decide(Outcome.PEER_LOST, self._silence(peer, answer))

    def _check_cut_off(self) -> None:
        if (sentence := self.absence.too_long()) is not None:
            self._decide(Outcome.PEER_LOST, sentence)

    def _lost(self, silent: Sequence[Peer]) -> Iterator[tuple[Peer, PeerAnswer | None]]:
        """Yield those of the silent nodes that are lost, with what they answer when they are asked directly."""
        now = self._clock()
        answers = ask_all(silent, self._ask_directly)
        for peer in silent:
            answer = answers[peer.rank]
            if answer is not None and answer.store_s <= self._silence_limit:
                log.info("%s gives no sign of life, but answers that it reaches the job store", peer.mention)
                self._answered[peer.rank] = now - answer.store_s
            else:
                yield peer, answer

    def _ask_directly(self, peer: Peer) -> PeerAnswer | None:
        return self._ask(peer, self._key) if self._key is not None else None

    def _silence(self, peer: Peer, answer: PeerAnswer | None) -> str:
        who = f"{peer.title}, the coordinator," if peer.rank == COORDINATOR else peer.title
        did = "gave no sign of life" if answer is None else "lives, but did not reach the job store"
        return f"{who} {did} for {self._silence_limit:.0f} s."

    def _is_silent(self, rank: int) -> bool:
        return min(self._silent_s(rank), self._clock() - self._watching_since) > self._silence_limit

    def _silent_s(self, rank: int) -> float:
        """Return for how long a node that takes part has given no sign of life, nor answered that it does."""
        age_s = self._ages.age_s(rank)
        silent_s = self._clock() - self._met_at if age_s is None else age_s
        answered = self._answered.get(rank)
        return silent_s if answered is None else min(silent_s, self._clock() - answered)

    def _decide(self, outcome: Outcome, sentence: str) -> None:
        if self._reason is None:
            log.warning("%s", sentence)
            self._reason = StopReason(outcome, sentence)
