"""The end of a node of an elastic job: the leader makes the job's result from the ends of all nodes' parts.

A result is only made after the decision that ends the job was read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from bai_agent.errors import BaiError
from bai_agent.job.elastic_result import elastic_result
from bai_agent.job.outcome import Outcome
from bai_agent.job.record_types import GitCommit, JobResult, NodeOutcome
from bai_agent.job.run_directory import now_ms
from bai_agent.peers.elastic_monitor import ElasticMonitor
from bai_agent.phases.gang_failure import TELL_SECONDS, insist, own_failure
from bai_agent.run.run_context import RunContext
from bai_agent.strategy.launch import Role

log = logging.getLogger(__name__)


def tell_leader(ctx: RunContext, elastic: ElasticMonitor) -> None:
    """Report the end of this node's part before its remaining records are sent: the others continue without
    it, or end."""
    elastic.end_here()
    found = own_failure(ctx)
    if ctx.reason is not None and ctx.reason.outcome is Outcome.CANCELLED:
        elastic.cancelled = True
        elastic.tell()
    if found is None or elastic.is_over or elastic.is_away:
        return
    failure, failed = found
    early = NodeOutcome(
        rank=ctx.node.rank,
        outcome=failure.outcome.value,
        sentence=ctx.redactor.redact(failure.message),
        failed=failed,
        ended=now_ms(),
        serves=ctx.role is Role.SERVE,
        complete=False,
    )
    insist(ctx, lambda: elastic.attempt.end(early), patience_s=0.0 if ctx.signals.received else TELL_SECONDS)
    elastic.tell()


def result_of_all(
    ctx: RunContext, elastic: ElasticMonitor, own: NodeOutcome, *, git: GitCommit | None
) -> JobResult | None:
    """Report the end of this node's part; return the end of the job if this node leads when it ends, else
    None."""
    patience_s = 0.0 if elastic.is_away else ctx.job.limits.drain.total_seconds()
    insist(ctx, lambda: elastic.attempt.end(own), patience_s=patience_s)
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
    # Only now: if this node is lost while it reads the records of lost nodes, another one makes the result.
    insist(ctx, elastic.stop_others, patience_s=TELL_SECONDS)
    return result


def _replaced(elastic: ElasticMonitor) -> list[int]:
    """Return the lost nodes in whose place machines were launched, as far as the store answers."""
    try:
        return sorted(node for each in elastic.attempt.launches() for node in each.replaces)
    except BaiError as error:
        log.warning("it is unknown which nodes were replaced: %s", error)
        return []


def _measured_by(
    ctx: RunContext, elastic: ElasticMonitor, lost: Iterable[int], heard: Sequence[NodeOutcome]
) -> Sequence[NodeOutcome]:
    """Return the values that lost nodes measured, as far as they can be read in time."""
    # Imported here: most jobs lose no node.
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
    """Return whether the job continues without this node."""
    newest = elastic.newest
    if newest is None:
        return False
    is_cancelled = ctx.reason is not None and ctx.reason.outcome is Outcome.CANCELLED
    return not elastic.is_member(newest) and not is_cancelled


def _wait_for_others(ctx: RunContext, elastic: ElasticMonitor) -> set[int]:
    """Wait until the part of each living node has ended; return the lost nodes."""
    while elastic.unfinished() and not _has_to_go(ctx, elastic):
        elastic.wait_for_change()
    return elastic.lost()
