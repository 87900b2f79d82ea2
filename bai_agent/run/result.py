"""The last word about a run: `result.json`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bai_agent.aws.secrets import SecretError
from bai_agent.benchmark.environment import SetupError, find_user, scripts_folder, working_folder, workspaces
from bai_agent.benchmark.proc import own_usage
from bai_agent.benchmark.state import State, state
from bai_agent.errors import StoreError
from bai_agent.job.attempt import COORDINATOR
from bai_agent.job.descriptor import Buffering
from bai_agent.job.job_result import job_result
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import (
    AgentEvent,
    DeliveryEvent,
    ExtractionEvent,
    GitCommit,
    NeighbourEvent,
    NodeOutcome,
    OutcomeEvent,
    OwnUsage,
    ProcessUsage,
    StopEvent,
    WarningEvent,
    as_table,
    from_table,
)
from bai_agent.job.repeats import read_repeats
from bai_agent.job.reserved_space import make_room_for_result
from bai_agent.job.run_directory import RunDir, make_folder, now_ms, read_json, write_json
from bai_agent.job.store import JobStore
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.metrics.checkpoint import usage_so_far
from bai_agent.metrics.terminal import last_lines
from bai_agent.run.artifacts import ArtifactSummary, keep_artifacts
from bai_agent.run.call_with_deadline import call_with_deadline
from bai_agent.run.context import RunContext
from bai_agent.run.neighbours import neighbour_warnings
from bai_agent.run.one_fate import outcomes_of_all
from bai_agent.run.prepare import secrets_of
from bai_agent.run.repeats import repeat_here, repeat_outcomes, series_end, series_warnings
from bai_agent.run.root_cause import classify_end, failed_at, read_end, stopped_at
from bai_agent.run.transport import transports_in
from bai_agent.sinks.job_store.uploader import job_result_of
from bai_agent.strategy.failure import Cause
from bai_agent.strategy.launch import Role

if TYPE_CHECKING:
    from bai_agent.sinks.job_store.uploader import StoreUploader

log = logging.getLogger(__name__)

_OWN_LEVELS = 2
"""The result's tables whose keys we name, and the tables in them; deeper ones have names that the benchmark chose."""

_LINE_SECONDS = 0.75e-6
"""What a Python benchmark pays for a line that is written by itself (measured by benchmarks/overhead.py)."""

_LINE_SHARE = 0.01

_LIVE_SECONDS = 2.0
"""A shorter run is over before it matters when its lines came."""

_RESULT_SECONDS = 5.0
"""Kept for writing and publishing the result, where the machine is taken away at a known time."""

_LAST_LINES = 20


def write_result(ctx: RunContext) -> Outcome:
    """Keep the artifacts, write `result.json` here, and return the outcome."""
    make_folder(ctx.rundir.path, private=ctx.rundir.path)  # the benchmark may have taken it away
    outcome = _node_outcome(ctx)
    git = GitCommit(**vars(ctx.job.git)) if ctx.job.git else None
    result = job_result(ctx.job.job.id, [outcome], git=git, whole=ctx.monitor is None)
    if ctx.monitor is not None and (nodes := outcomes_of_all(ctx, outcome)) is not None:
        result = job_result(ctx.job.job.id, nodes, git=git, lost=ctx.monitor.lost)
        write_json(ctx.rundir.job_result, as_table(result))
    make_room_for_result(ctx.rundir)
    ctx.events.add(OutcomeEvent(outcome=result.outcome, exit_code=result.exit_code, sentence=result.sentence))
    write_json(ctx.rundir.result, as_table(result))
    return Outcome(result.outcome)


def _node_outcome(ctx: RunContext) -> NodeOutcome:
    """Keep the artifacts, and return how this node's part of the job ended, without secrets."""
    artifacts = _keep_artifacts(ctx)
    hidden = _why_nothing_is_quoted(ctx)
    if hidden is not None:
        ctx.warn(f"What the benchmark said at its end is not in the result: {hidden}.")
    benchmark = read_json(ctx.rundir.exit)
    extracted = read_json(ctx.rundir.extracted)
    outcome, sentence, cause = _judge(ctx, benchmark, extracted, quote=hidden is None)
    last = _last_lines(ctx, cause) if hidden is None else []
    if hidden is not None and benchmark is not None and benchmark.get("exec_error") is not None:
        # It names the command, into which secrets may have been expanded.
        benchmark["exec_error"]["message"] = sentence = outcome.sentence
    table = {
        "rank": ctx.node.rank,
        "outcome": outcome.value,
        "sentence": sentence,
        "benchmark": benchmark,
        "phases": {**ctx.events.finished_phases(), **ctx.cut_short},
        "metrics": extracted,
        "kafka": _kafka(ctx),
        "last_lines": last,
        "artifacts": {"files": artifacts.files, "bytes": artifacts.bytes},
        "started": ctx.events.seen[0].time,
        "failed": None
        if outcome is Outcome.SUCCEEDED
        else failed_at(benchmark, cause, stopped=stopped_at(ctx)),
        "ended": now_ms(),
        "warnings": _warnings(ctx, benchmark or {}, extracted or {}),
        "serves": ctx.role is Role.SERVE,
        "transports": transports_in(ctx) or None,
    }
    # A secret that is a word, such as a user's name, may stand in these as well.
    redacted = ctx.redactor.redact_all(table, own_levels=_OWN_LEVELS) | {"outcome": outcome.value}
    if repeat_here(ctx) is not None:
        redacted["repeats"] = [as_table(each) for each in repeat_outcomes(read_repeats(ctx.rundir.repeats))]
    redacted["own_usage"] = as_table(_own_usage(ctx, benchmark or {}, extracted))
    return from_table(NodeOutcome, redacted)


def _own_usage(ctx: RunContext, ended: Mapping[str, Any], extracted: Mapping[str, Any] | None) -> OwnUsage:
    """Return what our own programs took of this machine, each by its own account. ended: exit.json."""
    # Of an agent that was killed nothing is known but that there was one.
    agents = sum(isinstance(event, AgentEvent) for event in ctx.events.seen)
    if extracted is not None:
        extraction = extracted.get("own_usage")
    elif extraction := usage_so_far(ctx.rundir.extractor_offset):
        extraction = {**extraction, "at_least": True}
    return OwnUsage(
        rank=ctx.node.rank,
        cpus=os.cpu_count(),
        benchmark_seconds=ended.get("wall_seconds"),
        agent=ProcessUsage(**own_usage(), at_least=agents > 1),
        extractor=from_table(ProcessUsage, extraction) if extraction else None,
        shim=from_table(ProcessUsage, ended["own_usage"]) if ended.get("own_usage") else None,
    )


def publish_result(
    rundir: RunDir, record: JobRecord | None, uploader: StoreUploader | None, *, rank: int, deadline: float
) -> None:
    """Write the result to the job store, if it is ours to write, after all else that is not there yet.

    By `deadline` (of `time.monotonic()`) at the latest; what did not arrive is logged, and said by `result.json` as far as
    it knew.
    """
    if uploader is not None:
        if not uploader.publish(deadline):
            log.error("the result did not reach the job store in time")
    elif record is not None and isinstance(record.store, DirectoryStore):
        try:
            if (result := job_result_of(rundir, rank=rank)) is not None:
                record.store.put(record.key("result.json"), result, if_absent=True)
        except StoreError:
            log.exception("the result could not be written to the job store")


def _judge(
    ctx: RunContext, left: Mapping[str, Any] | None, extracted: Mapping[str, Any] | None, *, quote: bool
) -> tuple[Outcome, str, Cause | None]:
    """Return how the run ended on this node, a sentence with what is known about it, and which process failed first, if one did.

    left: exit.json. extracted: extracted.json. quote: whether the sentence may hold what the benchmark said. Whether a required
    metric is missing is judged over all nodes.
    """
    outcome, sentence, cause = _judge_end(ctx, left, extracted, quote=quote)
    if left is not None:
        outcome, sentence = series_end(ctx, left, outcome, sentence, cause=cause)
    return outcome, sentence, cause


def _judge_end(
    ctx: RunContext, left: Mapping[str, Any] | None, extracted: Mapping[str, Any] | None, *, quote: bool
) -> tuple[Outcome, str, Cause | None]:
    if left is None:
        reason = ctx.reason
        if reason is None:
            return Outcome.LOST, Outcome.LOST.sentence, None
        return reason.outcome, reason.message, None
    outcome, sentence, cause = classify_end(ctx, left, quote=quote)
    stops = [event for event in ctx.events.seen if isinstance(event, StopEvent)]
    if left["stop"] is not None and outcome is not Outcome.OOM and cause is None:
        return outcome, stops[0].message if stops else sentence, None
    if ctx.reason is not None and outcome in (Outcome.LOST, Outcome.INTERRUPTED, Outcome.KILLED):
        # We ended it, and not by way of an order to the shim.
        return ctx.reason.outcome, ctx.reason.message, None
    if outcome is Outcome.FAILED and stops and stops[-1].reason == Outcome.DISK_FULL:
        return Outcome.DISK_FULL, f"{stops[-1].message} {sentence}", cause
    if outcome is Outcome.SUCCEEDED and extracted is None and not _ran_out_of_time(ctx):
        sentence = "The benchmark finished successfully, but its metrics could not be extracted; agent.log tells why."
        return Outcome.AGENT_ERROR, sentence, None
    return outcome, sentence, cause


def _ran_out_of_time(ctx: RunContext) -> bool:
    """Return whether the extractor worked until its time was up."""
    ends = [event for event in ctx.events.seen if isinstance(event, ExtractionEvent)]
    return bool(ends) and not ends[-1].stalled


def _keep_artifacts(ctx: RunContext) -> ArtifactSummary:
    if not ctx.job.output.artifacts or state(ctx.rundir) is State.NOT_STARTED:
        return ArtifactSummary(0, 0, ())
    try:
        user = find_user(ctx.job.benchmark.user)
    except SetupError as error:
        ctx.warn(f"No artifacts were kept: {error}.")
        return ArtifactSummary(0, 0, ())
    deadline = time.monotonic() + ctx.job.limits.pull_timeout.total_seconds()
    store: JobStore = DirectoryStore(ctx.rundir.path) if ctx.record is None else ctx.record.store
    taken_away = ctx.watch.deadline()
    if taken_away is not None:
        deadline = min(deadline, taken_away - _RESULT_SECONDS)
    over = lambda: ctx.signals.received or time.monotonic() > deadline  # noqa: E731

    def keep() -> ArtifactSummary:
        kept = ArtifactSummary(0, 0, ())
        for job, own in workspaces(ctx.job, ctx.rundir):
            kept += keep_artifacts(
                ctx.job.output.artifacts,
                folder=working_folder(job, own, scripts=scripts_folder(job, own)),
                store=store,
                prefix=f"{_artifacts_prefix(ctx)}{own.arm}/" if own.arm else _artifacts_prefix(ctx),
                stopping=over,
                user=user,
            )
        return kept

    kept = call_with_deadline(keep, over=over, name="artifacts") or ArtifactSummary(
        0, 0, ("There was no time left to keep all artifacts.",)
    )
    for warning in kept.warnings:
        ctx.warn(warning)
    return kept


def _artifacts_prefix(ctx: RunContext) -> str:
    """Return below which key the artifacts of this node are kept: of several nodes, each has a folder of its own."""
    prefix = "artifacts/" if ctx.record is None else ctx.record.key("artifacts/")
    return prefix if ctx.job.strategy.nodes == 1 else f"{prefix}rank-{ctx.node.rank}/"


def _kafka(ctx: RunContext) -> dict[str, Any] | None:
    for event in reversed(ctx.events.seen):
        if isinstance(event, DeliveryEvent) and event.sink == "Kafka":
            return {"delivered": event.delivered, "undelivered": event.undelivered, "error": event.error}
    return None


def _warnings(ctx: RunContext, ended: Mapping[str, Any], extracted: Mapping[str, Any]) -> list[str]:
    warnings = [event.message for event in ctx.events.seen if isinstance(event, WarningEvent)]
    warnings += neighbour_warnings([event for event in ctx.events.seen if isinstance(event, NeighbourEvent)])
    if ended.get("oom") and ended.get("code") == 0:
        warnings.append(
            "The kernel killed a process of the benchmark because memory ran out, though the benchmark ended well."
        )
    if ended.get("left_behind") and not ended.get("lost") and ended.get("stop") is None:
        warnings.append(_left_behind(ended))
    # Of several nodes the coordinator decides how many runs there are.
    repeat = repeat_here(ctx) if ctx.node.rank == COORDINATOR else None
    if repeat is not None and ended.get("code") == 0 and ended.get("stop") is None:
        warnings += series_warnings(repeat, read_repeats(ctx.rundir.repeats), ctx.rundir)
    share = _LINE_SECONDS * extracted.get("lines", 0) / (ended.get("wall_seconds") or float("inf"))
    if ctx.runs_python and ctx.job.benchmark.buffering is Buffering.LINE and share > _LINE_SHARE:
        warnings.append(
            f"The benchmark printed so much that writing each line by itself took about {share:.0%} of its time; "
            '[output] buffering = "timed" avoids that.'
        )
    is_long = (ended.get("wall_seconds") or 0) >= _LIVE_SECONDS
    if ctx.static_program and ctx.writes_blocks and is_long and extracted.get("lines", 0) > 1:
        warnings.append(
            f"The benchmark's {extracted['lines']:,} lines came in blocks or at its end, so that no metric was live: "
            f"{ctx.static_program} is a static program, which [output] buffering does not reach. If it is C or C++, "
            "have it call setvbuf(stdout, NULL, _IOLBF, 0) or fflush(stdout)."
        )
    return list(dict.fromkeys(warnings))


def _left_behind(ended: Mapping[str, Any]) -> str:
    count, names = ended["left_behind"], ended.get("left_behind_names") or {}
    listed = ", ".join(name if times == 1 else f"{name} ({times})" for name, times in names.items())
    which = f": {listed}{', …' if sum(names.values()) < count else ''}" if listed else ""
    was = "1 process of the benchmark was" if count == 1 else f"{count} processes of the benchmark were"
    return (
        f"{was} still there after its end, and {'was' if count == 1 else 'were'} ended{which}. "
        "What was printed or emitted after that end counts as no metric."
    )


def _why_nothing_is_quoted(ctx: RunContext) -> str | None:
    """Return why nothing that the benchmark said can be shown without its secrets; None where it can."""
    if ctx.may_quote or (read_json(ctx.rundir.exit) is None and not _has_content(ctx.rundir.kept_output)):
        return None
    # It was another agent that started the benchmark.
    deadline = ctx.drain_deadline()
    why = "there was no time left to look up the secrets that may stand in them"
    try:
        call_with_deadline(lambda: secrets_of(ctx), over=lambda: time.monotonic() > deadline, name="secrets")
    except SecretError as error:
        why = str(error)
    return None if ctx.knows_secrets else why


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _last_lines(ctx: RunContext, cause: Cause | None) -> list[str]:
    """Return the benchmark's last lines: those before a launcher's own words, and the failed process's exception, if it is not in them."""
    text = read_end(ctx.rundir.kept_output, ctx.redactor)
    if cause is not None and cause.printed is not None:
        text = cause.printed
    # Redacted once more: what a cursor that was moved put together is known only now.
    lines = [ctx.redactor.redact(line) for line in last_lines(text, _LAST_LINES)]
    if cause is not None and cause.traceback and cause.traceback[-1] not in lines:
        return list(cause.traceback[-_LAST_LINES:])
    return lines
