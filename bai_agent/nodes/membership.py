"""Lets a node become a member of the next generation of an elastic job. The node reports that its last
generation ended, joins again if necessary, and waits until a generation begins.

A restarted agent sends all of these reports again, which has no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bai_agent.errors import StoreError
from bai_agent.generations.decision import StartGeneration
from bai_agent.generations.decision_file import write_decision
from bai_agent.generations.policy import Policy
from bai_agent.job.generation_records import Beginning, Change, GenerationEnd
from bai_agent.job.outcome import FOR_ABSENT, Outcome
from bai_agent.job.peers import Peer, peer_of
from bai_agent.job.record_types import GenerationEvent, RestartEvent
from bai_agent.job.run_directory import boot_id, now_ms
from bai_agent.light_dataclass import dataclass, replace
from bai_agent.nodes.held_ports import answer_others, hold_port
from bai_agent.nodes.members_file import members_of, peers_of, write_members
from bai_agent.peers.elastic_monitor import ElasticMonitor, Newest
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.clock import Clock
from bai_agent.runtime.stop import RunEndedError
from bai_agent.strategy import role_of
from bai_agent.strategy.launch import Role

if TYPE_CHECKING:
    from bai_agent.job.attempt import AttemptRecord
    from bai_agent.job.descriptor import Job

log = logging.getLogger(__name__)

_TICK_S = 0.1
_ASK_AGAIN_S = 30.0
"""Pause after which a node that cannot launch the benchmark checks again whether it can (seconds)."""
_SIGN_MARGIN_S = 1.5
"""Uncertainty of a heartbeat's age (seconds), because S3's times are whole seconds."""
_NOTICE_S = 2.0
"""Time for which the leader waits after the first spot notice for spot notices of other nodes (seconds)."""
_STOP_MARGIN_S = 30.0
"""Time after the grace period within which a member must have stopped its benchmark (seconds)."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A generation that begins with this node as a member."""

    newest: Newest
    beginning: Beginning


def new_monitor(job: Job, attempt: AttemptRecord, *, node: int) -> ElasticMonitor:
    """Return the monitor with which a node of an elastic job watches the other nodes."""
    limits = job.limits
    policy = Policy(
        restart=job.restart_policy,
        min_nodes=job.strategy.min_nodes,
        nodes=job.strategy.nodes,
        wait_s=job.elastic.wait.total_seconds(),
        pause_s=job.elastic.pause.total_seconds(),
        silence_s=limits.peer_silence.total_seconds(),
        stop_s=limits.grace.total_seconds() + _STOP_MARGIN_S,
        look_s=_SIGN_MARGIN_S,
        notice_s=_NOTICE_S,
        saved_code=job.strategy.saved_code,
        takes_proposals=job.takes_proposals,
        absorbs=job.strategy.absorbs_losses,
    )

    def find_serving(peers: Sequence[Peer]) -> set[int]:
        return {each.node for each in peers if role_of(job, each, peers) is Role.SERVE}

    return ElasticMonitor(
        attempt,
        node=node,
        policy=policy,
        desired=job.desired_nodes,
        limits=limits,
        find_serving=find_serving,
        checkpoint=job.checkpoint,
    )


def next_membership(
    ctx: RunContext,
    elastic: ElasticMonitor,
    me: Peer,
    *,
    ended: GenerationEnd | None = None,
    find_problem: Callable[[], str] = lambda: "",
    keeps: Callable[[], bool] = lambda: False,
) -> Membership | None:
    """Wait until a generation begins with this node as a member. Return None if no further generation of the
    job follows.

    me: this node's address and ports, which are published if this node must join. ended: how the last
    generation ended on this node. find_problem: function that returns why this node cannot launch the
    benchmark, or "". As long as the function returns a reason, the other nodes continue without this node.
    keeps: function that returns whether this node is still uploading the last checkpoint. Raises
    RunEndedError.
    """
    elastic.end_here()
    words = _Words(elastic, me, ended, find_problem=find_problem, keeps=keeps, clock=ctx.clock)
    while True:
        ctx.watch.raise_reason()
        ctx.tell_checkpoints()
        if elastic.key is not None:
            answer_others(ctx, elastic, key=elastic.key)
        newest = elastic.newest
        is_new = newest is not None and (elastic.at is None or newest.number > elastic.at)
        try:
            words.say(newest if is_new else None)
        except StoreError as error:
            log.info("%s; asking again", error)
        if newest is not None and is_new:
            if newest.is_end:
                _require_part(newest, elastic.at)
                return None
            if not keeps():
                _require_place(newest, node=elastic.node)
            beginning = elastic.beginning_of(newest) or _late_beginning(elastic, newest, me)
            if not elastic.problem and beginning is not None:
                return Membership(newest=newest, beginning=beginning)
        ctx.clock.sleep(_TICK_S)


def _late_beginning(elastic: ElasticMonitor, newest: Newest, me: Peer) -> Beginning | None:
    """Return the beginning of a generation that already runs without this node, with this node appended to
    its members. None if the benchmark cannot add nodes while it runs."""
    begun = elastic.begun
    is_running = newest.word.runs and begun is not None and begun[0] == newest.number
    if not elastic.absorbs or elastic.is_member(newest) or not is_running or begun is None:
        return None
    members = begun[1].members
    last = replace(me, rank=len(members.peers))
    return replace(begun[1], members=replace(members, peers=(*members.peers, last)))


class _Words:
    """Publishes the reports of a node that waits for a generation. Each report is published once."""

    def __init__(
        self,
        elastic: ElasticMonitor,
        me: Peer,
        ended: GenerationEnd | None,
        *,
        find_problem: Callable[[], str],
        keeps: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._elastic, self._me, self._ended = elastic, me, ended
        self._find_problem, self._keeps, self._clock = find_problem, keeps, clock
        elastic.problem, self._asked_s = find_problem(), clock.monotonic()
        self._said: dict[int, bool] = {}
        """Whether this node's report of a generation's end said that the checkpoint was still being uploaded,
        by generation."""
        self._joined_after: int | None = None

    def say(self, newest: Newest | None) -> None:
        """Publish the reports that have not been published yet. newest: the newest decision, if its
        generation has not run on this node. Raises StoreError."""
        elastic = self._elastic
        self._look_for_problem()
        if self._ended is not None and elastic.at is not None:
            # The leader computes the time of the failure from the time of this report.
            self._say_ended(elastic.at, replace(self._ended, keeps=self._keeps(), ended=now_ms()))
        if newest is None:
            if elastic.may_join_first:
                elastic.say_joined(self._me, after=None, boot=boot_id())
        elif elastic.is_member(newest):
            self._say_as_member(newest)
        elif not (newest.is_end or elastic.problem) and self._joined_after != newest.number:
            elastic.say_joined(self._me, after=newest.number, boot=boot_id())
            self._joined_after = newest.number

    def _look_for_problem(self) -> None:
        """Check regularly whether this node can launch the benchmark again, if it could not before."""
        now = self._clock.monotonic()
        if self._elastic.problem and now - self._asked_s > _ASK_AGAIN_S:
            self._elastic.problem, self._asked_s = self._find_problem(), now

    def _say_as_member(self, newest: Newest) -> None:
        if newest.number and newest.number - 1 not in self._said:
            self._say_ended(newest.number - 1, _nothing_left(self._me))
        if problem := self._elastic.problem:
            self._say_ended(newest.number, _not_launched(self._me, problem))

    def _say_ended(self, generation: int, end: GenerationEnd) -> None:
        if self._said.get(generation, not end.keeps) is not end.keeps:
            self._elastic.say_ended(generation, end)
            self._said[generation] = end.keeps


def own_peer(ctx: RunContext, *, port: int) -> Peer:
    """Return this node's address and its ports for the next generation."""
    me = peer_of(peers_of(ctx.rundir), ctx.node.rank)
    agent_port = ctx.agent_port.getsockname()[1] if ctx.agent_port is not None else 0
    return replace(me, rank=me.node, port=port, agent_port=agent_port)


def begin(ctx: RunContext, elastic: ElasticMonitor, membership: Membership) -> None:
    """Begin a generation. The beginning is written to the run directory before it is used."""
    newest, members = membership.newest, membership.beginning.members
    ctx.begins_with = membership.beginning.checkpoint
    rundir = ctx.rundir.of_generation(newest.number)
    write_members(rundir, members)
    if newest.number:
        _tell(ctx, newest)
        decision = StartGeneration(members=tuple(newest.word.members), ledger=newest.word.ledger)
        write_decision(rundir, decision)
    if rundir != ctx.rundir:
        ctx.begin_generation(rundir)
    meet(ctx, elastic)
    port = peer_of(members.peers, ctx.node.rank).port
    if ctx.port is None or ctx.port.getsockname()[1] != port:
        # An earlier agent of this node, which was killed, announced this port to the other nodes.
        try:
            ctx.port = hold_port(port)
        except OSError as error:
            log.warning("the port %d of this generation is not free: %s", port, error)


def meet(ctx: RunContext, elastic: ElasticMonitor) -> None:
    """Tell the context and the monitor which nodes are members of this generation, and which role this node
    has."""
    members = members_of(ctx.rundir)
    ctx.role = role_of(ctx.job, peer_of(members.peers, ctx.node.rank), members.peers)
    elastic.serves = ctx.role is Role.SERVE
    elastic.met(members.peers, key=members.key)


def _tell(ctx: RunContext, newest: Newest) -> None:
    """Add an event with the end of the previous generation and the members of the next generation, unless the
    event was added before."""
    if any(each.generation == newest.number for each in ctx.events.of(RestartEvent)):
        return
    word = newest.word
    ctx.events.add(
        GenerationEvent(
            generation=newest.number,
            max_restarts=ctx.job.restart_policy.max_restarts,
            backoff_seconds=word.backoff_seconds,
            outcome=word.outcome,
            message=word.sentence,
            members=list(word.members),
        )
    )


def _require_part(newest: Newest, at: int | None) -> None:
    """Raise RunEndedError if the job ended while this node was not a member of the last generation."""
    if at == newest.number - 1:
        return
    outcome = Outcome(newest.word.outcome)
    if outcome is Outcome.SUCCEEDED:
        raise RunEndedError.of(outcome, "This node waited for a generation until the job was over.")
    # A node that did not run the last generation cannot have caused the job's failure, so another node did.
    raise RunEndedError.of(outcome if outcome in FOR_ABSENT else Outcome.PEER_FAILED, newest.word.sentence)


def _require_place(newest: Newest, *, node: int) -> None:
    """Raise RunEndedError if the job was scaled down and this node was removed. A removed node has no further
    part in the job."""
    if newest.word.why == Change.SCALED.value and node in newest.word.nodes:
        raise RunEndedError.of(Outcome.SUCCEEDED, "This node left because the job was scaled down.")


def _not_launched(me: Peer, problem: str) -> GenerationEnd:
    """Return the report of a member that cannot launch the benchmark. The other nodes then continue without
    this member."""
    return GenerationEnd(rank=me.node, outcome=Outcome.AGENT_ERROR.value, sentence=problem, ended=now_ms())


def _nothing_left(me: Peer) -> GenerationEnd:
    """Return this node's report that a generation has ended, for a generation that has not run on this
    node."""
    return GenerationEnd(rank=me.node, outcome=Outcome.PEER_FAILED.value, ended=now_ms(), port=me.port)
