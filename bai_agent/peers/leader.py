"""The leader of an elastic job: it observes all nodes, decides what follows, and lets generations begin and
launch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from bai_agent.errors import RecordError
from bai_agent.generations.decision import JOIN_SETTLE_S, EndNode, decide
from bai_agent.generations.observation import GenerationObservation, Stage
from bai_agent.job.attempt import Control, SignsSeen
from bai_agent.job.generation_records import Beginning, NextGeneration, ScaleRequest, stand_in
from bai_agent.job.peers import Peer
from bai_agent.job.record_types import NodeOutcome
from bai_agent.job.run_directory import now_ms
from bai_agent.light_dataclass import replace
from bai_agent.peers.decision_writer import DecisionWriter
from bai_agent.peers.generation_start import GenerationStart
from bai_agent.peers.job_observer import JobObserver, failures
from bai_agent.peers.node_reports import Decided, LeaderContext, NodeReports


class Leader:
    """Keeps facts that never change, and reads all others at each look, so any node can take over."""

    def __init__(self, ctx: LeaderContext) -> None:
        self._ctx = ctx
        self._reports = NodeReports(ctx)
        self._observer = JobObserver(self._reports, ctx)
        self._writer = DecisionWriter(self._reports, ctx)
        self._start = GenerationStart(self._reports, ctx)
        self.waits = False
        """Whether a reason for a decision is known, but the leader still waits for more."""
        self.waited_for: Sequence[Peer] = ()
        """The members whose next sign of life it waits for."""

    @property
    def has_begun(self) -> bool:
        """Whether the last look let a generation begin or launch, or the previous one stop."""
        return self._start.has_begun

    @property
    def nodes(self) -> int:
        """The most nodes that the job may have."""
        return self._ctx.policy.nodes

    @property
    def ended_nodes(self) -> Collection[int]:
        """The nodes whose part of the job has ended, as far as this node knows."""
        return frozenset(self._reports.outcomes)

    @property
    def outcomes(self) -> Sequence[NodeOutcome]:
        """The end of each of these nodes' parts."""
        return [each for _, (_, each) in sorted(self._reports.outcomes.items())]

    @property
    def members(self) -> Mapping[int, Sequence[int]]:
        """The members of each generation, in the order of their group ranks."""
        return {number: word.members for number, word in self._reports.decisions.items()}

    @property
    def known_nodes(self) -> set[int]:
        """The nodes that have joined, or were a member once."""
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
        """Return a node's name for people: "Node 1 (i-0123, 10.0.0.2)"."""
        joined = self._reports.joined
        return joined[node][1].peer.title if node in joined else f"Node {node}"

    def look(
        self,
        control: Control,
        signs: SignsSeen,
        newest: Decided | None,
        begun: tuple[int, Beginning] | None,
        *,
        signed_s: float,
        cancelled: bool,
    ) -> NextGeneration | None:
        """Look at all nodes, and do what is due. Returns the settled decision, if there is one. Raises
        BaiError.

        signed_s: time of this node's last own sign of life among these.
        """
        self._start.has_begun, self.waited_for = False, ()
        own = signs.nodes.get(self._ctx.node)
        self._reports.store_ms = (own[0] if own is not None else now_ms()) + round(
            1000 * (self._ctx.clock() - signed_s)
        )
        ends = self._ctx.attempt.ends_seen()
        self._reports.read(control, ends)
        self._reports.read_proposals(signs)
        self._reports.begun = begun[1] if begun is not None else None
        if newest is not None and newest[1].runs and begun is None and newest[0] in control.begun:
            return self._begin_anew(newest)
        seen = self._observer.observe(control, signs, newest, cancelled=cancelled)
        self.waited_for = self._observer.waited_for
        decision = decide(seen, self._ctx.policy)
        self._wait(seen)
        if isinstance(decision, EndNode):
            self._observer.dismissed.add(decision.node)
            return None
        word = self._writer.word(decision, seen)
        if word is not None:
            return self._ctx.attempt.settle_generation(0 if newest is None else newest[0] + 1, word)
        if newest is not None and newest[1].runs:
            self._start.go_on(newest, signs, control)
        return None

    def _wait(self, seen: GenerationObservation) -> None:
        """Note the reasons for a decision, and the nodes for which it waits."""
        leaving = [each for each in seen.members if each.leaving_s is not None]
        joins = any(each.joined_s < JOIN_SETTLE_S for each in seen.waiting)
        self.waits = bool(leaving or joins or failures(seen.members))
        if leaving and seen.stage is Stage.RUNNING:
            others = (each for each in seen.members if each not in leaving and each.end is None)
            self.waited_for = self._reports.peers_of(others)

    def _begin_anew(self, newest: Decided) -> NextGeneration | None:
        """Settle another generation with the same members if the beginning of the newest one cannot be read. Raises BaiError."""
        number, word, _ = newest
        try:
            self._ctx.attempt.beginning(number, members=word.members)
        except RecordError as error:
            anew = replace(stand_in(word, str(error), put=self._reports.store_ms), time=now_ms())
            return self._ctx.attempt.settle_generation(number + 1, anew)
        return None  # the next look reads it

    def propose(self, nodes: int) -> None:
        """Propose a number of nodes, unless somebody has requested one, or the job wants it already. Raises StoreError."""
        policy, reports = self._ctx.policy, self._reports
        is_requested = any(map(policy.allows, reports.requests.values()))
        if policy.takes_proposals and policy.allows(nodes) and not is_requested and nodes != reports.desired:
            self._ctx.attempt.propose_size(ScaleRequest(desired=nodes, by="goodput", time=now_ms()))

    def see_ends(self, control: Control) -> None:
        """After the end of the job is decided, note all nodes and the ends of their parts. Raises
        BaiError."""
        self._reports.read(control, self._ctx.attempt.ends_seen())

    def all_silent(self, silence_s: float) -> bool:
        """Return whether the benchmarks of all other members have printed nothing for so long."""
        if self._reports.begun is None:
            return False
        others = [each.node for each in self._reports.begun.members.peers if each.node != self._ctx.node]
        return all(self._ctx.attempt.silent_s(each) >= silence_s for each in others)
