"""The loop over the generations of a run. The benchmark is restarted after a failure, as often as the job's
policy allows.

Each decision is written to the run directory before it takes effect. Therefore, a restarted agent continues
the same generation, whenever the agent was killed. No generation is started twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from bai_agent.benchmark.state import State, read_exit, seconds_since_first, state
from bai_agent.decode import checked
from bai_agent.errors import SecretError, StoreError
from bai_agent.generations.decision import EndJob, Pause, StartGeneration, Why, decide
from bai_agent.generations.decision_file import read_ledger, write_decision
from bai_agent.generations.observation import GenerationObservation, Member, MemberEnd
from bai_agent.generations.policy import Policy, backoff_s
from bai_agent.job.generation_records import GenerationEnd, Ledger
from bai_agent.job.outcome import MAY_GET_BETTER, Outcome
from bai_agent.job.record_types import RestartEvent, RunEnd, Text, as_table
from bai_agent.job.run_directory import FULL, make_folder, now_ms, read_json, reserve_space, write_json
from bai_agent.job.schema.durations import format_duration
from bai_agent.light_dataclass import dataclass
from bai_agent.phases.benchmark_phase import is_unstarted, run_generation
from bai_agent.phases.generation_history import has_run
from bai_agent.phases.prepare import secrets_of
from bai_agent.run.run_context import RunContext
from bai_agent.run.stop_sources import no_output_reason
from bai_agent.runtime.stop import RunEndedError, StopReason
from bai_agent.strategy.launch import Role

if TYPE_CHECKING:
    # Imported for type checking only, because a run of one node does not need these modules.
    from bai_agent.peers.elastic_monitor import ElasticMonitor
    from bai_agent.peers.generation_control import GenerationControl
    from bai_agent.peers.peer_monitor import PeerMonitor

log = logging.getLogger(__name__)

_SHARED = (*MAY_GET_BETTER, Outcome.SUCCEEDED)
"""Outcomes of a node after which the coordinator decides whether another generation follows."""
_TICK_S = 0.1
"""Pause between two checks while waiting for the next generation (seconds)."""


@dataclass(frozen=True, kw_only=True)
class _Stopped:
    """Content of `generations/end.json`: the reason why no further generation begins. The reason is empty if
    the end of the last generation is itself the reason."""

    outcome: Text | None = None
    sentence: Text = ""


def run_benchmark(ctx: RunContext) -> None:
    """Run the benchmark and restart it according to the job's policy; return when no further generation follows. Raises
    RunEndedError."""
    _stop_again(ctx)
    # A node of an elastic job must check first whether its generation is still the newest, if the generation
    # has not been started.
    if ctx.elastic is None or not is_unstarted(ctx):
        _run(ctx)
    while _begin_next(ctx):
        _run(ctx)


def _run(ctx: RunContext) -> None:
    """Run a generation. If the next generation is decided before the benchmark is launched, this generation
    ends without a launch. Raises RunEndedError."""
    if ctx.elastic is not None:
        ctx.elastic.begin(ctx.rundir.generation)
    try:
        _restore(ctx)
        run_generation(ctx)
    except RunEndedError as ended:
        if not is_unstarted(ctx) or not _is_change(ctx, ended.reason):
            raise
        ctx.reason = ended.reason


def _is_change(ctx: RunContext, reason: StopReason) -> bool:
    """Return whether another generation can follow on this node. `reason` ended the current generation before
    its launch."""
    if ctx.elastic is not None:
        return ctx.elastic.goes_on_after(reason)
    control = ctx.monitor.generations if ctx.monitor is not None else None
    return control is not None and control.reason() is not None


def _restore(ctx: RunContext) -> None:
    """Restore the newest checkpoint for the next generation. Raises RunEndedError."""
    if ctx.job.checkpoint is not None and is_unstarted(ctx):
        # Imported here, because most jobs have no checkpoints.
        from bai_agent.checkpoint.generation_checkpoints import restore_newest, restore_together

        if ctx.elastic is not None:
            restore_together(ctx, ctx.elastic)
        else:
            restore_newest(ctx)


def _keeps_checkpoint(ctx: RunContext) -> Callable[[], bool]:
    """Return a function that returns whether this node is still uploading the last checkpoint of its
    generation."""
    checkpoints = ctx.checkpoints
    limit_s = ctx.job.limits.pull_timeout.total_seconds()
    return lambda: checkpoints is not None and checkpoints.keeps_within(limit_s)


def wait_for_checkpoint(ctx: RunContext) -> None:
    """Wait until this node has uploaded the last checkpoint of an ended generation, or until no time is
    left."""
    if ctx.job.checkpoint is not None and state(ctx.rundir) is not State.NOT_STARTED:
        from bai_agent.checkpoint.periodic import wait_until_kept

        wait_until_kept(ctx)


def end_generations(ctx: RunContext) -> None:
    """Write `generations/end.json`, which says that no further generation begins. Programs that follow the
    benchmark's output end when the file exists."""
    if not ctx.job.has_generations or not has_run(ctx):
        return
    # The newest generation was possibly decided but never started.
    runs_none = ctx.between_generations or state(ctx.rundir) is State.NOT_STARTED
    reason = ctx.reason if runs_none else None
    stopped = (
        _Stopped() if reason is None else _Stopped(outcome=reason.outcome.value, sentence=reason.message)
    )
    try:
        make_folder(ctx.rundir.end.parent, private=ctx.rundir.path)
        if not ctx.rundir.end.exists():
            write_json(ctx.rundir.end, as_table(stopped))
    except OSError as error:
        if error.errno not in FULL:
            raise
        log.warning("there is no space for %s", ctx.rundir.end)


def _begin_next(ctx: RunContext) -> bool:
    """Wait for the next generation, and begin it; return False if no generation follows. Raises
    RunEndedError."""
    if ctx.elastic is not None:
        return _come_to_next(ctx, ctx.elastic)
    decision = _next_generation(ctx)
    if decision is None:
        return False
    wait_for_checkpoint(ctx)
    _begin(ctx, decision)
    return True


def _come_to_next(ctx: RunContext, elastic: ElasticMonitor) -> bool:
    """Wait for the next generation of an elastic job, which the leader decides. Return False if no generation
    follows."""
    # Imported here, so that other jobs start sooner.
    from bai_agent.nodes.held_ports import hold_port
    from bai_agent.nodes.membership import begin, next_membership, own_peer

    if ctx.rundir.end.exists():
        return False
    ended, reason, port, keeps = None, ctx.reason, hold_port(), _keeps_checkpoint(ctx)
    if elastic.at == ctx.rundir.generation:
        if elastic.is_leaving:
            # The other nodes wait for this node's checkpoint until this node reports that its generation has
            # ended.
            wait_for_checkpoint(ctx)
        end, sentence, failed = _end_of_generation(ctx)
        ended = _said(ctx, end, sentence, failed, port=port.getsockname()[1])
    ctx.reason = None
    ctx.watch.end_generation()
    me = own_peer(ctx, port=port.getsockname()[1])
    try:
        membership = next_membership(
            ctx, elastic, me, ended=ended, find_problem=lambda: _launch_problem(ctx), keeps=keeps
        )
    except RunEndedError as over:
        _stop(ctx, over.reason)
    if membership is None:
        ctx.reason = reason
        return False
    if ctx.checkpoints is not None and ctx.checkpoints.is_alive():
        # The next generation began before this checkpoint was uploaded, so the checkpoint is not needed.
        ctx.checkpoints.give_up()
    ctx.tell_checkpoints()
    ctx.port = port
    begin(ctx, elastic, membership)
    # The previous generation has possibly used up the reserved disk space.
    reserve_space(ctx.rundir)
    return True


def _launch_problem(ctx: RunContext) -> str:
    """Return why this agent cannot launch the benchmark, for example because a secret is missing after a
    restart; "" if this agent can launch the benchmark."""
    try:
        if not ctx.knows_secrets:
            secrets_of(ctx)
    except SecretError as error:
        return f"{error}."
    return ""


def _said(ctx: RunContext, end: MemberEnd, sentence: str, failed: int | None, *, port: int) -> GenerationEnd:
    """Return this node's report about how a generation ended. All of the generation's processes on this node
    have ended."""
    return GenerationEnd(
        rank=ctx.node.rank,
        outcome=end.outcome.value,
        sentence=ctx.redactor.redact(sentence),
        code=end.code,
        signal=end.signal,
        failed=failed,
        ended=now_ms(),
        serves=ctx.role is Role.SERVE,
        port=port,
    )


def _next_generation(ctx: RunContext) -> StartGeneration | None:
    """Wait for the decision about the next generation, and return the start of the next generation. Return
    None if no generation follows. Raises RunEndedError."""
    if not ctx.job.may_restart or ctx.rundir.end.exists():
        return None
    if ctx.monitor is not None and ctx.monitor.generations is not None:
        return _agree(ctx, ctx.monitor, ctx.monitor.generations)
    end, sentence, _ = _end_of_generation(ctx)
    policy, ledger = ctx.job.restart_policy, read_ledger(ctx.rundir)
    while True:
        decision = decide(_observation(ctx, end, ledger), Policy(restart=policy))
        if isinstance(decision, (StartGeneration, Pause)):
            _tell(ctx, end.outcome.value, sentence, backoff_s(policy, restarts=ledger.restarts))
        if isinstance(decision, StartGeneration):
            return decision
        if isinstance(decision, EndJob):
            if decision.why is Why.MAX_RUNTIME:
                _stop(ctx, _out_of_time(ctx, sentence))
            return None
        if reason := ctx.watch.reason():
            _stop(ctx, reason)
        ctx.clock.sleep(_TICK_S)


def _agree(ctx: RunContext, monitor: PeerMonitor, control: GenerationControl) -> StartGeneration | None:
    """Report how this generation ended on this node, and wait for the coordinator's decision. Raises
    RunEndedError."""
    # Imported here, because a run of one node starts sooner without this module.
    from bai_agent.nodes.held_ports import hold_port
    from bai_agent.nodes.members_file import write_members

    end, sentence, failed = _end_of_generation(ctx)
    if end.outcome is Outcome.PEER_FAILED:
        if not _was_ended_for_next(ctx, monitor, control):
            return None
    elif end.outcome not in _SHARED:
        # An outcome after which no restart is possible is reported at the end of the run, as in a job without
        # restarts.
        return None
    control.is_held = _keeps_checkpoint(ctx)
    control.wait()
    ctx.reason = None
    ctx.watch.end_generation()
    port = hold_port()
    said = _said(ctx, end, sentence, failed, port=port.getsockname()[1])
    is_said = False
    while True:
        if not is_said:
            with suppress(StoreError):
                control.end(said)
                is_said = True
        ctx.tell_checkpoints()
        decision, members = control.decision, control.members
        if decision is not None and not decision.runs:
            if decision.sentence:
                ctx.warn(decision.sentence)
            return None
        if decision is not None:
            _tell(ctx, decision.outcome, decision.sentence, decision.backoff_seconds)
        if decision is not None and members is not None:
            write_members(ctx.rundir.of_generation(ctx.rundir.generation + 1), members)
            ctx.port = port
            return StartGeneration(members=tuple(decision.members), ledger=decision.ledger)
        # `limits.max_runtime` does not apply after a success, however long the other nodes take. The limit
        # does not apply to a node that runs a server either, because the server began before the benchmark.
        if (end.outcome is not Outcome.SUCCEEDED or decision is not None) and ctx.role is not Role.SERVE:
            _end_if_out_of_time(ctx, sentence)
        if decision is None:
            _end_if_silent(ctx, monitor)
        if reason := ctx.watch.reason():
            _stop(ctx, reason)
        ctx.clock.sleep(_TICK_S)


def _end_if_out_of_time(ctx: RunContext, sentence: str) -> None:
    limit = ctx.job.limits.max_runtime
    if limit is not None and seconds_since_first(ctx.rundir, now=ctx.clock.time) >= limit.total_seconds():
        _stop(ctx, _out_of_time(ctx, sentence))


def _end_if_silent(ctx: RunContext, monitor: PeerMonitor) -> None:
    """End the job if no other node's benchmark has printed anything for `limits.no_output`. Only the
    coordinator does this."""
    limit = ctx.job.limits.no_output
    if monitor.is_coordinator and limit is not None and monitor.all_silent(limit.total_seconds()):
        _stop(ctx, no_output_reason(limit))


def _was_ended_for_next(ctx: RunContext, monitor: PeerMonitor, control: GenerationControl) -> bool:
    """Return whether the benchmark was stopped because another generation follows, and not because the job
    ends."""
    while control.decision is None and not monitor.ends_job:
        # A restarted agent has not checked for other reasons to stop yet, such as a cancelled job.
        reason = ctx.watch.reason()
        if reason is not None and reason.outcome is not Outcome.PEER_FAILED:
            return False
        ctx.clock.sleep(_TICK_S)
    return control.decision is not None and control.decision.runs


def _end_of_generation(ctx: RunContext) -> tuple[MemberEnd, str, int | None]:
    """Return how the generation ended on this node, a sentence about that end, and the time of the failure
    (ms UTC)."""
    if is_unstarted(ctx) and ctx.reason is not None:
        return MemberEnd(outcome=ctx.reason.outcome, ended_s=ctx.clock.monotonic()), ctx.reason.message, None
    # Imported here, because this module is not needed before the benchmark starts.
    from bai_agent.phases.root_cause import failed_at, judge_end, stopped_at

    ended = read_exit(ctx.rundir) or RunEnd(lost=True)
    outcome, sentence, cause = judge_end(ctx, ended, quote=ctx.may_quote)
    # The age is computed from the time of day, because an earlier agent possibly saw the end. The age cannot
    # be negative, even if the clock was set back since.
    ago_s = max(0.0, ctx.clock.time() - ended.time / 1000) if ended.time is not None else 0.0
    # The exit code and signal of the failed process are used, because a launcher exits with a code of its
    # own.
    failed = ended if cause is None or cause.code is cause.signal is None else cause
    end = MemberEnd(
        outcome=outcome,
        code=failed.code,
        signal=failed.signal,
        ended_s=ctx.clock.monotonic() - ago_s,
    )
    return end, sentence, failed_at(ended, cause, stopped=stopped_at(ctx))


def _observation(ctx: RunContext, end: MemberEnd, ledger: Ledger) -> GenerationObservation:
    limit = ctx.job.limits.max_runtime
    return GenerationObservation(
        now_s=ctx.clock.monotonic(),
        running_s=seconds_since_first(ctx.rundir, now=ctx.clock.time),
        max_runtime_s=limit.total_seconds() if limit is not None else None,
        members=[Member(node=ctx.node.rank, end=end)],
        ledger=ledger,
    )


def _out_of_time(ctx: RunContext, sentence: str) -> StopReason:
    limit = ctx.job.limits.max_runtime or timedelta()
    message = f"The benchmark did not succeed within limits.max_runtime ({format_duration(limit)})."
    return StopReason(Outcome.MAX_RUNTIME, f"{message} {sentence}")


def _stop(ctx: RunContext, reason: StopReason) -> NoReturn:
    """End the run while no generation runs. Raises RunEndedError."""
    ctx.between_generations = True
    raise RunEndedError(reason)


def _tell(ctx: RunContext, outcome: str, message: str, pause_s: float) -> None:
    """Add an event which says that the benchmark failed and will be restarted, unless it was added before."""
    generation = ctx.rundir.generation + 1
    if any(each.generation == generation for each in ctx.events.of(RestartEvent)):
        return
    ctx.events.add(
        RestartEvent(
            generation=generation,
            max_restarts=ctx.job.restart_policy.max_restarts,
            backoff_seconds=pause_s,
            outcome=outcome,
            message=message,
        )
    )
    # The reason that ended this generation is cleared, because it must not end the next generation.
    ctx.reason = None
    ctx.watch.end_generation()


def _begin(ctx: RunContext, decision: StartGeneration) -> None:
    """Write the decision to the run directory of the next generation, and begin that generation."""
    rundir = ctx.rundir.of_generation(ctx.rundir.generation + 1)
    write_decision(rundir, decision)
    ctx.begin_generation(rundir)
    if ctx.monitor is not None and ctx.monitor.generations is not None:
        ctx.monitor.generations.begin(rundir.generation, decision.ledger)
    # The previous generation has possibly used up the reserved disk space.
    reserve_space(rundir)


def _stop_again(ctx: RunContext) -> None:
    """Raise RunEndedError if an earlier agent ended the run between generations."""
    table = read_json(ctx.rundir.end)
    if table is None:
        return
    stopped = checked(_Stopped, table, where=str(ctx.rundir.end))
    if stopped.outcome is not None:
        _stop(ctx, StopReason(Outcome(stopped.outcome), stopped.sentence))
