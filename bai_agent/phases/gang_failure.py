"""Ends all nodes when one fails: each reports its failure at once, and the job's result is made from the ends of all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from bai_agent.benchmark.state import read_exit
from bai_agent.errors import StoreError
from bai_agent.job.attempt import COORDINATOR, StopOrder
from bai_agent.job.job_result import sentence_of_node
from bai_agent.job.outcome import Outcome
from bai_agent.job.record_types import NodeOutcome
from bai_agent.job.run_directory import now_ms
from bai_agent.nodes.members_file import peers_of
from bai_agent.phases.root_cause import classify_end, failed_at, stopped_at
from bai_agent.phases.series import series_end
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.stop import StopReason
from bai_agent.strategy.launch import Role

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5
"""Seconds between two tries to write to an unreachable store."""
TELL_SECONDS = 10.0


def tell_others(ctx: RunContext) -> None:
    """Report this node's end before its pending records are sent, so that the others end at once after a failure."""
    monitor = ctx.monitor
    if monitor is None or monitor.is_cut_off:
        # They have given this node up.
        return
    found = own_failure(ctx)
    if found is None:
        if monitor.is_coordinator and ctx.is_served:
            insist(ctx, lambda: monitor.stop_others(StopOrder(finished=True)), patience_s=TELL_SECONDS)
        return
    failure, failed = found
    if monitor.is_coordinator:
        order = StopOrder(
            rank=COORDINATOR,
            outcome=failure.outcome.value,
            sentence=sentence_of_node(COORDINATOR, failure.outcome, ctx.redactor.redact(failure.message)),
        )
        insist(ctx, lambda: monitor.stop_others(order), patience_s=TELL_SECONDS)
        return
    message = ctx.redactor.redact(failure.message)
    early = NodeOutcome(
        rank=ctx.node.rank,
        outcome=failure.outcome.value,
        sentence=message,
        failed=failed,
        ended=now_ms(),
        serves=ctx.role is Role.SERVE,
        is_server=ctx.job.is_server(ctx.node.rank),
        complete=False,
    )
    insist(ctx, lambda: monitor.attempt.end(early), patience_s=TELL_SECONDS)


def outcomes_of_all(ctx: RunContext, own: NodeOutcome) -> Sequence[NodeOutcome] | None:
    """Report the end of this node's part. Return the ends of all nodes on the node that decides for the job,
    else None.

    The coordinator waits for the others: each ends by its own limits, or is lost. A worker decides if the
    coordinator is lost. A worker whose benchmark failed because of that loss may be the first to detect it.
    """
    monitor = ctx.monitor
    assert monitor is not None
    patience_s = 0.0 if monitor.is_cut_off else ctx.job.limits.drain.total_seconds()
    insist(ctx, lambda: monitor.attempt.end(own), patience_s=patience_s)
    if not monitor.is_coordinator:
        if own.outcome != Outcome.SUCCEEDED.value:
            monitor.wait_for_coordinator(over=lambda: ctx.signals.received)
        if not monitor.lost_coordinator:
            return None
    others = monitor.wait_for_others(over=lambda: ctx.signals.received)
    if monitor.is_coordinator and not monitor.is_cut_off:
        insist(ctx, lambda: monitor.stop_others(StopOrder(finished=True)), patience_s=TELL_SECONDS)
    return [own, *others, *_unheard(ctx, [own, *others])]


def _unheard(ctx: RunContext, heard: Sequence[NodeOutcome]) -> Sequence[NodeOutcome]:
    """Return outcomes for the nodes that could not be waited for: if all `heard` nodes succeeded, the unknown
    end of another one still keeps the job from succeeding."""
    if ctx.is_served or any(each.outcome != Outcome.SUCCEEDED.value for each in heard):
        # If one launcher started all processes and succeeded, all nodes succeeded; a failure is the cause,
        # whatever happened to the others.
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


def own_failure(ctx: RunContext) -> tuple[StopReason, int | None] | None:
    """Return why this node's part did not succeed, as far as known before its output is read completely, and
    when."""
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


def insist(ctx: RunContext, say: Callable[[], object], *, patience_s: float) -> None:
    """Publish an object in a store that may be unreachable for a while."""
    deadline = ctx.clock.monotonic() + patience_s
    while True:
        try:
            say()
            return
        except StoreError:
            if ctx.clock.monotonic() >= deadline:
                log.exception("the other nodes could not be told")
                return
            ctx.clock.sleep(_PAUSE_SECONDS)
