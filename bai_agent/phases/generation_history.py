"""Reads from the run directory's files and events which generations this node has started, and their
outcomes."""

from __future__ import annotations

import logging

from bai_agent.benchmark.state import State, read_exit, read_started, state
from bai_agent.errors import BaiError
from bai_agent.generations.decision_file import read_members
from bai_agent.job.record_types import BenchmarkStartEvent, GenerationOutcome, RestartEvent, RunEnd
from bai_agent.job.run_directory import RunDir
from bai_agent.nodes.members_file import peers_of
from bai_agent.run.run_context import RunContext

log = logging.getLogger(__name__)


def has_run(ctx: RunContext) -> bool:
    """Return whether this node has started the benchmark in any generation."""
    return bool(_started(ctx))


def newest_started(ctx: RunContext) -> RunDir:
    """Return the run directory of the newest generation that was started, according to its files or the run's
    events."""
    return ctx.rundir.of_generation(max([*_told(ctx), ctx.rundir.newest_generation().generation]))


def newest_begun(ctx: RunContext) -> int | None:
    """Return the number of the newest generation that this node started, even if its files were deleted.
    Return None if this node has started no generation."""
    return max([*(each.generation for each in _started(ctx)), *_told(ctx)], default=None)


def _started(ctx: RunContext) -> list[RunDir]:
    """Return the run directory of each generation that this node started, in order."""
    numbers = {0, *ctx.rundir.generations(), ctx.rundir.generation}
    found = (ctx.rundir.of_generation(each) for each in sorted(numbers))
    return [each for each in found if state(each) is not State.NOT_STARTED]


def _told(ctx: RunContext) -> list[int]:
    """Return the numbers of the generations for which the run has a start event."""
    return [each.generation for each in ctx.events.of(BenchmarkStartEvent)]


def generation_outcomes(ctx: RunContext, *, quote: bool) -> list[GenerationOutcome]:
    """Return the outcomes of all started generations, in order, without secrets. quote: whether a sentence
    may quote the benchmark's output."""
    return [_generation_outcome(ctx, each, quote=quote) for each in _started(ctx)]


def _generation_outcome(ctx: RunContext, rundir: RunDir, *, quote: bool) -> GenerationOutcome:
    started, ended = read_started(rundir), read_exit(rundir) or RunEnd(lost=True)
    # Use the outcome that this node reported when the generation ended. The node has reported no outcome of
    # its last generation.
    told = next((each for each in ctx.events.of(RestartEvent) if each.generation > rundir.generation), None)
    # Imported here, because this module is not needed before the benchmark starts.
    from bai_agent.phases.root_cause import judge_end

    if told is not None:
        outcome, sentence = told.outcome, told.message
    else:
        judged, sentence, _ = judge_end(ctx, ended, quote=quote)
        # The sentence quotes the command, which can contain expanded secrets.
        sentence = judged.sentence if ended.exec_error and not quote else ctx.redactor.redact(sentence)
        outcome = judged.value
    return GenerationOutcome(
        generation=rundir.generation,
        outcome=outcome,
        sentence=sentence,
        code=ended.code,
        signal=ended.signal,
        started=started.time if started is not None else None,
        ended=ended.time,
        wall_seconds=ended.wall_seconds,
        output_begin=started.output_bytes if started is not None else 0,
        output_end=ended.output_bytes,
        members=_members(ctx, rundir),
    )


def _members(ctx: RunContext, rundir: RunDir) -> list[int]:
    """Return a generation's nodes, in the order of their group ranks."""
    if (decided := read_members(rundir)) is not None:
        return decided
    if ctx.job.strategy.nodes == 1:
        return [ctx.node.rank]
    try:
        return [each.node for each in peers_of(rundir)]
    except BaiError as error:
        log.warning("the members of generation %d are not known: %s", rundir.generation, error)
        return []
