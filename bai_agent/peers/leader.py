"""The leader's view of all nodes of an elastic job: it decides what follows, and lets generations begin and
launch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from bai_agent.errors import RecordError
from bai_agent.generations.checkpoint_marker import CheckpointRecord, checkpoint_number
from bai_agent.generations.decision import (
    JOIN_SETTLE_S,
    SETTLE_S,
    Decision,
    EndJob,
    EndNode,
    Park,
    StartGeneration,
    Why,
    decide,
    desired_nodes,
)
from bai_agent.generations.observation import GenerationObservation, Member, MemberEnd, Stage, Waiting
from bai_agent.generations.policy import Policy
from bai_agent.job.attempt import AttemptRecord, Control, EndsSeen, SignsSeen, Version
from bai_agent.job.descriptor import Checkpoint, Limits
from bai_agent.job.generation_records import (
    Beginning,
    Change,
    DecisionKind,
    GenerationEnd,
    Joined,
    NextGeneration,
    Sign,
    stand_in,
)
from bai_agent.job.job_result import first_failure, sentence_of_node
from bai_agent.job.launches import JobMachines
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Members, Peer
from bai_agent.job.record_types import NodeOutcome
from bai_agent.job.run_directory import now_ms
from bai_agent.job.schema.durations import format_duration
from bai_agent.light_dataclass import replace
from bai_agent.peers.direct_question import PeerAnswer, new_key
from bai_agent.peers.node_monitor import FRESH_SECONDS, SIGN_SECONDS
from bai_agent.peers.suspects import find_lost

log = logging.getLogger(__name__)

_NONE_KNOWN = JobMachines(by_node={}, is_first_known=True)
Decided: TypeAlias = tuple[int, NextGeneration, Version]
"""The number of a decision, its content, and the time at which it was written."""
_NO_LOSS = (Change.START, Change.JOINED, Change.LEFT, Change.SCALED, Change.SAVED, Change.UNREADABLE)
"""Reasons of changes without a lost node."""
_TOLD = (Change.BROKE, Change.NOT_RESTORED)
"""Changes for which a node may have said more."""
TOGETHER_S = 8.0
"""Seconds after a planned decision, by the store's clock, after which members stop even if not all are known
to have seen it."""
_A_LITTLE_S = 0.001
_UNSHARED_S = 60.0
"""Seconds after a node's last sign in which it may still write to a folder that all nodes share."""


class Leader:
    """It keeps facts that never change, and reads all others at each look, so any node can take over."""

    def __init__(
        self,
        attempt: AttemptRecord,
        *,
        node: int,
        policy: Policy,
        desired: int,
        limits: Limits,
        find_serving: Callable[[Sequence[Peer]], Collection[int]],
        checkpoint: Checkpoint | None,
        clock: Callable[[], float],
        silent_s: Callable[[int], float],
        unheard_s: Callable[[int], float],
        answering: Callable[[Sequence[Peer]], Collection[int]],
        ask: Callable[[Peer], PeerAnswer | None] = lambda peer: None,
    ) -> None:
        """silent_s: for how long a node was silent while this one could look; unheard_s: for how long in
        total. answering: the silent nodes that answer direct questions."""
        self._attempt, self._node, self._policy = attempt, node, policy
        self._desired, self._limits = desired, limits
        self._find_serving, self._checkpoint = find_serving, checkpoint
        self._clock, self._silent_s, self._unheard_s = clock, silent_s, unheard_s
        self._answering, self._ask = answering, ask
        self.has_begun = False
        """Whether the last look let a generation begin or launch, or the previous one stop."""
        self.waits = False
        """Whether a reason for a decision is known, but the leader still waits for more."""
        self.waited_for: Sequence[Peer] = ()
        """The members whose next sign of life it waits for."""
        self._since_s = clock()
        self._waited_for: dict[int, float] = {}
        """Since when each node is waited for before the first generation: its last sign of life."""
        self._decisions: dict[int, NextGeneration] = {}
        self._joined: dict[int, tuple[tuple[Version, str], Joined]] = {}
        self._unreadable: dict[int, tuple[Version, str]] = {}
        """Versions of nodes' reports that cannot be read."""
        self._not_launched: dict[int, tuple[tuple[Version, str], Joined]] = {}
        """Reports of nodes that are not machines of a known launch."""
        self._ends: dict[tuple[int, int], tuple[Version, GenerationEnd]] = {}
        self._outcomes: dict[int, tuple[Version, NodeOutcome]] = {}
        self._requests: dict[int, int] = {}
        self._dismissed: set[int] = set()
        self._begun: Beginning | None = None
        self._ran: tuple[int, Beginning | None] = (0, None)
        """The last generation that began before the newest decision, and its beginning. None if none did."""
        self._launched = -1
        self._restored: tuple[int, set[int]] = (-1, set())
        """A generation, and the members that have its checkpoint."""
        self._seen_by: tuple[int, set[int]] = (-1, set())
        """A planned decision, and the members that have seen it."""
        self._machines: int | None = None
        """How many machines were launched. None if that is not known."""
        self._launched_machines: JobMachines | None = _NONE_KNOWN
        """Those that may join. None if no launch is recorded: then all nodes may join."""
        self._store_ms = 0

    @property
    def nodes(self) -> int:
        """The most nodes that the job may have."""
        return self._policy.nodes

    @property
    def ended_nodes(self) -> Collection[int]:
        """The nodes whose part of the job has ended, as far as this node knows."""
        return frozenset(self._outcomes)

    @property
    def outcomes(self) -> Sequence[NodeOutcome]:
        """The end of each of these nodes' parts."""
        return [each for _, (_, each) in sorted(self._outcomes.items())]

    @property
    def members(self) -> Mapping[int, Sequence[int]]:
        """The members of each generation, in the order of their group ranks."""
        return {number: word.members for number, word in self._decisions.items()}

    @property
    def known_nodes(self) -> set[int]:
        """The nodes that have joined, or were a member once."""
        return {*self._joined, *(node for word in self._decisions.values() for node in word.members)}

    @property
    def peers(self) -> Sequence[Peer]:
        """Addresses of the living nodes whose part of the job has not ended."""
        return [
            each.peer
            for node, (_, each) in list(self._joined.items())
            if node not in self._outcomes and self._silent_s(node) <= self._policy.silence_s
        ]

    def title(self, node: int) -> str:
        """Return a node's name for people: "Node 1 (i-0123, 10.0.0.2)"."""
        return self._joined[node][1].peer.title if node in self._joined else f"Node {node}"

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
        self.has_begun, self.waited_for = False, ()
        own = signs.nodes.get(self._node)
        self._store_ms = (own[0] if own is not None else now_ms()) + round(1000 * (self._clock() - signed_s))
        ends = self._attempt.ends_seen()
        self._read(control, ends)
        self._begun = begun[1] if begun is not None else None
        if newest is not None and self._cannot_begin(newest, control):
            return self._begin_anew(newest)
        seen = self._observe(control, signs, newest, cancelled=cancelled)
        decision = decide(seen, self._policy)
        self._wait(seen)
        if isinstance(decision, EndNode):
            self._dismissed.add(decision.node)
            return None
        word = self._word(decision, seen)
        if word is not None:
            return self._attempt.settle_generation(0 if newest is None else newest[0] + 1, word)
        if newest is not None and newest[1].runs:
            self._go_on(newest, signs, control)
        return None

    def _wait(self, seen: GenerationObservation) -> None:
        """Note the reasons for a decision, and the nodes for which it waits."""
        leaving = [each for each in seen.members if each.leaving_s is not None]
        joins = any(each.joined_s < JOIN_SETTLE_S for each in seen.waiting)
        self.waits = bool(leaving or joins or _failures(seen.members))
        if leaving and seen.stage is Stage.RUNNING:
            others = (each for each in seen.members if each not in leaving and each.end is None)
            self.waited_for = self._peers_of(others)

    def _peers_of(self, members: Iterable[Member]) -> list[Peer]:
        return [self._joined[each.node][1].peer for each in members if each.node in self._joined]

    def _cannot_begin(self, newest: Decided, control: Control) -> bool:
        return newest[1].runs and self._begun is None and newest[0] in control.begun

    def _begin_anew(self, newest: Decided) -> NextGeneration | None:
        """Settle another generation with the same members if the beginning of the newest one cannot be read. Raises BaiError."""
        number, word, _ = newest
        try:
            self._attempt.beginning(number, members=word.members)
        except RecordError as error:
            anew = replace(stand_in(word, str(error), put=self._store_ms), time=now_ms())
            return self._attempt.settle_generation(number + 1, anew)
        return None  # the next look reads it

    def _go_on(self, newest: Decided, signs: SignsSeen, control: Control) -> None:
        """Let the newest generation begin, or launch. Raises BaiError."""
        if self._begun is None:
            self._let_stop(newest, control)
            self._begin(newest, signs, control)
        elif self._checkpoint is not None:
            self._launch(newest[0], control)

    def see_ends(self, control: Control) -> None:
        """After the end of the job is decided, note all nodes and the ends of their parts. Raises
        BaiError."""
        self._read(control, self._attempt.ends_seen())

    def all_silent(self, silence_s: float) -> bool:
        """Return whether the benchmarks of all other members have printed nothing for so long."""
        if self._begun is None:
            return False
        others = [each.node for each in self._begun.members.peers if each.node != self._node]
        return all(self._attempt.silent_s(each) >= silence_s for each in others)

    def _read(self, control: Control, ends: EndsSeen) -> None:
        for number in set(control.decided) - self._decisions.keys():
            self._decisions[number] = self._attempt.decision(number, control)
        newest = max(self._decisions, default=0)
        self._ran = self._begun_before(newest, control)
        self._read_joined()
        for key, put in ends.generations.items():
            # Nobody needs those of earlier generations any more.
            if key[1] >= min(self._ran[0], newest - 1) and self._ends.get(key, (None, None))[0] != put:
                self._ends[key] = (put, self._attempt.generation_end(key[1], key[0]))
        self._read_outcomes(ends)
        for number in self._attempt.scale_requests().keys() - self._requests.keys():
            try:
                self._requests[number] = self._attempt.scale_request(number).desired
            except RecordError as error:
                log.warning("a request for another number of nodes cannot be read: %s", error)
                self._requests[number] = 0  # it is outside of the range

    def _read_joined(self) -> None:
        """Note the nodes that have joined, if they are machines of the job's launches: a benchmark may write
        such a record.

        If a node's report cannot be read, its earlier report counts. Raises StoreError, RecordError.
        """
        found = self._not_launched
        for node, version in self._attempt.joined().items():
            known = [each[node][0] for each in (self._joined, found) if node in each]
            if version in (*known, self._unreadable.get(node)):
                continue
            try:
                found[node] = (version, self._attempt.joined_node(node))
            except RecordError as error:
                log.warning("node %d has not joined: %s", node, error)
                self._unreadable[node] = version
        if not all(self._is_launched(joined) for _, joined in found.values()):
            self._launched_machines = self._attempt.machines()
        for node in [each for each, (_, joined) in found.items() if self._is_launched(joined)]:
            self._joined[node] = found.pop(node)

    def _is_launched(self, joined: Joined) -> bool:
        """Return whether a node that has joined is a machine that was launched for it, as far as is known."""
        machines, peer = self._launched_machines, joined.peer
        return machines is None or machines.has(peer.node, peer.instance_id, first=self._desired)

    def _read_outcomes(self, ends: EndsSeen) -> None:
        for node, version in ends.nodes.items():
            if self._outcomes.get(node, (None, None))[0] != version:
                self._outcomes[node] = (version, self._attempt.usable_outcome(node))

    def _observe(
        self,
        control: Control,
        signs: SignsSeen,
        newest: Decided | None,
        *,
        cancelled: bool,
    ) -> GenerationObservation:
        number, word = (
            (newest[0], newest[1]) if newest is not None else (-1, NextGeneration(kind=DecisionKind.RUN))
        )
        stage, ledger, limit = self._stage(newest), word.ledger, self._limits.max_runtime
        self._ask_silent(word.members)
        seen = [self._member(each, stage, number, newest, signs) for each in word.members]
        if stage is Stage.RUNNING:
            seen = self._with_late(self._without_lost(seen, number), number, control)
        return GenerationObservation(
            now_s=self._clock(),
            running_s=max(0.0, (self._store_ms - ledger.began) / 1000) if ledger.began is not None else 0.0,
            max_runtime_s=limit.total_seconds() if limit is not None else None,
            members=self._with_served(seen) if stage is Stage.RUNNING else seen,
            ledger=ledger,
            stage=stage,
            generation=max(number, 0),
            generation_s=self._launched_s(number, control),
            waiting=self._waiting(word.members),
            coming=self._coming(signs) if stage is Stage.GATHERING else (),
            desired=desired_nodes(
                (each for _, each in sorted(self._requests.items())), self._policy, first=self._desired
            ),
            cancelled=cancelled or self._is_cancelled(seen),
            time=self._store_ms,
        )

    def _launched_s(self, generation: int, control: Control) -> float:
        """Return the seconds since a generation was launched. 0 if it was not."""
        # Members with a checkpoint launch together, after each has restored it.
        launched = control.begun if self._checkpoint is None else control.launches
        if generation not in launched:
            return 0.0
        return max(0.0, self._age_s(launched[generation]))

    def _stage(self, newest: Decided | None) -> Stage:
        if newest is None:
            return Stage.GATHERING
        if newest[1].kind is DecisionKind.PARK:
            return Stage.PARKED
        return Stage.CHANGING if self._begun is None else Stage.RUNNING

    def _is_cancelled(self, members: Sequence[Member]) -> bool:
        """Return whether a node has ended because the job was cancelled."""
        ends = [each.end.outcome for each in members if each.end is not None]
        return Outcome.CANCELLED in ends or any(
            each.outcome == Outcome.CANCELLED.value for _, each in self._outcomes.values()
        )

    def _ask_silent(self, members: Sequence[int]) -> None:
        """Ask members directly before they are given up."""
        silent = [each for each in members if self._silent_s(each) > self._policy.silence_s]
        found = [self._joined[each][1].peer for each in silent if each in self._joined]
        if found:
            self._answering(found)

    def _without_lost(self, members: list[Member], generation: int) -> list[Member]:
        """Return the members; those that are known to be lost before their time is over count as silent for
        long enough."""
        failed_s = max((each.ended_s for each in _failures(members)), default=None)
        running = [each for each in members if each.end is None and each.node in self._joined]
        half_s = self._policy.silence_s / 2
        suspects = [each for each in running if self._is_suspect(each, failed_s, half_s)]
        find = partial(self._find_lost, generation=generation, failed=failed_s is not None)
        lost = find(suspects, overdue_s=half_s)
        others = [each for each in running if each.node not in lost]
        if failed_s is not None:
            self.waited_for = self._peers_of(each for each in suspects if each in others)
        # Losses within that time count as one change.
        near = find(others, overdue_s=half_s - SETTLE_S) if lost and failed_s is not None else ()
        least_s = {
            **dict.fromkeys(near, self._policy.silence_s - SETTLE_S + _A_LITTLE_S),
            **dict.fromkeys(lost, self._policy.silence_s + _A_LITTLE_S),
        }
        return [replace(each, silent_s=max(each.silent_s, least_s.get(each.node, 0.0))) for each in members]

    def _with_late(self, members: list[Member], generation: int, control: Control) -> list[Member]:
        """Return the members; after `limits.pull_timeout` those without the checkpoint of a generation that
        begins count as late. Raises StoreError."""
        if self._checkpoint is None or generation in control.launches or generation not in control.begun:
            return members
        # The members end it by themselves in time, unless they hang.
        limit_s = self._limits.pull_timeout.total_seconds() + self._policy.stop_s
        late_s = self._age_s(control.begun[generation]) - limit_s
        if late_s <= 0:
            return members
        return [
            each if self._has_restored(each.node, generation) else replace(each, late_s=late_s)
            for each in members
        ]

    def _is_suspect(self, running: Member, failed_s: float | None, half_s: float) -> bool:
        """Return whether a member's ports are to be tried: it is silent, or a failure waits for its next
        sign."""
        if failed_s is None:
            return running.silent_s > half_s
        # As in the decision, a sign within that time proves nothing.
        return running.silent_s > half_s or (
            running.lived_s(now_s=self._clock()) <= failed_s + self._policy.look_s
        )

    def _find_lost(
        self, suspects: Sequence[Member], *, generation: int, failed: bool, overdue_s: float
    ) -> set[int]:
        return find_lost(
            self._attempt,
            self._peers_of(suspects),
            generation=generation,
            failed=failed,
            is_overdue=lambda node: self._silent_s(node) > overdue_s,
            ask=self._ask,
        )

    def _member(
        self, node: int, stage: Stage, number: int, newest: Decided | None, signs: SignsSeen
    ) -> Member:
        # A member that cannot launch the newest generation reports that before it begins.
        ends = stage in (Stage.RUNNING, Stage.CHANGING)
        end = self._member_end(node, number) if ends else self._final_end(node)
        leaving = self._leaving(node, signs)
        stopping_s = None
        if stage is Stage.CHANGING and newest is not None and not self._is_ready(node, number):
            stopping_s = max(0.0, self._age_s(newest[2]) - (TOGETHER_S if newest[1].planned else 0.0))
        return Member(
            node=node,
            end=end,
            silent_s=self._silent_s(node),
            unheard_s=self._unheard_s(node),
            leaving_s=max(0.0, self._age_s(leaving)) if leaving is not None else None,
            stopping_s=stopping_s,
        )

    def _leaving(self, node: int, signs: SignsSeen) -> Version | None:
        """Return when a node reported that it is about to lose its machine; None if it did not, or has joined
        since."""
        said, joined = signs.leaving.get(node), self._joined.get(node)
        return None if said is None or (joined is not None and joined[0][0][0] > said[0]) else said

    def _member_end(self, node: int, number: int) -> MemberEnd | None:
        """Return how a generation ended on a node, by the store's clock."""
        found = self._ends.get((node, number))
        if found is None:
            return self._final_end(node)
        put, end = found
        # Both times are by the node's own clock.
        late_ms = max(0, (end.ended or 0) - end.failed) if end.failed is not None else 0
        return MemberEnd(
            outcome=_known(end.outcome),
            code=end.code,
            signal=end.signal,
            ended_s=self._local_s(put[0] - late_ms),
        )

    def _final_end(self, node: int) -> MemberEnd | None:
        """Return the end of a node's whole part of the job; None if it has not ended."""
        found = self._outcomes.get(node)
        if found is None:
            return None
        outcome = Outcome(found[1].outcome)
        # The node's part of the job is over, whatever its outcome: it is no longer a candidate.
        gone = Outcome.INTERRUPTED if outcome in (Outcome.SUCCEEDED, Outcome.PEER_FAILED) else outcome
        benchmark = found[1].benchmark
        return MemberEnd(
            outcome=gone,
            code=benchmark.code if benchmark is not None else None,
            signal=benchmark.signal if benchmark is not None else None,
            ended_s=self._local_s(found[0][0]),
        )

    def _local_s(self, store_ms: float) -> float:
        return self._clock() - (self._store_ms - store_ms) / 1000

    def _with_served(self, members: list[Member]) -> list[Member]:
        """Return the members; if all computing members have succeeded, those that serve them have too."""
        begun = self._begun
        serving = set(self._find_serving(begun.members.peers)) if begun is not None else set()
        if not serving or not all(each.has_succeeded for each in members if each.node not in serving):
            return members
        done = MemberEnd(outcome=Outcome.SUCCEEDED, ended_s=self._clock())
        return [
            replace(each, end=done) if each.node in serving and each.end is None else each for each in members
        ]

    def _is_ready(self, node: int, number: int) -> bool:
        """Return whether a member of the newest generation has no process of earlier ones left."""
        before = self._decisions.get(number - 1)
        if node not in self._joined:
            return False
        return before is None or node not in before.members or (node, number - 1) in self._ends

    def _waiting(self, members: Collection[int]) -> list[Waiting]:
        """Return the nodes that have joined, or failed to, and are not members."""
        others = sorted({*self._joined, *self._outcomes} - set(members))
        return [found for each in others if (found := self._waits(each)) is not None]

    def _waits(self, node: int) -> Waiting | None:
        last = max((each for each, word in self._decisions.items() if node in word.members), default=None)
        if node in self._outcomes:
            put, found = self._outcomes[node]
            outcome = Outcome(found.outcome)
            if last is not None or node in self._dismissed or outcome is Outcome.SUCCEEDED:
                return None
            return Waiting(node=node, end=MemberEnd(outcome=outcome, ended_s=self._local_s(put[0])))
        is_there = self._has_joined_after(node, last) and self._silent_s(node) <= FRESH_SECONDS
        if not is_there:
            return None
        return Waiting(node=node, joined_s=self._age_s(self._joined[node][0][0]))

    def _has_joined_after(self, node: int, last: int | None) -> bool:
        """Return whether a node joined since the last generation with it: an earlier report may be from a
        dead node."""
        after = self._joined[node][1].after
        return last is None or (after is not None and after > last)

    def _coming(self, signs: SignsSeen) -> list[int]:
        """Return the nodes that are still waited for before the first generation."""
        now, found = self._clock(), []
        for node in range(self._places()):
            if node in signs.nodes and self._silent_s(node) <= FRESH_SECONDS:
                self._waited_for[node] = now
            since_s = now - self._waited_for.get(node, self._since_s)
            is_missing = since_s > self._limits.join.total_seconds()
            if node not in self._joined and node not in self._outcomes and not is_missing:
                found.append(node)
        return found

    def _places(self) -> int:
        """Return how many nodes may come: EC2 may have had room for fewer machines than desired."""
        if self._machines is None:
            with suppress(RecordError):
                self._machines = self._attempt.launched_machines()
        return self._desired if self._machines is None else min(self._desired, self._machines)

    def _word(self, decision: Decision, seen: GenerationObservation) -> NextGeneration | None:
        """Return a decision as it is published to all nodes; None if it is not published."""
        if isinstance(decision, EndJob):
            outcome, sentence = self._end(decision, seen)
            return NextGeneration(
                kind=DecisionKind.END,
                members=[each.node for each in seen.members],
                why=decision.why.value,
                nodes=list(decision.nodes),
                ledger=seen.ledger,
                outcome=outcome.value,
                sentence=sentence,
                time=now_ms(),
            )
        if not isinstance(decision, (StartGeneration, Park)):
            return None
        outcome, sentence = self._reason(decision, seen)
        word = NextGeneration(
            kind=DecisionKind.PARK,
            members=list(decision.members),
            why=decision.why.value,
            nodes=list(decision.nodes),
            ledger=decision.ledger,
            outcome=outcome.value,
            sentence=sentence,
            time=now_ms(),
        )
        if isinstance(decision, Park):
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
            limit = self._limits.max_runtime
            shown = format_duration(limit) if limit is not None else ""
            return Outcome.MAX_RUNTIME, f"The job ran longer than limits.max_runtime ({shown}) and was ended."
        if decision.why is Why.NOT_JOINED:
            return Outcome.JOIN_FAILED, self._missing_sentence({each.node for each in seen.waiting})
        cause = self._cause(seen, decision.nodes)
        if cause is None:
            return Outcome.PEER_FAILED, "All nodes were ended."
        return Outcome(cause.outcome), sentence_of_node(cause.rank, Outcome(cause.outcome), cause.sentence)

    def _missing_sentence(self, joined: Collection[int]) -> str:
        missing = [each for each in range(self._desired) if each not in joined]
        who = f"Node {missing[0]}" if len(missing) == 1 else f"Nodes {', '.join(map(str, missing))}"
        return f"{who} gave no sign of life for limits.join ({format_duration(self._limits.join)})."

    def _cause(self, seen: GenerationObservation, nodes: Collection[int]) -> NodeOutcome | None:
        """Return the failure of the first of these nodes; of all nodes of the newest generation if none is
        named."""
        found = []
        for node in nodes or [each.node for each in seen.members]:
            put = self._ends.get((node, seen.generation))
            if put is not None:
                end = put[1]
                found.append(
                    NodeOutcome(
                        rank=node,
                        outcome=_known(end.outcome).value,
                        sentence=end.sentence,
                        failed=end.failed,
                        ended=end.ended,
                        serves=end.serves,
                    )
                )
            elif node in self._outcomes:
                found.append(self._outcomes[node][1])
        return first_failure(found)

    def _begin(self, newest: Decided, signs: SignsSeen, control: Control) -> None:
        """Let a generation begin when all its members are ready, and nothing else is waited for. Raises
        BaiError."""
        number, word, decided = newest
        is_ready = all(self._is_ready(each, number) for each in word.members)
        is_due = is_ready and self._age_s(decided) >= word.backoff_seconds
        if not is_due or self._waits_for_checkpoint(signs, control):
            return
        peers = [self._peer(node, rank, number) for rank, node in enumerate(word.members)]
        members = Members(peers=tuple(peers), key=self._key())
        checkpoint = self._newest_checkpoint(number) if self._checkpoint is not None else None
        self._begun = self._attempt.begin_generation(number, members, checkpoint=checkpoint)
        self.has_begun = True

    def _let_stop(self, newest: Decided, control: Control) -> None:
        """Let all members of the previous generation stop, after each has seen a planned decision. Raises
        BaiError."""
        number, word, _ = newest
        before = self._decisions.get(number - 1)
        if not word.planned or before is None or not before.runs or number in control.seen_by_all:
            return
        running = [each for each in before.members if not self._has_ended(each, number - 1)]
        if running and all(self._has_seen(each, number) for each in running):
            self._attempt.stop_together(number)
            self.has_begun = True

    def _has_ended(self, node: int, generation: int) -> bool:
        return (node, generation) in self._ends or node in self._outcomes

    def _has_seen(self, node: int, number: int) -> bool:
        """Return whether a member has confirmed a decision. Raises BaiError."""
        if self._seen_by[0] != number:
            self._seen_by = (number, {self._node})
        if node not in self._seen_by[1]:
            seen = self._last_sign(node).decided
            if seen is None or seen < number:
                return False
            self._seen_by[1].add(node)
        return True

    def _has_restored(self, node: int, number: int) -> bool:
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
        """Return a node's last report; an empty one if it cannot be read. Raises StoreError."""
        try:
            return self._attempt.last_sign(node)
        except RecordError as error:
            log.warning("a sign of life cannot be read: %s", error)
            return Sign()

    def _newest_checkpoint(self, number: int) -> str | None:
        """Return the name of the checkpoint with which a generation begins; None if there is none. Raises BaiError."""
        before, begun = self._ran
        if begun is None:
            return None
        base = begun.checkpoint
        found = CheckpointRecord(self._attempt).newest(
            before=number, since=before, base=checkpoint_number(base) if base is not None else None
        )
        return found.name if found is not None else None

    def _begun_before(self, number: int, control: Control) -> tuple[int, Beginning | None]:
        """Return the newest generation before that one that began, and its beginning. None if none did.
        Raises StoreError."""
        for each in sorted((each for each in control.begun if each < number), reverse=True):
            if each == self._ran[0] and self._ran[1] is not None:
                return self._ran
            with suppress(RecordError):  # it never began
                return each, self._attempt.beginning(each, members=self._decisions[each].members)
        return 0, None

    def _waits_for_checkpoint(self, signs: SignsSeen, control: Control) -> bool:
        """Return whether a member of the last generation that ran may still write or keep its last
        checkpoint."""
        number, begun = self._ran
        if self._checkpoint is None or begun is None:
            return False
        members = self._decisions[number].members
        if self._checkpoint.shared:
            return any(self._may_write(each, number, signs, control) for each in members)
        return self._may_keep(members[0], number, signs, control)

    def _may_write(self, node: int, number: int, signs: SignsSeen, control: Control) -> bool:
        """Return whether a node may still write files of a generation into the folder that all nodes
        share."""
        has_joined_again = node in self._joined and self._has_joined_after(node, number)
        if has_joined_again or self._has_ended(node, number):
            return False
        limit_s = _UNSHARED_S + self._limits.grace.total_seconds()
        is_recent = node in signs.nodes and self._age_s(signs.nodes[node]) < limit_s
        return is_recent and self._stops(number, control, late_s=limit_s)

    def _may_keep(self, node: int, number: int, signs: SignsSeen, control: Control) -> bool:
        """Return whether a node may still store the last checkpoint of a generation. A checkpoint that a
        silent node stores later is ignored."""
        if self._silent_s(node) > self._policy.silence_s or self._has_said_all(node):
            return False
        if (node, number) in self._ends:
            put, end = self._ends[node, number]
            return end.keeps and self._age_s(put) < self._limits.pull_timeout.total_seconds()
        if self._leaving(node, signs) is not None:
            return self._has_time_left(node, signs)
        return self._stops(number, control)

    def _stops(self, number: int, control: Control, *, late_s: float = 0.0) -> bool:
        """Return whether a generation may still run on a node that reports nothing about it: the next
        decision is too recent for the node to have stopped."""
        limit_s = self._policy.stop_s + (TOGETHER_S if self._decisions[number + 1].planned else 0.0)
        return self._age_s(control.generations[number + 1]) < limit_s + late_s

    def _has_said_all(self, node: int) -> bool:
        """Return whether a node's part of the job is over, and all its checkpoints are kept."""
        return node in self._outcomes and self._outcomes[node][1].complete

    def _age_s(self, put: Version) -> float:
        """Return how many seconds ago an object was written, by the store's clock."""
        return (self._store_ms - put[0]) / 1000

    def _has_time_left(self, node: int, signs: SignsSeen) -> bool:
        """Return whether a node that is leaving still has its machine."""
        leaving = self._leaving(node, signs)
        try:
            left_s = self._attempt.leaving_node(node).seconds
        except RecordError:
            return False
        return leaving is not None and self._age_s(leaving) < left_s

    def _peer(self, node: int, rank: int, number: int) -> Peer:
        peer = self._joined[node][1].peer
        end = self._ends.get((node, number - 1))
        port = end[1].port if end is not None and end[1].port else peer.port
        return replace(peer, rank=rank, node=node, port=port)

    def _key(self) -> bytes:
        """Return the nodes' key for direct questions: the key of earlier generations, or a new one if there is none."""
        begun = self._ran[1]
        return (begun.members.key if begun is not None else None) or new_key()

    def _launch(self, number: int, control: Control) -> None:
        """Let all members launch a generation after each has its checkpoint. Raises BaiError."""
        if number in control.launches or self._launched >= number or self._begun is None:
            return
        until_s = self._clock() + SIGN_SECONDS
        for each in self._begun.members.peers:
            # With many members this takes several looks, between which this node gives its own sign.
            if not self._has_restored(each.node, number) or self._clock() > until_s:
                return
        self._attempt.launch_generation(number)
        self._launched, self.has_begun = number, True


def _failures(members: Iterable[Member]) -> list[MemberEnd]:
    """Return the ends of the members whose benchmark failed, except those that were ended because of another
    member."""
    ends = (each.end for each in members)
    return [
        each
        for each in ends
        if each is not None and each.outcome not in (Outcome.SUCCEEDED, Outcome.PEER_FAILED)
    ]


def _known(outcome: str) -> Outcome:
    try:
        return Outcome(outcome)
    except ValueError:
        return Outcome.AGENT_ERROR
