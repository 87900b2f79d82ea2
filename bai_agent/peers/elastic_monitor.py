"""Runs one node's part in an elastic job. The node writes heartbeats, reads the newest decision, and makes
decisions if it is the leader.

The *leader* is the first member of the newest generation. The leader watches all nodes and decides; the other
members only read `control/` in the store. If the leader writes no heartbeat for `limits.peer_silence` and
does not answer a direct request, the next living member becomes the leader. Each member waits 20 s longer
than the member before it. Every decision is written to the store only once, and all nodes obey it, whichever
node wrote it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from bai_agent.errors import BaiError, RecordError, StoreError
from bai_agent.generations.policy import Policy
from bai_agent.job.attempt import AttemptRecord, Control, StopOrder, Version
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.descriptor.restart_tables import Checkpoint
from bai_agent.job.generation_records import (
    Beginning,
    DecisionKind,
    GenerationEnd,
    Hints,
    Leaving,
    NextGeneration,
    Sign,
)
from bai_agent.job.outcome import FOR_ALL, Outcome
from bai_agent.job.peers import Peer
from bai_agent.job.run_directory import now_ms
from bai_agent.light_dataclass import dataclass, replace
from bai_agent.peers.direct_question import PeerAnswer, ask, ask_all
from bai_agent.peers.leader import Leader
from bai_agent.peers.node_monitor import FRESH_SECONDS, NodeMonitor, SignAges
from bai_agent.peers.node_reports import TOGETHER_S, Decided, LeaderContext
from bai_agent.peers.reachability import find_lost
from bai_agent.runtime.stop import StopReason

log = logging.getLogger(__name__)

_GLANCE_SECONDS = 0.25
"""Seconds between two checks for a new scaling request if the store is a local folder. There, a check takes
microseconds."""


@dataclass(frozen=True, kw_only=True)
class Newest(Decided):
    """The newest decision about generations that this node has read."""

    seen_s: float
    """Time at which this node read the decision (seconds of this node's clock)."""
    stop_s: float
    """Time at which this node must begin to stop its processes because of the decision (seconds of this
    node's clock)."""

    @property
    def is_end(self) -> bool:
        return self.word.kind is DecisionKind.END


class ElasticMonitor(NodeMonitor):
    """Monitor of one node of an elastic job. The monitor's thread calls `observe`; the run's main thread
    calls all other methods."""

    def __init__(
        self,
        attempt: AttemptRecord,
        *,
        node: int,
        policy: Policy,
        desired: int,
        limits: Limits,
        find_serving: Callable[[Sequence[Peer]], Collection[int]] = lambda _: (),
        checkpoint: Checkpoint | None = None,
        clock: Callable[[], float] = time.monotonic,
        ask: Callable[[Peer, bytes], PeerAnswer | None] = ask,
    ) -> None:
        """desired: number of nodes with which the job begins. find_serving: function that returns the nodes
        that run servers. A server ends only if it is ordered to."""
        super().__init__(attempt, rank=node, limits=limits, clock=clock, ask=ask)
        self.absorbs = policy.absorbs
        """Whether the benchmark itself adds new nodes while it runs, and continues when nodes are lost."""
        self._leaders = SignAges(clock=clock)
        self.newest: Newest | None = None
        self.begun: tuple[int, Beginning] | None = None
        """Number of the newest generation that has begun, and the record of its beginning with its
        members."""
        self._unreadable = -1
        """Number of the newest generation whose `begin-<g>.json` cannot be read; -1 if there is none."""
        self.launched = -1
        """Number of the newest generation that the leader allows all members to launch; -1 if there is
        none."""
        self.has_looked = False
        self.is_told = False
        """Whether the leader has reported that the job's result is written. Always false on the leader,
        because a new leader possibly has to write the result again."""
        self.leads = False
        """Whether this node is the leader and has checked all nodes at least once as the leader."""
        self.at: int | None = None
        """The most recent generation that has begun on this node."""
        self._runs = False
        self.has_joined = False
        self.restored: int | None = None
        """The generation whose checkpoint this node has restored."""
        self.shim_port = 0
        """Port of the shim of the generation that runs on this node. 0 if no generation runs."""
        self.waits_to_launch = False
        """Whether this node has restored the checkpoint of its generation, and waits until all other members
        have restored it."""
        self.cancelled = False
        self.problem = ""
        """Reason why this node cannot launch a generation. Empty if this node can launch a generation."""
        self.seen: Callable[[], Sequence[str]] = tuple
        """Function that returns the names of the required metrics that have at least one recorded value on
        this node."""
        self.find_hints: Callable[[], Hints | None] = lambda: None
        """Function that returns the last hints of the benchmark on this node; None if there are no hints."""
        self._hints_put: Hints | None = None
        self._proposal: int | None = None
        """Number of nodes that this node will propose at its next check. None if this node will not propose a
        number."""
        self._signed_s = clock()
        """Time of this node's last heartbeat."""
        self._leaving_until: float | None = None
        self._left = False
        self._told_restored = self._acknowledged = -1
        """`_told_restored`: the last generation for which this node reported that its checkpoint is restored.
        `_acknowledged`: the last planned decision for which this node reported that it has read the decision.
        Both numbers are -1 before the first report."""
        store = attempt.job.store.folder
        self._requests = store / attempt.key("requests") if store is not None else None
        """Folder in the store with users' requests for another number of nodes; None if the store is a
        bucket."""
        self._requests_seen = _changed_at(self._requests)
        """Modification time of the `requests` folder in the store at the last check (ns)."""
        self._introduced: Sequence[Peer] = ()
        """Members of the newest generation, if this node joined after that generation began."""
        self._silence_s: float | None = None
        self._all_silent = False
        self.leader = Leader(
            LeaderContext(
                attempt=attempt,
                node=node,
                policy=policy,
                desired=desired,
                limits=limits,
                find_serving=find_serving,
                checkpoint=checkpoint,
                clock=clock,
                silent_s=self._silent_s,
                unheard_s=self._unheard_s,
                answering=self._answering,
                ask=self._ask_directly,
            )
        )

    @property
    def node(self) -> int:
        return self._rank

    @property
    def limits_runtime(self) -> bool:
        # The leader stops the job at its time limit. The limit counts from the first generation, in which
        # this node possibly had no part.
        return False

    @property
    def is_over(self) -> bool:
        """Whether this node has read the decision that the job ends."""
        return self.newest is not None and self.newest.is_end

    @property
    def is_away(self) -> bool:
        """Whether this node must end because it has not reached the store for too long."""
        return self.absence.away_too_long() is not None

    def goes_on_after(self, reason: StopReason) -> bool:
        """Return whether this node waits for another generation after `reason` ended a generation here. The
        node waits if the generation ended because of another node. The node does not wait if the job has
        ended or the store has been unreachable for too long."""
        is_of_others = reason.outcome in (Outcome.PEER_FAILED, Outcome.PEER_LOST)
        return is_of_others and not (self.is_over or self.is_away)

    def is_member(self, newest: Newest) -> bool:
        return self._rank in newest.word.members

    @property
    def may_join_first(self) -> bool:
        """Whether this node must join the job now, because it has not been in any generation."""
        return self.at is None and self.has_looked and not self.has_joined

    def beginning_of(self, newest: Newest) -> Beginning | None:
        """Return the beginning of the newest generation. Return None if the newest generation has not begun,
        or if this node is not a member of it."""
        begun = self.begun
        return (
            begun[1] if begun is not None and begun[0] == newest.number and self.is_member(newest) else None
        )

    def begin(self, generation: int) -> None:
        """Record that a generation runs on this node."""
        self.at, self._runs, self.shim_port = generation, True, 0

    def end(self) -> None:
        self._runs = False
        super().end()

    def launch(self, *, shim_port: int) -> None:
        """Record that the benchmark was launched on this node. shim_port: port of the benchmark's shim."""
        self.shim_port = shim_port
        self.look_now()

    def end_here(self) -> None:
        """Record that all processes of a generation have ended on this node."""
        self._runs = False
        self.look_now()

    def say_joined(self, me: Peer, *, after: int | None, boot: str) -> None:
        """Join the job: publish this node's address. This also reports that no process of the benchmark runs
        on this node. Raises StoreError."""
        self.attempt.join(me, after=after, boot=boot)
        self.has_joined = True
        self.tell()

    def say_ended(self, generation: int, said: GenerationEnd) -> None:
        """Report that no process of this or an earlier generation is left on this node. Raises StoreError."""
        self.attempt.end_generation(generation, said)
        self.tell()

    def tell(self) -> None:
        """Wake the leader, because this node has written an object that the leader should read."""
        self.look_now()
        self._wake_leader()

    def _wake_leader(self) -> None:
        leader = self._order()[0]
        self.wake([each for each in (*self._peers, *self._introduced) if each.node == leader][:1])

    @property
    def key(self) -> bytes | None:
        """Secret with which the nodes sign requests to each other. None until this node has read the
        secret."""
        return self._key

    def leave(self, seconds: float) -> None:
        """Report at the next check that this node's machine will be terminated in `seconds` seconds."""
        if self._leaving_until is None:
            self._leaving_until = self._clock() + seconds
            self.look_now()

    @property
    def is_leaving(self) -> bool:
        return self._leaving_until is not None

    def reason(self, running_s: float | None) -> StopReason | None:
        if (sentence := self.absence.away_too_long()) is not None:
            return StopReason(Outcome.PEER_LOST, sentence)
        if not self._runs:
            return None
        if (reason := self.change()) is not None:
            return reason
        sentence = self.absence.given_up()
        return StopReason(Outcome.PEER_LOST, sentence) if sentence is not None else None

    def change(self) -> StopReason | None:
        """Return why the newest decision ends the generation that runs on this node. Return None if the
        generation continues."""
        newest = self.newest
        if newest is None or self.at is None or newest.number <= self.at or self._clock() < newest.stop_s:
            return None
        word = newest.word
        if not newest.is_end:
            return StopReason(Outcome.PEER_FAILED, word.sentence)
        outcome = Outcome(word.outcome)
        if outcome is Outcome.SUCCEEDED:
            if self.serves:
                return StopReason(outcome, "This node served the job until the job ended.")
            return StopReason(Outcome.PEER_LOST, "The job has ended without this node.")
        return StopReason(outcome if outcome in FOR_ALL else Outcome.PEER_FAILED, word.sentence)

    def all_silent(self, silence_s: float) -> bool:
        self._silence_s = silence_s
        return self.leads and self._all_silent

    def _ended_nodes(self) -> Collection[int]:
        return self.leader.ended_nodes

    def observe(self) -> None:
        self._requests_seen = _changed_at(self._requests)
        has_left = self._say_leaving()
        sign = self._give_sign()
        is_news = sign.restored and self._told_restored != sign.generation
        if is_news and sign.generation is not None:
            self._told_restored = sign.generation
        self._give_hints()
        self._propose()
        control = self.attempt.control()
        self._read(control)
        has_acknowledged = self._acknowledge(sign)
        is_introduced = self._introduce(control)
        self._leaders.observe(control.leaders)
        if self._is_leader():
            self._lead(control)
            # `leads` becomes true only after all nodes were checked once, because a new leader has not
            # watched the other nodes before.
            self.leads = True
            self.attempt.give_leader_sign(self._rank, sign)
        else:
            self.leads, self.is_told = False, control.stop
            self._observe_signs({}, own=None)
            if has_left or is_news or has_acknowledged or is_introduced:
                self._wake_leader()
        self.has_looked = True

    def _say_leaving(self) -> bool:
        """Report once that this node's machine is about to be terminated. Return whether this call wrote the
        report. Raises StoreError."""
        if self.newest is None or self._leaving_until is None or self._left:
            return False
        left_s = max(0.0, self._leaving_until - self._clock())
        self.attempt.leave(Leaving(node=self._rank, seconds=left_s, time=now_ms()))
        self._left = True
        return True

    def _give_sign(self) -> Sign:
        """Write a heartbeat, and return the heartbeat. Raises StoreError."""
        newest = self.newest
        is_restored = newest is not None and self.restored == newest.number
        sign = Sign(
            time=now_ms(),
            phase=self.phase,
            silent_s=self.silent_s,
            generation=self.restored if is_restored else self.at,
            restored=is_restored,
            decided=newest.number if newest is not None else None,
            shim_port=self.shim_port,
            seen=list(self.seen()),
            problem=self.problem,
        )
        self.attempt.give_sign(self._rank, sign)
        self._signed_s = self._clock()
        self.absence.reached()
        return sign

    def _give_hints(self) -> None:
        """Publish the benchmark's hints, unless the same hints were published before. Raises StoreError."""
        hints = self.find_hints()
        if hints is not None and hints is not self._hints_put:
            self.attempt.give_hints(hints)
            self._hints_put = hints

    def propose(self, nodes: int) -> None:
        """Propose a number of nodes for the job. The monitor publishes the proposal at its next check, if
        this node is the leader at that time."""
        self._proposal = nodes
        self.look_now()

    def _propose(self) -> None:
        """Publish the proposed number of nodes, if a number is proposed. Raises StoreError."""
        nodes = self._proposal
        if nodes is not None and self.leads:
            self.leader.propose(nodes)
        self._proposal = None

    def _acknowledge(self, sign: Sign) -> bool:
        """Report once that this node has read a planned decision, for which all members stop together. Return
        whether this call wrote the report. Raises StoreError.

        sign: this node's last heartbeat.
        """
        newest = self.newest
        if newest is None or newest.stop_s <= self._clock() or self._acknowledged == newest.number:
            return False
        if sign.decided != newest.number:
            self._give_sign()
        self._acknowledged = newest.number
        return True

    def pause(self, seconds: float) -> None:
        until = self._clock() + seconds
        while (left_s := until - self._clock()) > 0 and not self._due.wait(min(left_s, _GLANCE_SECONDS)):
            if self.leads and _changed_at(self._requests) != self._requests_seen:
                return

    def _introduce(self, control: Control) -> bool:
        """Read the members of the newest generation and their key, after this node has joined. With the key,
        this node can wake the leader. Return whether this call read the members. Raises StoreError."""
        if self._key is not None or not self.has_joined or not control.begun:
            return False
        with suppress(RecordError):  # the generation never began
            members = self.attempt.beginning(max(control.begun)).members
            self._introduced, self._key = members.peers, members.key
        return self._key is not None

    def unfinished(self) -> set[int]:
        """Return the other nodes that are alive and have not finished their part of the job, as far as this
        node knows."""
        return {each for each in self._known() if self._silent_s(each) <= self._silence_limit}

    def lost(self) -> set[int]:
        """Return the other nodes that have written no heartbeat for too long and have not reported how they
        ended."""
        return self._known() - self.unfinished()

    def seen_by(self, nodes: Iterable[int]) -> set[str]:
        """Return the names of the required metrics of which these nodes have recorded values, according to
        the last heartbeat of each. Heartbeats that cannot be read are skipped."""
        found: set[str] = set()
        for node in nodes:
            with suppress(BaiError):
                found.update(self.attempt.last_sign(node).seen)
        return found

    def _known(self) -> set[int]:
        done = {each.rank for each in self.leader.outcomes if each.complete}
        return self.leader.known_nodes - done - {self._rank}

    def stop_others(self) -> None:
        """Report that the job's result is written. Raises StoreError."""
        self.attempt.order_stop(StopOrder(finished=True))
        self.wake(self.leader.peers)

    def _is_change_near(self) -> bool:
        newest = self.newest
        if newest is None:
            return self.has_joined
        if (self.leads and self.leader.waits) or newest.stop_s > self._clock():
            return True
        is_due = newest.number != self.at or not self._runs or self.waits_to_launch
        return newest.is_end or (
            self.is_member(newest) and is_due and newest.word.kind is not DecisionKind.PARK
        )

    def _read(self, control: Control) -> None:
        """Read the newest decision. Raises BaiError."""
        number = control.newest
        if number is not None and (self.newest is None or number > self.newest.number) and not self.is_over:
            self._take(number, self.attempt.decision(number, control), control.generations[number])
        newest = self.newest
        if newest is not None and newest.word.runs and newest.number in control.begun:
            self._read_beginning(newest)
        if newest is not None and newest.number in control.seen_by_all:
            self.newest = replace(newest, stop_s=min(newest.stop_s, self._clock()))
        self.launched = max(control.launches, default=-1)

    def _read_beginning(self, newest: Newest) -> None:
        """Read the newest generation's `begin-<g>.json`, unless it was read before. Raises StoreError."""
        if newest.number in (self._unreadable, self.begun[0] if self.begun is not None else None):
            return
        try:
            begun = self.attempt.beginning(newest.number, members=newest.word.members)
            self.begun = (newest.number, begun)
        except RecordError as error:
            # If a generation's file cannot be read, the leader starts another generation.
            log.warning("generation %d cannot begin: %s", newest.number, error)
            self._unreadable = newest.number

    def _take(self, number: int, word: NextGeneration, put: Version) -> None:
        now = self._clock()
        stop_s = now
        if word.planned and word.runs and self._runs:
            stop_s += TOGETHER_S
            try:
                signed = self.attempt.sign_time(self._rank)
                stop_s -= max(0, (signed or 0) - put[0]) / 1000
            except StoreError as error:
                log.info("%s", error)
        log.info("generation %d: %s, members %s: %s", number, word.kind.value, word.members, word.sentence)
        self.newest = Newest(number=number, word=word, put=put, seen_s=now, stop_s=stop_s)

    def _is_leader(self) -> bool:
        """Return whether this node is the leader now."""
        order = self._order()
        place = order.index(self._rank)
        if place == 0:
            return True
        if self.leads and self.newest is None and self._leaders.age_s(order[0]) is None:
            return True
        silent_s = self._leader_silent_s(order[0])
        overdue_s = silent_s - self._silence_limit
        if all(map(self._is_lost, order[:place])):
            return True
        if overdue_s <= 0 or (
            silent_s <= self._silence_limit + FRESH_SECONDS and self._answers_as_leader(order[0])
        ):
            return False
        seen = self.attempt.signs_seen()
        self._observe_signs(seen.nodes, own=seen.nodes.get(self._rank), signed_s=self._signed_s)
        before = order[1:place]
        return overdue_s > FRESH_SECONDS * place or all(
            self._silent_s(each) > self._silence_limit for each in before
        )

    def _is_lost(self, node: int) -> bool:
        """Return whether a member that should be the leader is known to be lost. A member can be known to be
        lost before it has been silent for `limits.peer_silence`."""
        newest = self.newest
        if newest is None or not newest.word.runs:
            return False
        found = find_lost(
            self.attempt,
            [each for each in self._peers if each.node == node],
            generation=newest.number,
            # If the generation has ended on this node, this node waits for the leader's decision.
            failed=self.at == newest.number and not self._runs,
            is_overdue=lambda each: self._leader_silent_s(each) > self._silence_limit / 2,
            ask=self._ask_directly,
        )
        return bool(found)

    def _leader_silent_s(self, node: int) -> float:
        """Return for how long a node has neither written a leader's heartbeat nor answered a direct request
        (seconds)."""
        since_s = self.newest.seen_s if self.newest is not None else self._watching_since
        silent_s = self._quiet_s(node, self._leaders, since_s=since_s)
        return min(silent_s, self._clock() - self._watching_since)

    def _answers_as_leader(self, node: int) -> bool:
        """Send a direct request to a silent leader before the leader counts as lost. Return whether the
        leader answers."""
        found = [each for each in self._peers if each.node == node]
        return bool(self._answering(found))

    def _answering(self, peers: Sequence[Peer]) -> set[int]:
        """Send a direct request to each of these nodes. Return the nodes whose answer says that the node
        reaches the store."""
        now = self._clock()
        answers = ask_all(peers, self._ask_directly)
        found = {
            node: each.store_s
            for node, each in answers.items()
            if each is not None and each.store_s <= self._silence_limit
        }
        self._answered.update({node: now - store_s for node, store_s in found.items()})
        return set(found)

    def _order(self) -> list[int]:
        """Return the nodes in the order in which they become the leader if earlier nodes are lost."""
        newest = self.newest
        members = newest.word.members if newest is not None else ()
        if not members:
            return sorted({*range(self.leader.nodes), self._rank})
        return [*members] if self._rank in members else [*members, self._rank]

    def _lead(self, control: Control) -> None:
        seen = self.attempt.signs_seen()
        self._observe_signs(seen.nodes, own=seen.nodes.get(self._rank), signed_s=self._signed_s)
        newest = self.newest
        if newest is not None and newest.is_end:
            self.leader.see_ends(control)
            return
        begun = self.begun[1] if newest and self.begun and self.begun[0] == newest.number else None
        settled = self.leader.look(
            control, seen, newest, begun, signed_s=self._signed_s, cancelled=self.cancelled
        )
        if settled is not None or self.leader.has_begun:
            # The write possibly failed without an answer, so the object is read back from the store.
            self._read(self.attempt.control())
            self.wake(self.leader.peers)
            # Check again at once: the next step is possibly due, or another node has become the leader and
            # waits for this node's report.
            self.look_now()
        else:
            self._wake_waited_for()
        self._all_silent = self._silence_s is not None and self.leader.all_silent(self._silence_s)

    def _wake_waited_for(self) -> None:
        self.wake(self.leader.waited_for)
        if any(each.node == self._rank for each in self.leader.waited_for):
            self.when_woken()


def _changed_at(folder: Path | None) -> int:
    """Return the modification time of a folder (ns); 0 if the folder does not exist."""
    with suppress(OSError):
        return folder.stat().st_mtime_ns if folder is not None else 0
    return 0
