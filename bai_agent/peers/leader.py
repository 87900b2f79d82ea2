"""The leader of an elastic job. The leader observes all nodes, decides how the job continues, and lets
generations begin and launch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from bai_agent.errors import RecordError
from bai_agent.generations.decision import (
    JOIN_SETTLE_S,
    Decision,
    EndJob,
    EndNode,
    Park,
    StartGeneration,
    Why,
    decide,
)
from bai_agent.generations.observation import GenerationObservation, Stage
from bai_agent.job.attempt import Control, SignsSeen
from bai_agent.job.generation_records import (
    Beginning,
    Change,
    DecisionKind,
    NextGeneration,
    ScaleRequest,
    stand_in,
)
from bai_agent.job.job_result import first_failure, sentence_of_node
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Peer
from bai_agent.job.record_types import NodeOutcome
from bai_agent.job.run_directory import now_ms
from bai_agent.job.schema.durations import format_duration
from bai_agent.light_dataclass import replace
from bai_agent.peers.generation_start import GenerationStart
from bai_agent.peers.job_observer import JobObserver
from bai_agent.peers.node_monitor import never_joined
from bai_agent.peers.node_reports import Decided, LeaderContext, NodeReports

_NO_LOSS = (Change.START, Change.JOINED, Change.LEFT, Change.SCALED, Change.SAVED, Change.UNREADABLE)
"""Reasons for a new generation that are not the loss of a node."""
_TOLD = (Change.BROKE, Change.NOT_RESTORED)
"""Reasons for a new generation for which the nodes concerned can report a sentence that explains the
reason."""


class Leader:
    """Decides for an elastic job while this node is the leader. A leader caches only data that never changes
    and reads everything else at each check. Any other node can therefore become the leader."""

    def __init__(self, ctx: LeaderContext) -> None:
        self._ctx = ctx
        self._reports = NodeReports(ctx)
        self._observer = JobObserver(self._reports, ctx)
        self._start = GenerationStart(self._reports, ctx)
        self.waits = False
        """Whether the leader has a reason for a new decision, but still waits for further reports."""
        self.waited_for: Sequence[Peer] = ()
        """The members for whose next heartbeats the leader waits."""

    @property
    def has_begun(self) -> bool:
        """Whether the last check allowed a generation to begin or to launch, or told the previous generation
        to stop."""
        return self._start.has_begun

    @property
    def nodes(self) -> int:
        """Largest number of nodes that the job may have."""
        return self._ctx.policy.nodes

    @property
    def ended_nodes(self) -> Collection[int]:
        """The nodes whose part of the job has ended, as far as this node knows."""
        return frozenset(self._reports.outcomes)

    @property
    def outcomes(self) -> Sequence[NodeOutcome]:
        """The outcomes of the nodes whose part of the job has ended, in the order of the node numbers."""
        return [each for _, (_, each) in sorted(self._reports.outcomes.items())]

    @property
    def members(self) -> Mapping[int, Sequence[int]]:
        """The members of each generation, in the order of their group ranks."""
        return {number: word.members for number, word in self._reports.decisions.items()}

    @property
    def known_nodes(self) -> set[int]:
        """The nodes that have joined or were ever a member."""
        return {
            *self._reports.joined,
            *(node for word in self._reports.decisions.values() for node in word.members),
        }

    @property
    def peers(self) -> Sequence[Peer]:
        """Addresses of the living nodes whose part of the job has not ended."""
        return [
            each.peer
            for node, (_, each) in list(self._reports.joined.items())
            if node not in self._reports.outcomes and self._ctx.silent_s(node) <= self._ctx.policy.silence_s
        ]

    def title(self, node: int) -> str:
        """Return a node's name for messages, such as "Node 1 (i-0123, 10.0.0.2)"."""
        joined = self._reports.joined
        return joined[node][1].peer.title if node in joined else f"Node {node}"

    def look(
        self,
        control: Control,
        signs: SignsSeen,
        newest: Decided | None,
        begun: Beginning | None,
        *,
        signed_s: float,
        cancelled: bool,
    ) -> NextGeneration | None:
        """Check all nodes and take the next step. Return the new decision if this check made one, else None.
        Raises BaiError.

        signed_s: time by `clock` at which this node wrote its own last heartbeat in `signs`.
        """
        self._start.has_begun, self.waited_for = False, ()
        own = signs.nodes.get(self._ctx.node)
        self._reports.store_ms = (own[0] if own is not None else now_ms()) + round(
            1000 * (self._ctx.clock() - signed_s)
        )
        ends = self._ctx.attempt.ends_seen()
        self._reports.read(control, ends)
        self._reports.read_proposals(signs)
        self._reports.begun = begun
        if newest is not None and newest.word.runs and begun is None and newest.number in control.begun:
            return self._begin_anew(newest)
        seen = self._observer.observe(control, signs, newest, cancelled=cancelled)
        self.waited_for = self._observer.waited_for
        decision = decide(seen, self._ctx.policy)
        self._wait(seen)
        if isinstance(decision, EndNode):
            self._observer.dismissed.add(decision.node)
            return None
        word = self._publishable(decision, seen)
        if word is not None:
            return self._ctx.attempt.settle_generation(0 if newest is None else newest.number + 1, word)
        if newest is not None and newest.word.runs:
            self._start.go_on(newest, signs, control)
        return None

    def _wait(self, seen: GenerationObservation) -> None:
        """Record whether the leader is about to make a decision, and for which nodes' reports it waits."""
        leaving = [each for each in seen.members if each.leaving_s is not None]
        joins = any(each.joined_s < JOIN_SETTLE_S for each in seen.waiting)
        self.waits = bool(leaving) or joins or any(each.has_failed for each in seen.members)
        if leaving and seen.stage is Stage.RUNNING:
            others = (each for each in seen.members if each not in leaving and each.end is None)
            self.waited_for = self._reports.peers_of(others)

    def _begin_anew(self, newest: Decided) -> NextGeneration | None:
        """If the newest generation's `begin-<g>.json` cannot be read, decide that another generation with the
        same members follows. Raises BaiError."""
        number, word = newest.number, newest.word
        try:
            self._ctx.attempt.beginning(number, members=word.members)
        except RecordError as error:
            anew = replace(stand_in(word, str(error), put=self._reports.store_ms), time=now_ms())
            return self._ctx.attempt.settle_generation(number + 1, anew)
        return None  # the next check reads it

    def propose(self, nodes: int) -> None:
        """Publish a proposed number of nodes, unless a user has requested a number or the number is already
        the job's target. Raises StoreError."""
        policy, reports = self._ctx.policy, self._reports
        is_requested = any(map(policy.allows, reports.requests.values()))
        if policy.takes_proposals and policy.allows(nodes) and not is_requested and nodes != reports.desired:
            self._ctx.attempt.propose_size(ScaleRequest(desired=nodes, by="goodput", time=now_ms()))

    def see_ends(self, control: Control) -> None:
        """Read the outcomes of all nodes, after the decision to end the job. Raises BaiError."""
        self._reports.read(control, self._ctx.attempt.ends_seen())

    def all_silent(self, silence_s: float) -> bool:
        """Return whether the benchmarks of all other members have printed nothing for `silence_s` seconds."""
        if self._reports.begun is None:
            return False
        others = [each.node for each in self._reports.begun.members.peers if each.node != self._ctx.node]
        return all(self._ctx.attempt.silent_s(each) >= silence_s for each in others)

    def _publishable(self, decision: Decision, seen: GenerationObservation) -> NextGeneration | None:
        """Return the record of a decision, as it is published to all nodes. Return None if the decision is
        not published."""
        if isinstance(decision, EndJob):
            outcome, sentence = self._end_of_job(decision, seen)
            members, ledger = tuple(each.node for each in seen.members), seen.ledger
        elif isinstance(decision, (StartGeneration, Park)):
            outcome, sentence = self._end_of_generation(decision, seen)
            members, ledger = decision.members, decision.ledger
        else:
            return None
        word = NextGeneration(
            kind=DecisionKind.END if isinstance(decision, EndJob) else DecisionKind.PARK,
            members=list(members),
            why=decision.why.value,
            nodes=list(decision.nodes),
            ledger=ledger,
            outcome=outcome.value,
            sentence=sentence,
            time=now_ms(),
        )
        if not isinstance(decision, StartGeneration):
            return word
        return replace(
            word, kind=DecisionKind.RUN, planned=decision.planned, backoff_seconds=decision.backoff_s
        )

    def _end_of_generation(
        self, decision: StartGeneration | Park, seen: GenerationObservation
    ) -> tuple[Outcome, str]:
        """Return the outcome of the generation that the decision ends, and a sentence about that outcome."""
        cause = self._cause(seen, decision.nodes) if decision.why in (Change.FAILED, *_TOLD) else None
        if cause is not None and decision.why is Change.FAILED:
            return _verdict(cause)
        sentence = decision.why.sentence(decision.nodes)
        more = f": {cause.sentence}" if cause is not None and cause.sentence else "."
        outcome = Outcome.INTERRUPTED if decision.why in _NO_LOSS else Outcome.PEER_LOST
        return outcome, f"{sentence[0].upper()}{sentence[1:]}{more}"

    def _end_of_job(self, decision: EndJob, seen: GenerationObservation) -> tuple[Outcome, str]:
        """Return the outcome of the job, and a sentence about that outcome."""
        known = {
            Why.SUCCEEDED: (Outcome.SUCCEEDED, ""),
            Why.CANCELLED: (Outcome.CANCELLED, "The job was cancelled."),
            Why.TOO_FEW: (Outcome.PEER_LOST, decision.sentence),
        }
        if decision.why in known:
            return known[decision.why]
        if decision.why is Why.MAX_RUNTIME:
            limit = self._ctx.limits.max_runtime
            shown = format_duration(limit) if limit is not None else ""
            return Outcome.MAX_RUNTIME, f"The job ran longer than limits.max_runtime ({shown}) and was ended."
        if decision.why is Why.NOT_JOINED:
            joined = {each.node for each in seen.waiting}
            missing = [each for each in range(self._ctx.desired) if each not in joined]
            return Outcome.JOIN_FAILED, f"{never_joined(missing, self._ctx.limits.join)}."
        cause = self._cause(seen, decision.nodes)
        return (Outcome.PEER_FAILED, "All nodes were ended.") if cause is None else _verdict(cause)

    def _cause(self, seen: GenerationObservation, nodes: Collection[int]) -> NodeOutcome | None:
        """Return the first failure among these nodes. If `nodes` is empty, return the first failure among all
        members of the newest generation."""
        found = []
        for node in nodes or [each.node for each in seen.members]:
            put = self._reports.ends.get((node, seen.generation))
            if put is not None:
                found.append(put[1].of_node)
            elif node in self._reports.outcomes:
                found.append(self._reports.outcomes[node][1])
        return first_failure(found)


def _verdict(cause: NodeOutcome) -> tuple[Outcome, str]:
    outcome = Outcome(cause.outcome)
    return outcome, sentence_of_node(cause.rank, outcome, cause.sentence)
