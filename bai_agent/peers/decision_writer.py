"""A decision of the leader as it is published to all nodes, with the outcome and a sentence about its cause."""

from __future__ import annotations

from collections.abc import Collection

from bai_agent.generations.decision import Decision, EndJob, Park, StartGeneration, Why
from bai_agent.generations.observation import GenerationObservation
from bai_agent.job.generation_records import Change, DecisionKind, NextGeneration
from bai_agent.job.job_result import first_failure, sentence_of_node
from bai_agent.job.outcome import Outcome
from bai_agent.job.record_types import NodeOutcome
from bai_agent.job.run_directory import now_ms
from bai_agent.job.schema.durations import format_duration
from bai_agent.light_dataclass import replace
from bai_agent.peers.job_observer import known_outcome
from bai_agent.peers.node_reports import LeaderContext, NodeReports

_NO_LOSS = (Change.START, Change.JOINED, Change.LEFT, Change.SCALED, Change.SAVED, Change.UNREADABLE)
"""Reasons of changes without a lost node."""
_TOLD = (Change.BROKE, Change.NOT_RESTORED)
"""Changes for which a node may have said more."""


class DecisionWriter:
    """Says to all nodes what the leader has decided, and why."""

    def __init__(self, reports: NodeReports, ctx: LeaderContext) -> None:
        self._reports, self._ctx = reports, ctx

    def word(self, decision: Decision, seen: GenerationObservation) -> NextGeneration | None:
        """Return a decision as it is published to all nodes; None if it is not published."""
        if not isinstance(decision, (EndJob, StartGeneration, Park)):
            return None
        outcome, sentence = (
            self._end(decision, seen) if isinstance(decision, EndJob) else self._reason(decision, seen)
        )
        word = NextGeneration(
            kind=DecisionKind.END if isinstance(decision, EndJob) else DecisionKind.PARK,
            members=[each.node for each in seen.members]
            if isinstance(decision, EndJob)
            else list(decision.members),
            why=decision.why.value,
            nodes=list(decision.nodes),
            ledger=seen.ledger if isinstance(decision, EndJob) else decision.ledger,
            outcome=outcome.value,
            sentence=sentence,
            time=now_ms(),
        )
        if not isinstance(decision, StartGeneration):
            return word
        return replace(
            word, kind=DecisionKind.RUN, planned=decision.planned, backoff_seconds=decision.backoff_s
        )

    def _reason(self, decision: StartGeneration | Park, seen: GenerationObservation) -> tuple[Outcome, str]:
        """Return the outcome of the previous generation, and a sentence about it."""
        cause = self._cause(seen, decision.nodes) if decision.why is Change.FAILED else None
        if cause is not None:
            outcome = Outcome(cause.outcome)
            return outcome, sentence_of_node(cause.rank, outcome, cause.sentence)
        sentence = decision.why.sentence(decision.nodes)
        told = self._cause(seen, decision.nodes) if decision.why in _TOLD else None
        more = f": {told.sentence}" if told is not None and told.sentence else "."
        outcome = Outcome.INTERRUPTED if decision.why in _NO_LOSS else Outcome.PEER_LOST
        return outcome, f"{sentence[0].upper()}{sentence[1:]}{more}"

    def _end(self, decision: EndJob, seen: GenerationObservation) -> tuple[Outcome, str]:
        """Return the outcome of the job, and a sentence about it."""
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
            return Outcome.JOIN_FAILED, self._missing_sentence({each.node for each in seen.waiting})
        cause = self._cause(seen, decision.nodes)
        if cause is None:
            return Outcome.PEER_FAILED, "All nodes were ended."
        return Outcome(cause.outcome), sentence_of_node(cause.rank, Outcome(cause.outcome), cause.sentence)

    def _missing_sentence(self, joined: Collection[int]) -> str:
        missing = [each for each in range(self._ctx.desired) if each not in joined]
        who = f"Node {missing[0]}" if len(missing) == 1 else f"Nodes {', '.join(map(str, missing))}"
        return f"{who} gave no sign of life for limits.join ({format_duration(self._ctx.limits.join)})."

    def _cause(self, seen: GenerationObservation, nodes: Collection[int]) -> NodeOutcome | None:
        """Return the failure of the first of these nodes; of all nodes of the newest generation if none is
        named."""
        found = []
        for node in nodes or [each.node for each in seen.members]:
            put = self._reports.ends.get((node, seen.generation))
            if put is not None:
                end = put[1]
                found.append(
                    NodeOutcome(
                        rank=node,
                        outcome=known_outcome(end.outcome).value,
                        sentence=end.sentence,
                        failed=end.failed,
                        ended=end.ended,
                        serves=end.serves,
                    )
                )
            elif node in self._reports.outcomes:
                found.append(self._reports.outcomes[node][1])
        return first_failure(found)
