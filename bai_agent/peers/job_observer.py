"""Collects what the leader of an elastic job knows about all nodes into an observation. The leader decides
from the observation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from bai_agent.errors import RecordError
from bai_agent.generations.member_states import SETTLE_S
from bai_agent.generations.observation import GenerationObservation, Member, MemberEnd, Stage, Waiting
from bai_agent.job.attempt import Control, SignsSeen
from bai_agent.job.generation_records import DecisionKind, NextGeneration
from bai_agent.job.outcome import MAY_GET_BETTER, Outcome
from bai_agent.job.peers import Peer
from bai_agent.light_dataclass import replace
from bai_agent.peers.node_monitor import FRESH_SECONDS
from bai_agent.peers.node_reports import TOGETHER_S, Decided, LeaderContext, NodeReports
from bai_agent.peers.reachability import find_lost

_A_LITTLE_S = 0.001


class JobObserver:
    """Combines the nodes' reports, heartbeats and answers into one observation."""

    def __init__(self, reports: NodeReports, ctx: LeaderContext) -> None:
        self._reports, self._ctx = reports, ctx
        self.waited_for: Sequence[Peer] = ()
        """Members that possibly failed before the first known failure. The leader waits for the next
        heartbeats of these members."""
        self.dismissed: set[int] = set()
        """Nodes that the leader has told to end."""
        self._since_s = ctx.clock()
        self._waited_for: dict[int, float] = {}
        """Before the first generation: time of each node's last heartbeat. `limits.join` is measured from
        that time."""
        self._machines: int | None = None
        """Number of machines that were launched for the job. None if unknown."""

    def observe(
        self,
        control: Control,
        signs: SignsSeen,
        newest: Decided | None,
        *,
        cancelled: bool,
    ) -> GenerationObservation:
        """Return the current observation of all nodes. Raises BaiError."""
        self.waited_for = ()
        number, word = (
            (newest.number, newest.word)
            if newest is not None
            else (-1, NextGeneration(kind=DecisionKind.RUN))
        )
        stage, ledger, limit = self._stage(newest), word.ledger, self._ctx.limits.max_runtime
        self._ask_silent(word.members)
        seen = [self._member(each, stage, number, newest, signs) for each in word.members]
        if stage is Stage.RUNNING:
            seen = self._with_late(self._without_lost(seen, number), number, control)
        members = self._with_served(self._with_absorbed(seen)) if stage is Stage.RUNNING else seen
        return GenerationObservation(
            now_s=self._ctx.clock(),
            running_s=max(0.0, (self._reports.store_ms - ledger.began) / 1000)
            if ledger.began is not None
            else 0.0,
            max_runtime_s=limit.total_seconds() if limit is not None else None,
            members=members,
            ledger=ledger,
            stage=stage,
            generation=max(number, 0),
            generation_s=self._launched_s(number, control),
            waiting=self._waiting(word.members),
            coming=self._coming(signs) if stage is Stage.GATHERING else (),
            desired=self._reports.desired,
            is_scaled=self._is_scaled(newest),
            cancelled=cancelled or self._is_cancelled(seen),
            time=self._reports.store_ms,
        )

    def _is_scaled(self, newest: Decided | None) -> bool:
        """Return whether a user has requested another number of nodes since the newest decision."""
        return newest is not None and self._reports.requested_ms > newest.put[0]

    def _launched_s(self, generation: int, control: Control) -> float:
        """Return the seconds since the leader allowed the members to launch a generation; 0 before the leader
        allows it."""
        # In a job with [checkpoint], the members launch together, after each member has restored the
        # checkpoint.
        launched = control.begun if self._ctx.checkpoint is None else control.launches
        if generation not in launched:
            return 0.0
        return max(0.0, self._reports.age_s(launched[generation]))

    def _stage(self, newest: Decided | None) -> Stage:
        if newest is None:
            return Stage.GATHERING
        if newest.word.kind is DecisionKind.PARK:
            return Stage.PARKED
        return Stage.CHANGING if self._reports.begun is None else Stage.RUNNING

    def _is_cancelled(self, members: Sequence[Member]) -> bool:
        """Return whether a node has ended because the job was cancelled."""
        ends = [each.end.outcome for each in members if each.end is not None]
        return Outcome.CANCELLED in ends or any(
            each.outcome == Outcome.CANCELLED.value for _, each in self._reports.outcomes.values()
        )

    def _ask_silent(self, members: Sequence[int]) -> None:
        """Send a direct request to each silent member before the member counts as lost."""
        silent = [each for each in members if self._ctx.silent_s(each) > self._ctx.policy.silence_s]
        found = [self._reports.joined[each][1].peer for each in silent if each in self._reports.joined]
        if found:
            self._ctx.answering(found)

    def _without_lost(self, members: list[Member], generation: int) -> list[Member]:
        """Return the members. If a member is known to be lost before it has been silent for
        `limits.peer_silence`, its silence in the result is `limits.peer_silence`."""
        failed = (each.end.ended_s for each in members if each.end is not None and each.has_failed)
        failed_s = max(failed, default=None)
        running = [each for each in members if each.end is None and each.node in self._reports.joined]
        half_s = self._ctx.policy.silence_s / 2
        suspects = [each for each in running if self._is_suspect(each, failed_s, half_s)]

        def find(members: Sequence[Member], overdue_s: float) -> set[int]:
            return find_lost(
                self._ctx.attempt,
                self._reports.peers_of(members),
                generation=generation,
                failed=failed_s is not None,
                is_overdue=lambda node: self._ctx.silent_s(node) > overdue_s,
                ask=self._ctx.ask,
            )

        lost = find(suspects, half_s)
        others = [each for each in running if each.node not in lost]
        if failed_s is not None:
            self.waited_for = self._reports.peers_of(each for each in suspects if each in others)
        # Several losses within `SETTLE_S` cause one new generation, not several.
        near = find(others, half_s - SETTLE_S) if lost and failed_s is not None else ()
        least_s = {
            **dict.fromkeys(near, self._ctx.policy.silence_s - SETTLE_S + _A_LITTLE_S),
            **dict.fromkeys(lost, self._ctx.policy.silence_s + _A_LITTLE_S),
        }
        return [replace(each, silent_s=max(each.silent_s, least_s.get(each.node, 0.0))) for each in members]

    def _with_late(self, members: list[Member], generation: int, control: Control) -> list[Member]:
        """Return the members. After `limits.pull_timeout` plus the time to stop, members that have not
        restored the checkpoint of a beginning generation are marked as late. Raises StoreError."""
        if self._ctx.checkpoint is None or generation in control.launches or generation not in control.begun:
            return members
        # A member ends a restore by itself within `limit_s`, unless the member hangs.
        limit_s = self._ctx.limits.pull_timeout.total_seconds() + self._ctx.policy.stop_s
        late_s = self._reports.age_s(control.begun[generation]) - limit_s
        if late_s <= 0:
            return members
        return [
            each if self._reports.has_restored(each.node, generation) else replace(each, late_s=late_s)
            for each in members
        ]

    def _is_suspect(self, running: Member, failed_s: float | None, half_s: float) -> bool:
        """Return whether the leader must test a member's ports. The leader tests the ports if the member is
        silent, or has written no heartbeat since the first known failure."""
        if failed_s is None:
            return running.silent_s > half_s
        # A heartbeat within `look_s` of the failure does not show that the member survived. The decision uses
        # the same margin.
        return running.silent_s > half_s or (
            running.lived_s(now_s=self._ctx.clock()) <= failed_s + self._ctx.policy.look_s
        )

    def _member(
        self, node: int, stage: Stage, number: int, newest: Decided | None, signs: SignsSeen
    ) -> Member:
        # A member that cannot launch the newest generation reports its end before the generation begins.
        ends = stage in (Stage.RUNNING, Stage.CHANGING)
        end = self._member_end(node, number) if ends else self._final_end(node)
        leaving = self._reports.leaving(node, signs)
        stopping_s = None
        if stage is Stage.CHANGING and newest is not None and not self._reports.is_ready(node, number):
            stopping_s = max(
                0.0, self._reports.age_s(newest.put) - (TOGETHER_S if newest.word.planned else 0.0)
            )
        return Member(
            node=node,
            end=end,
            silent_s=self._ctx.silent_s(node),
            unheard_s=self._ctx.unheard_s(node),
            leaving_s=max(0.0, self._reports.age_s(leaving)) if leaving is not None else None,
            stopping_s=stopping_s,
        )

    def _member_end(self, node: int, number: int) -> MemberEnd | None:
        """Return how a generation ended on a node, and at which time. The time is computed from the store's
        clock."""
        found = self._reports.ends.get((node, number))
        if found is None:
            return self._final_end(node)
        put, end = found
        # `failed` and `ended` are both measured by the node's own clock.
        late_ms = max(0, (end.ended or 0) - end.failed) if end.failed is not None else 0
        return MemberEnd(
            outcome=Outcome(end.outcome),
            code=end.code,
            signal=end.signal,
            ended_s=self._reports.local_s(put[0] - late_ms),
        )

    def _final_end(self, node: int) -> MemberEnd | None:
        """Return how a node's whole part of the job ended; None if the part has not ended."""
        found = self._reports.outcomes.get(node)
        if found is None:
            return None
        outcome = Outcome(found[1].outcome)
        # A node whose part of the job has ended cannot become a member again, even if its benchmark
        # succeeded.
        gone = Outcome.INTERRUPTED if outcome in (Outcome.SUCCEEDED, Outcome.PEER_FAILED) else outcome
        benchmark = found[1].benchmark
        return MemberEnd(
            outcome=gone,
            code=benchmark.code if benchmark is not None else None,
            signal=benchmark.signal if benchmark is not None else None,
            ended_s=self._reports.local_s(found[0][0]),
        )

    def _with_absorbed(self, members: list[Member]) -> list[Member]:
        """Return the members. A node whose processes failed remains a member as long as its agent is alive,
        if the benchmark itself continues without lost nodes.

        A member whose processes failed can take part in the next generation.
        """
        if not self._ctx.policy.absorbs:
            return members
        return [*members[:1], *map(self._absorbed, members[1:])]

    def _absorbed(self, member: Member) -> Member:
        end = member.end
        if end is None or end.outcome not in MAY_GET_BETTER or member.node in self._reports.outcomes:
            return member
        return replace(member, end=None)

    def _with_served(self, members: list[Member]) -> list[Member]:
        """Return the members. Members that run servers count as successful when all other members have
        succeeded."""
        begun = self._reports.begun
        serving = set(self._ctx.find_serving(begun.members.peers)) if begun is not None else set()
        if not serving or not all(each.has_succeeded for each in members if each.node not in serving):
            return members
        done = MemberEnd(outcome=Outcome.SUCCEEDED, ended_s=self._ctx.clock())
        return [
            replace(each, end=done) if each.node in serving and each.end is None else each for each in members
        ]

    def _waiting(self, members: Collection[int]) -> list[Waiting]:
        """Return the nodes that have joined, or failed before they joined, and are not members."""
        others = sorted({*self._reports.joined, *self._reports.outcomes} - set(members))
        return [found for each in others if (found := self._waits(each)) is not None]

    def _waits(self, node: int) -> Waiting | None:
        last = max(
            (each for each, word in self._reports.decisions.items() if node in word.members), default=None
        )
        if node in self._reports.outcomes:
            put, found = self._reports.outcomes[node]
            outcome = Outcome(found.outcome)
            if last is not None or node in self.dismissed or outcome is Outcome.SUCCEEDED:
                return None
            return Waiting(node=node, end=MemberEnd(outcome=outcome, ended_s=self._reports.local_s(put[0])))
        is_there = self._reports.has_joined_after(node, last) and self._ctx.silent_s(node) <= FRESH_SECONDS
        if not is_there:
            return None
        return Waiting(node=node, joined_s=self._reports.age_s(self._reports.joined[node][0][0]))

    def _coming(self, signs: SignsSeen) -> list[int]:
        """Return the nodes for which the first generation still waits."""
        now, found = self._ctx.clock(), []
        for node in range(self._places()):
            if node in signs.nodes and self._ctx.silent_s(node) <= FRESH_SECONDS:
                self._waited_for[node] = now
            since_s = now - self._waited_for.get(node, self._since_s)
            is_missing = since_s > self._ctx.limits.join.total_seconds()
            if node not in self._reports.joined and node not in self._reports.outcomes and not is_missing:
                found.append(node)
        return found

    def _places(self) -> int:
        """Return the number of nodes that can join the job. This is less than the desired number if EC2
        launched fewer machines."""
        if self._machines is None:
            with suppress(RecordError):
                self._machines = self._ctx.attempt.launched_machines()
        return self._ctx.desired if self._machines is None else min(self._ctx.desired, self._machines)
