"""How a job of several nodes ends. Each node reports at once how it ended, so that a failure stops all nodes
or leads to another generation. One node makes the job's result from the outcomes of all nodes.

In a fixed job, the coordinator makes the result. In an elastic job, the leader makes the result, after the
leader has read the decision that ends the job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from bai_agent.benchmark.state import read_exit
from bai_agent.errors import BaiError, StoreError
from bai_agent.job.attempt import StopOrder
from bai_agent.job.elastic_result import elastic_result
from bai_agent.job.job_result import job_result, sentence_of_node
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import COORDINATOR
from bai_agent.job.record_types import GitCommit, JobResult, NodeOutcome
from bai_agent.job.run_directory import now_ms
from bai_agent.nodes.members_file import peers_of
from bai_agent.phases.root_cause import classify_end, failed_at, stopped_at
from bai_agent.phases.series import series_end
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.stop import StopReason
from bai_agent.strategy.launch import Role

if TYPE_CHECKING:
    # A job has either a monitor of fixed jobs or one of elastic jobs.
    from bai_agent.peers.elastic_monitor import ElasticMonitor
    from bai_agent.peers.peer_monitor import PeerMonitor

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5
"""Seconds between two attempts to write to an unreachable store."""
_TELL_SECONDS = 10.0


def tell_others(ctx: RunContext) -> None:
    """Report how this node ended, before its pending records are sent. If this node failed, the other nodes
    can then stop at once or continue without this node."""
    if ctx.monitor is not None:
        _tell_all(ctx, ctx.monitor)
    elif ctx.elastic is not None and ctx.has_part:
        _tell_leader(ctx, ctx.elastic)


def _tell_all(ctx: RunContext, monitor: PeerMonitor) -> None:
    if monitor.is_cut_off:
        # The other nodes have already given this node up.
        return
    found = _own_failure(ctx)
    if found is None:
        if monitor.is_coordinator and ctx.is_served:
            _insist(ctx, lambda: monitor.stop_others(StopOrder(finished=True)), patience_s=_TELL_SECONDS)
        return
    failure, failed = found
    if monitor.is_coordinator:
        order = StopOrder(
            rank=COORDINATOR,
            outcome=failure.outcome.value,
            sentence=sentence_of_node(COORDINATOR, failure.outcome, ctx.redactor.redact(failure.message)),
        )
        _insist(ctx, lambda: monitor.stop_others(order), patience_s=_TELL_SECONDS)
        return
    early = _early_outcome(ctx, failure, failed)
    _insist(ctx, lambda: monitor.attempt.end(early), patience_s=_TELL_SECONDS)


def _tell_leader(ctx: RunContext, elastic: ElasticMonitor) -> None:
    elastic.end_here()
    found = _own_failure(ctx)
    if ctx.reason is not None and ctx.reason.outcome is Outcome.CANCELLED:
        elastic.cancelled = True
        elastic.tell()
    if found is None or elastic.is_over or elastic.is_away:
        return
    early = _early_outcome(ctx, *found)
    patience_s = 0.0 if ctx.signals.received else _TELL_SECONDS
    _insist(ctx, lambda: elastic.attempt.end(early), patience_s=patience_s)
    elastic.tell()


def _early_outcome(ctx: RunContext, failure: StopReason, failed: int | None) -> NodeOutcome:
    """Return the report of this node's failure, as it is published before the sinks have received all of this
    node's records."""
    return NodeOutcome(
        rank=ctx.node.rank,
        outcome=failure.outcome.value,
        sentence=ctx.redactor.redact(failure.message),
        failed=failed,
        ended=now_ms(),
        serves=ctx.role is Role.SERVE,
        is_server=ctx.job.is_server(ctx.node.rank),
        complete=False,
    )


def result_of_all(ctx: RunContext, own: NodeOutcome, *, git: GitCommit | None) -> JobResult | None:
    """Report that this node's part of the job has ended. On the node that decides for the job, return the
    job's result; on other nodes, None."""
    if ctx.monitor is not None:
        nodes = _outcomes_of_all(ctx, ctx.monitor, own)
        return None if nodes is None else job_result(ctx.job.job.id, nodes, git=git, lost=ctx.monitor.lost)
    if ctx.elastic is not None and ctx.has_part:
        return result_of_elastic_job(ctx, ctx.elastic, own, git=git)
    return None


def _outcomes_of_all(ctx: RunContext, monitor: PeerMonitor, own: NodeOutcome) -> Sequence[NodeOutcome] | None:
    """Report that this node's part of the job has ended. On the node that decides for the job, return the
    outcomes of all nodes; on other nodes, None.

    The coordinator waits until each other node has ended or is lost. The wait has no limit of its own,
    because each node applies the job's time limits itself. If the coordinator is lost, each worker decides
    about the job's outcome alone. A worker whose benchmark failed waits first, because the loss of the
    coordinator possibly caused the failure.
    """
    patience_s = 0.0 if monitor.is_cut_off else ctx.job.limits.drain.total_seconds()
    _insist(ctx, lambda: monitor.attempt.end(own), patience_s=patience_s)
    if not monitor.is_coordinator:
        if own.outcome != Outcome.SUCCEEDED.value:
            monitor.wait_for_coordinator(over=lambda: ctx.signals.received)
        if not monitor.lost_coordinator:
            return None
    others = monitor.wait_for_others(over=lambda: ctx.signals.received)
    if monitor.is_coordinator and not monitor.is_cut_off:
        _insist(ctx, lambda: monitor.stop_others(StopOrder(finished=True)), patience_s=_TELL_SECONDS)
    return [own, *others, *_unheard(ctx, [own, *others])]


def _unheard(ctx: RunContext, heard: Sequence[NodeOutcome]) -> Sequence[NodeOutcome]:
    """Return a `peer-lost` outcome for each node that has not reported how it ended. The job does not succeed
    if there is such a node, even if all nodes in `heard` succeeded."""
    if ctx.is_served or any(each.outcome != Outcome.SUCCEEDED.value for each in heard):
        # If a single launcher started all processes and succeeded, the job succeeded on all nodes. If a node
        # failed, its failure is the job's outcome, whatever happened to the other nodes.
        return []
    ranks = {each.rank for each in heard}
    return [
        NodeOutcome(
            rank=peer.rank,
            outcome=Outcome.PEER_LOST.value,
            sentence=f"How {peer.mention} ended is not known: node {ctx.node.rank} could not wait for it.",
            ended=now_ms(),
        )
        for peer in peers_of(ctx.rundir)
        if peer.node not in ranks
    ]


def _own_failure(ctx: RunContext) -> tuple[StopReason, int | None] | None:
    """Return why and when this node's part of the job failed, as far as known before the output is read
    completely. Return None if this node's part did not fail."""
    left = read_exit(ctx.rundir)
    stopped = stopped_at(ctx)
    if ctx.reason is not None:
        failed = failed_at(left, None, stopped=stopped)
        return None if ctx.reason.outcome is Outcome.SUCCEEDED else (ctx.reason, failed)
    if left is None:
        return StopReason(Outcome.LOST, Outcome.LOST.sentence), None
    outcome, sentence, cause = classify_end(ctx, left, quote=ctx.may_quote)
    outcome, sentence = series_end(ctx, left, outcome, sentence, cause=cause)
    if outcome is Outcome.SUCCEEDED:
        return None
    return StopReason(outcome, sentence), failed_at(left, cause, stopped=stopped)


def _insist(ctx: RunContext, say: Callable[[], object], *, patience_s: float) -> None:
    """Call `say`, which writes an object to the store. If the store is unreachable, repeat the call for up to
    `patience_s` seconds."""
    deadline = ctx.clock.monotonic() + patience_s
    while True:
        try:
            say()
            return
        except StoreError:
            if ctx.clock.monotonic() >= deadline:
                log.exception("cannot report this node's outcome to the other nodes")
                return
            ctx.clock.sleep(_PAUSE_SECONDS)


def result_of_elastic_job(
    ctx: RunContext, elastic: ElasticMonitor, own: NodeOutcome, *, git: GitCommit | None
) -> JobResult | None:
    """Report that this node's part of the job has ended. If this node is the leader when the job ends, return
    the job's result; otherwise None."""
    patience_s = 0.0 if elastic.is_away else ctx.job.limits.drain.total_seconds()
    _insist(ctx, lambda: elastic.attempt.end(own), patience_s=patience_s)
    elastic.tell()
    while not (_has_to_go(ctx, elastic) or elastic.is_over or _goes_on_without(ctx, elastic)):
        elastic.wait_for_change()
    while elastic.is_over and not (elastic.leads or elastic.is_told or _has_to_go(ctx, elastic)):
        elastic.wait_for_change()
    newest = elastic.newest
    if newest is None or not (newest.is_end and elastic.leads):
        return None
    lost = _wait_for_others(ctx, elastic)
    by_rank = {each.rank: each for each in elastic.leader.outcomes} | {own.rank: own}
    outcomes = [by_rank[rank] for rank in sorted(by_rank)]
    result = elastic_result(
        ctx.job.job.id,
        newest.word,
        outcomes,
        lost={each: elastic.leader.title(each) for each in lost},
        seen=elastic.seen_by(lost),
        measured=_measured_by(ctx, elastic, lost, outcomes) if lost else (),
        replaced=_replaced(elastic),
        git=git,
    )
    # The other nodes stop only now. If this node is lost while it reads the records of lost nodes, another
    # node makes the job's result.
    _insist(ctx, elastic.stop_others, patience_s=_TELL_SECONDS)
    return result


def _replaced(elastic: ElasticMonitor) -> list[int]:
    """Return the lost nodes for which replacement machines were launched; an empty list if the store cannot
    be reached."""
    try:
        return sorted(node for each in elastic.attempt.launches() for node in each.replaces)
    except BaiError as error:
        log.warning("it is unknown which nodes were replaced: %s", error)
        return []


def _measured_by(
    ctx: RunContext, elastic: ElasticMonitor, lost: Iterable[int], heard: Sequence[NodeOutcome]
) -> Sequence[NodeOutcome]:
    """Return outcomes with the values that lost nodes had measured, as far as their records can be read
    within `limits.drain`."""
    # Imported here because most jobs lose no node.
    from bai_agent.phases.lost_records import outcomes_of_lost

    deadline = ctx.clock.monotonic() + ctx.job.limits.drain.total_seconds()
    return outcomes_of_lost(
        ctx.job,
        [elastic.attempt.job.node(node) for node in sorted(lost)],
        heard,
        members=elastic.leader.members,
        folder=ctx.rundir.path,
        over=lambda: _has_to_go(ctx, elastic) or ctx.clock.monotonic() > deadline,
    )


def _has_to_go(ctx: RunContext, elastic: ElasticMonitor) -> bool:
    return ctx.signals.received or elastic.is_away


def _goes_on_without(ctx: RunContext, elastic: ElasticMonitor) -> bool:
    """Return whether the newest generation runs without this node and this node does not wait for the job's
    end."""
    newest = elastic.newest
    if newest is None:
        return False
    is_cancelled = ctx.reason is not None and ctx.reason.outcome is Outcome.CANCELLED
    return not elastic.is_member(newest) and not is_cancelled


def _wait_for_others(ctx: RunContext, elastic: ElasticMonitor) -> set[int]:
    """Wait until each living node has reported that its part of the job has ended. Return the lost nodes."""
    while elastic.unfinished() and not _has_to_go(ctx, elastic):
        elastic.wait_for_change()
    return elastic.lost()
