"""Reports and decisions in the job store through which the nodes of a fixed job agree on restarts.

Each node reports in `ended/<rank>-<g>.json` that all of its processes of generation g have ended. As soon as
the coordinator knows why generation g failed, it records in `control/generation-<g+1>.json` whether another
generation follows. If another generation follows, each node stops the processes of generation g that still
run. After all nodes have reported the end of generation g and the pause is over, `control/begin-<g+1>.json`
names the members with their new ports. The files in `control/` are written only once, and all nodes obey
them, including the coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from bai_agent.errors import RecordError
from bai_agent.generations.decision import Decision, EndJob, GoOn, decide
from bai_agent.generations.observation import GenerationObservation, Member, MemberEnd
from bai_agent.generations.policy import Policy, backoff_s
from bai_agent.job.attempt import AttemptRecord, Control
from bai_agent.job.descriptor.restart_tables import Restart
from bai_agent.job.generation_records import DecisionKind, GenerationEnd, Ledger, NextGeneration
from bai_agent.job.job_result import first_failure, sentence_of_node
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import COORDINATOR, Members, Peer
from bai_agent.job.record_types import NodeOutcome
from bai_agent.runtime.stop import StopReason

_REPORT_S = 1.0
"""Nodes that communicate with a failed process also fail, often at the same moment. Time after a failure from
which a node's heartbeat shows that the node has not failed as well (seconds). An earlier heartbeat does not
show this, because a launcher needs time to end."""


class GenerationControl:
    """One node's knowledge of the generations of a job. The thread that writes heartbeats calls `look`; the
    run's main thread calls all other methods."""

    def __init__(
        self,
        attempt: AttemptRecord,
        *,
        rank: int,
        policy: Restart,
        clock: Callable[[], float] = time.monotonic,
        wake: Callable[[Iterable[Peer]], None] = lambda peers: None,
        lived_since: Callable[[int, float], bool] = lambda rank, moment_s: True,
    ) -> None:
        """wake: function that makes other nodes check the store now. lived_since: function that returns
        whether a node has written a heartbeat after a given time of `clock`."""
        self._wake, self._lived_since = wake, lived_since
        self._attempt, self._rank, self._policy, self._clock = attempt, rank, policy, clock
        self._peers: tuple[Peer, ...] = ()
        self._serving: frozenset[int] = frozenset()
        self._key: bytes | None = None
        self._at = _Place(0, Ledger())
        self.is_held: Callable[[], bool] = lambda: False
        """Function that returns whether this node is still saving the last checkpoint. While the
        coordinator's function returns True, the next generation does not begin."""

    @property
    def decision(self) -> NextGeneration | None:
        """The decision whether another generation follows this generation. None until the decision is
        known."""
        return self._at.decision

    @property
    def members(self) -> Members | None:
        """The members of the next generation; None until that generation begins."""
        return self._at.members

    @property
    def ended(self) -> frozenset[int]:
        """The nodes whose processes of this generation have all ended, according to the reports that the
        coordinator has read."""
        return frozenset(self._at.ends)

    def met(self, members: Members, *, serving: frozenset[int]) -> None:
        """Set the nodes of the job. serving: nodes that run servers, which end only when they are ordered
        to."""
        self._peers, self._key, self._serving = members.peers, members.key, serving

    @property
    def is_changing(self) -> bool:
        """Whether the store must be checked more often now, because another generation is about to begin or
        the coordinator waits for reports about a failure."""
        at = self._at
        return (
            (at.decision.runs and at.members is None) if at.decision is not None else at.failed_s is not None
        )

    def begin(self, generation: int, ledger: Ledger) -> None:
        """Begin to observe another generation."""
        self._at = _Place(generation, ledger)

    def end(self, end: GenerationEnd) -> None:
        """Publish that all processes of this generation on this node have ended. Raises StoreError."""
        self._attempt.end_generation(self._at.generation, end)
        self._wake([each for each in self._peers if each.rank == COORDINATOR])

    def wait(self) -> None:
        """Record that this generation has ended on this node. After the call, a decision that ends the
        generation is no longer a reason to stop."""
        self._at.waits = True

    def reason(self) -> StopReason | None:
        """Return why this generation must end on this node. None unless the coordinator has decided that
        another generation follows."""
        at = self._at
        # Before the nodes have met, this node does not know in which generation it is.
        if not self._peers or at.waits or at.decision is None or not at.decision.runs:
            return None
        return StopReason(Outcome.PEER_FAILED, at.decision.sentence)

    def look(self, control: Control) -> None:
        """Read the coordinator's decision. If this node is the coordinator, make the decision as soon as all
        information is available. Raises BaiError."""
        at = self._at
        following = at.generation + 1
        try:
            if at.decision is None and following in control.generations:
                at.decision = self._attempt.generation(following)
            if self._rank == COORDINATOR and self._peers and at.members is None:
                self._settle(at)
            if at.members is None and following in control.begun:
                at.members = self._attempt.beginning(following).members
        except RecordError as error:
            # All nodes read the same malformed object, which cannot be replaced, so no generation follows
            # this generation.
            at.decision = NextGeneration(
                kind=DecisionKind.END, sentence=f"The benchmark is not restarted: {error}."
            )

    def _settle(self, at: _Place) -> None:
        for rank in self._attempt.generation_ended(at.generation) - at.ends.keys():
            at.ends[rank] = self._attempt.generation_end(at.generation, rank)
        if at.decision is None:
            cause = first_failure(each.of_node for each in at.ends.values())
            if self._waits_for_others(at, cause):
                return
            word = self._next(at, decide(self._observation(at, cause), Policy(restart=self._policy)), cause)
            if word is not None:
                at.decision = self._attempt.settle_generation(at.generation + 1, word)
                self._wake(self._peers)
        if at.decision is not None and at.decision.runs and self._may_begin(at, at.decision):
            begun = self._attempt.begin_generation(at.generation + 1, self._next_members(at))
            at.members = begun.members
            self._wake(self._peers)

    def _waits_for_others(self, at: _Place, cause: NodeOutcome | None) -> bool:
        """Return whether another node possibly failed before the first known failure. A node that has
        reported its end, or has written a heartbeat since the failure, has not failed earlier."""
        if cause is None:
            return False
        if at.failed_s is None:
            at.failed_s = self._clock()
        moment_s = at.failed_s + _REPORT_S
        others = [
            each
            for each in self._peers
            if each.rank not in at.ends and not self._lived_since(each.rank, moment_s)
        ]
        self._wake(others)
        return bool(others)

    def _may_begin(self, at: _Place, decision: NextGeneration) -> bool:
        """Return whether all nodes are ready and the pause is over. The pause begins when this coordinator
        first sees the decision."""
        if at.decided_s is None:
            at.decided_s = self._clock()
        is_ready = {each.rank for each in self._peers} <= at.ends.keys()
        is_due = self._clock() >= at.decided_s + decision.backoff_seconds
        return is_ready and is_due and not self.is_held()

    def _next(self, at: _Place, decision: Decision, cause: NodeOutcome | None) -> NextGeneration | None:
        if isinstance(decision, GoOn):
            return None
        if isinstance(decision, EndJob) or cause is None:
            outcome = Outcome.SUCCEEDED if cause is None else Outcome(cause.outcome)
            return NextGeneration(kind=DecisionKind.END, outcome=outcome.value)
        outcome = Outcome(cause.outcome)
        return NextGeneration(
            kind=DecisionKind.RUN,
            members=[each.rank for each in self._peers],
            ledger=replace(at.ledger, restarts=at.ledger.restarts + 1),
            outcome=outcome.value,
            sentence=sentence_of_node(cause.rank, outcome, cause.sentence),
            backoff_seconds=backoff_s(self._policy, restarts=at.ledger.restarts),
        )

    def _observation(self, at: _Place, cause: NodeOutcome | None) -> GenerationObservation:
        """Return the observation from which the coordinator decides. Only the first failure counts as a
        failure, because later failures can be its consequences."""
        ranks = [each.rank for each in self._peers]
        computing = [each for each in ranks if each not in self._serving]
        done = all(each in at.ends and at.ends[each].outcome == Outcome.SUCCEEDED.value for each in computing)
        return GenerationObservation(
            now_s=0.0,
            running_s=0.0,
            members=[
                Member(node=rank, end=_member_end(at, rank, cause)) for rank in (computing if done else ranks)
            ],
            ledger=at.ledger,
        )

    def _next_members(self, at: _Place) -> Members:
        peers = tuple(replace(each, port=at.ends[each.rank].port) for each in self._peers)
        return Members(peers=peers, key=self._key)


class _Place:
    """A node's current generation, and what the node knows about the generation's end."""

    def __init__(self, generation: int, ledger: Ledger) -> None:
        self.generation = generation
        self.ledger = ledger
        self.waits = False
        self.decision: NextGeneration | None = None
        self.members: Members | None = None
        self.ends: dict[int, GenerationEnd] = {}
        self.failed_s: float | None = None
        """Time at which the coordinator learned of a failure, by the coordinator's clock."""
        self.decided_s: float | None = None
        """Time at which the coordinator first saw the decision that another generation follows (seconds of
        the coordinator's clock)."""


def _member_end(at: _Place, rank: int, cause: NodeOutcome | None) -> MemberEnd | None:
    end = at.ends.get(rank)
    if end is None:
        return None
    is_cause = cause is not None and cause.rank == rank
    outcome = Outcome.SUCCEEDED if end.outcome == Outcome.SUCCEEDED.value else Outcome.PEER_FAILED
    return MemberEnd(
        outcome=Outcome(end.outcome) if is_cause else outcome,
        code=end.code,
        signal=end.signal,
        ended_s=0.0,
    )
