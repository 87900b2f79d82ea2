"""Writes the result of a run, `result.json`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bai_agent.benchmark.environment import find_user, scripts_folder, working_folder, workspaces
from bai_agent.benchmark.state import read_exit
from bai_agent.decode import checked
from bai_agent.errors import RecordError, SecretError, SetupError, StoreError
from bai_agent.generations.decision_file import read_ledger
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Buffering
from bai_agent.job.job_result import job_result
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import COORDINATOR
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import (
    AgentEvent,
    DeliveryEvent,
    ExtractionEnd,
    ExtractionEvent,
    GitCommit,
    NeighbourEvent,
    NodeOutcome,
    OutcomeEvent,
    OwnUsage,
    ProcessUsage,
    RunEnd,
    WarningEvent,
    as_table,
)
from bai_agent.job.repeats import read_repeats
from bai_agent.job.run_directory import (
    RunDir,
    make_folder,
    make_room_for_result,
    now_ms,
    read_job_result,
    read_json,
    write_json,
)
from bai_agent.job.store import JobStore
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.machine.colocated_jobs import neighbour_warnings
from bai_agent.nodes.members_file import is_first_member
from bai_agent.phases.artifacts import ArtifactSummary, keep_artifacts
from bai_agent.phases.generation_history import generation_outcomes, has_run
from bai_agent.phases.prepare import secrets_of
from bai_agent.phases.root_cause import failed_at, generation_begin, judge_end, read_end, stopped_at
from bai_agent.phases.series import repeat_here, repeat_outcomes, series_end, series_warnings
from bai_agent.phases.transport import transports_in
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.clock import call_with_deadline
from bai_agent.shim.proc import own_usage
from bai_agent.strategy.failure import Cause
from bai_agent.strategy.launch import Role

if TYPE_CHECKING:
    from bai_agent.peers.elastic_monitor import ElasticMonitor
    from bai_agent.sinks.job_store.uploader import StoreUploader

log = logging.getLogger(__name__)

_OWN_LEVELS = 2
"""Depth of the result's tables down to which bai itself chose the keys, so that the keys are not redacted.
The benchmark chose the keys of deeper tables."""

_LINE_SECONDS = 0.75e-6
"""Time that a Python benchmark takes to write one line with a separate system call (seconds; measured by
benchmarks/overhead.py)."""

_LINE_SHARE = 0.01

_LIVE_SECONDS = 2.0
"""Shorter runs get no warning that the output came in blocks (seconds)."""

_RESULT_SECONDS = 5.0
"""Time between the end of the artifacts' upload and the machine's termination, if the time of the termination
is known (seconds). This time is needed to write the result."""

_LAST_LINES = 20


def write_result(ctx: RunContext) -> Outcome:
    """Save the artifacts, write `result.json` in the run directory, and return the outcome."""
    make_folder(ctx.rundir.path, private=ctx.rundir.path)  # the benchmark may have deleted it
    outcome = _node_outcome(ctx)
    git = GitCommit(**vars(ctx.job.git)) if ctx.job.git else None
    result = job_result(ctx.job.job.id, [outcome], git=git, whole=ctx.others is None)
    if ctx.others is not None:
        # Imported here, so that the import does not delay the end of other runs.
        from bai_agent.phases.gang_failure import result_of_all

        if (of_all := result_of_all(ctx, outcome, git=git)) is not None:
            result = of_all
            write_json(ctx.rundir.job_result, as_table(result))
    make_room_for_result(ctx.rundir)
    ctx.events.add(OutcomeEvent(outcome=result.outcome, exit_code=result.exit_code, sentence=result.sentence))
    write_json(ctx.rundir.result, as_table(result))
    return Outcome(result.outcome)


def _node_outcome(ctx: RunContext) -> NodeOutcome:
    """Save the artifacts, and return the outcome of this node, without secrets."""
    artifacts = _keep_artifacts(ctx)
    hidden = _why_nothing_is_quoted(ctx)
    if hidden is not None:
        ctx.warn(f"The end of the benchmark's output is not in the result: {hidden}.")
    ended = read_exit(ctx.rundir)
    extracted = _read_extraction(ctx.rundir)
    outcome, sentence, cause = _judge(ctx, ended, extracted, quote=hidden is None)
    last = _last_lines(ctx, cause) if hidden is None else []
    if hidden is not None and ended is not None and ended.exec_error is not None:
        # The error message quotes the command, which can contain expanded secrets.
        sentence = outcome.sentence
        ended = replace(ended, exec_error={**ended.exec_error, "message": sentence})
    table = {
        "rank": ctx.node.rank,
        "outcome": outcome.value,
        "sentence": sentence,
        "benchmark": as_table(ended) if ended is not None else None,
        "phases": {**ctx.events.finished_phases(), **ctx.cut_short},
        "metrics": as_table(extracted) if extracted is not None else None,
        "kafka": _kafka(ctx),
        "last_lines": last,
        "artifacts": {"files": artifacts.files, "bytes": artifacts.bytes},
        "started": ctx.events.seen[0].time,
        "failed": None if outcome is Outcome.SUCCEEDED else failed_at(ended, cause, stopped=stopped_at(ctx)),
        "ended": now_ms(),
        "seconds": ctx.seconds_since("prepare"),
        "warnings": _warnings(ctx, ended or RunEnd(), extracted or ExtractionEnd()),
        "serves": ctx.role is Role.SERVE,
        "is_server": ctx.job.is_server(ctx.node.rank),
        "transports": transports_in(ctx) or None,
    }
    # A secret can be a common word, such as a user's name, so the outcome's value is restored after the
    # redaction.
    redacted = ctx.redactor.redact_all(table, own_levels=_OWN_LEVELS) | {"outcome": outcome.value}
    if repeat_here(ctx) is not None:
        redacted["repeats"] = [as_table(each) for each in repeat_outcomes(read_repeats(ctx.rundir.repeats))]
    if ctx.job.has_generations:
        headlines = (extracted.generations if extracted is not None else None) or {}
        redacted["generations"] = [
            as_table(replace(each, headlines=headlines.get(str(each.generation), {})))
            for each in generation_outcomes(ctx, quote=hidden is None)
        ]
    if ctx.job.checkpoint is not None:
        from bai_agent.checkpoint.periodic import checkpoint_summary

        redacted["checkpoints"] = as_table(checkpoint_summary(ctx))
    redacted["own_usage"] = as_table(_own_usage(ctx, ended or RunEnd(), extracted))
    return checked(NodeOutcome, redacted, where="this node's outcome")


def _read_extraction(rundir: RunDir) -> ExtractionEnd | None:
    """Return the content of `extracted.json`. None if the file is missing or malformed; an error in the file
    is logged."""
    table = read_json(rundir.extracted)
    try:
        return None if table is None else checked(ExtractionEnd, table, where=str(rundir.extracted))
    except RecordError as error:
        log.warning("%s", error)
        return None


def _own_usage(ctx: RunContext, ended: RunEnd, extracted: ExtractionEnd | None) -> OwnUsage:
    """Return the CPU time and memory that bai's programs used. Each program reports how much it used."""
    # The usage of an earlier agent that was killed is unknown.
    agents = len(ctx.events.of(AgentEvent))
    extractor = extracted.own_usage if extracted is not None else None
    if extracted is None:
        from bai_agent.metrics.checkpoint import usage_so_far

        if (so_far := usage_so_far(ctx.rundir.extractor_offset)) is not None:
            extractor = replace(so_far, at_least=True)
    return OwnUsage(
        rank=ctx.node.rank,
        cpus=os.cpu_count(),
        benchmark_seconds=ended.wall_seconds,
        agent=ProcessUsage(**own_usage(), at_least=agents > 1),
        extractor=extractor,
        shim=ended.own_usage,
    )


def publish_result(
    job: Job,
    rundir: RunDir,
    record: JobRecord | None,
    uploader: StoreUploader | None,
    *,
    rank: int,
    deadline: float,
) -> None:
    """Upload the rest of this node's record, and then the job's result if this node writes the result. The
    uploads end at `deadline` (`time.monotonic()`).

    An elastic job can continue without its first node. Therefore, the node that is the leader at the job's
    end writes the result.
    """
    is_first = rank == 0 and not job.is_elastic
    if uploader is not None:
        if not uploader.publish(deadline, is_first=is_first):
            log.error("the result did not reach the job store in time")
    elif record is not None and isinstance(record.store, DirectoryStore):
        try:
            if (result := read_job_result(rundir, is_first=is_first)) is not None:
                record.store.put(record.key("result.json"), result, if_absent=True)
        except StoreError:
            log.exception("the result could not be written to the job store")


def _judge(
    ctx: RunContext, left: RunEnd | None, extracted: ExtractionEnd | None, *, quote: bool
) -> tuple[Outcome, str, Cause | None]:
    """Return this node's outcome, a sentence about the outcome, and the process that failed first, if any.

    quote: whether the sentence may quote the benchmark's output. A missing required metric does not change
    this outcome. The metrics of all nodes are checked together later.
    """
    outcome, sentence, cause = _judge_end(ctx, left, extracted, quote=quote)
    if left is not None:
        outcome, sentence = series_end(ctx, left, outcome, sentence, cause=cause)
    if restarts := read_ledger(ctx.rundir).restarts:
        times = "once" if restarts == 1 else f"{restarts} times"
        sentence = f"{sentence.rstrip('.')} (restarted {times})."
    return outcome, sentence, cause


def _judge_end(
    ctx: RunContext, left: RunEnd | None, extracted: ExtractionEnd | None, *, quote: bool
) -> tuple[Outcome, str, Cause | None]:
    if left is None:
        reason = ctx.reason
        if reason is None:
            return Outcome.LOST, Outcome.LOST.sentence, None
        return reason.outcome, reason.message, None
    if ctx.between_generations and ctx.reason is not None:
        return ctx.reason.outcome, ctx.reason.message, None
    outcome, sentence, cause = judge_end(ctx, left, quote=quote)
    if outcome is Outcome.SUCCEEDED and extracted is None and not _ran_out_of_time(ctx):
        sentence = "The benchmark finished successfully, but its metrics could not be extracted; agent.log tells why."
        return Outcome.AGENT_ERROR, sentence, None
    return outcome, sentence, cause


def _ran_out_of_time(ctx: RunContext) -> bool:
    """Return whether the extractor was still working at its deadline."""
    ends = ctx.events.of(ExtractionEvent)
    return bool(ends) and not ends[-1].stalled


def _keep_artifacts(ctx: RunContext) -> ArtifactSummary:
    if not ctx.job.output.artifacts or not has_run(ctx):
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
                # A node that left an elastic job early possibly never had a benchmark process that saves
                # files.
                expected=ctx.elastic is None or _is_at_end(ctx.elastic),
            )
        return kept

    kept = call_with_deadline(keep, over=over, name="artifacts") or ArtifactSummary(
        0, 0, ("No time was left to keep all artifacts.",)
    )
    for warning in kept.warnings:
        ctx.warn(warning)
    return kept


def _artifacts_prefix(ctx: RunContext) -> str:
    """Return the key prefix of this node's artifacts. In a job of several nodes, each node has its own
    folder."""
    prefix = "artifacts/" if ctx.record is None else ctx.record.key("artifacts/")
    if ctx.elastic is not None:
        # The artifacts of an elastic job are those of the first member of its last generation.
        is_of_job = _is_at_end(ctx.elastic) and is_first_member(ctx)
        return prefix if is_of_job else f"{prefix}node-{ctx.node.rank}/"
    return prefix if ctx.job.strategy.nodes == 1 else f"{prefix}rank-{ctx.node.rank}/"


def _is_at_end(elastic: ElasticMonitor) -> bool:
    """Return whether this node is a member of the last generation."""
    newest = elastic.newest
    goes_on = newest is not None and newest.word.runs and newest.number != elastic.at
    return elastic.begun is not None and elastic.at == elastic.begun[0] and not goes_on


def _kafka(ctx: RunContext) -> dict[str, Any] | None:
    for event in reversed(ctx.events.of(DeliveryEvent)):
        if event.sink == "Kafka":
            return {"delivered": event.delivered, "undelivered": event.undelivered, "error": event.error}
    return None


def _warnings(ctx: RunContext, ended: RunEnd, extracted: ExtractionEnd) -> list[str]:
    warnings = [each.message for each in ctx.events.of(WarningEvent)]
    warnings += neighbour_warnings(ctx.events.of(NeighbourEvent))
    if ended.oom and ended.code == 0:
        warnings.append(
            "The kernel killed a process of the benchmark because memory ran out, though the benchmark succeeded."
        )
    if ended.left_behind and not ended.lost and ended.stop is None:
        warnings.append(_left_behind(ended.left_behind, ended.left_behind_names or {}))
    # Only the coordinator decides how many runs a series has, so only it warns about them.
    repeat = repeat_here(ctx) if ctx.node.rank == COORDINATOR else None
    if repeat is not None and ended.code == 0 and ended.stop is None:
        warnings += series_warnings(repeat, read_repeats(ctx.rundir.repeats), ctx.rundir)
    share = _LINE_SECONDS * extracted.lines / (ended.wall_seconds or float("inf"))
    if ctx.runs_python and ctx.job.benchmark.buffering is Buffering.LINE and share > _LINE_SHARE:
        warnings.append(
            f"The benchmark printed so much that writing each line by itself took about {share:.0%} of its time; "
            '[output] buffering = "timed" avoids that.'
        )
    is_long = (ended.wall_seconds or 0) >= _LIVE_SECONDS
    if ctx.static_program and ctx.writes_blocks and is_long and extracted.lines > 1:
        warnings.append(
            f"The benchmark's {extracted.lines:,} lines were written in blocks or at its end, so no metric was live: "
            f"{ctx.static_program} is a static program, on which [output] buffering has no effect. If it is C or C++, "
            "have it call setvbuf(stdout, NULL, _IOLBF, 0) or fflush(stdout)."
        )
    return list(dict.fromkeys(warnings))


def _left_behind(count: int, names: Mapping[str, int]) -> str:
    listed = ", ".join(name if times == 1 else f"{name} ({times})" for name, times in names.items())
    which = f": {listed}{', …' if sum(names.values()) < count else ''}" if listed else ""
    was = "1 process of the benchmark was" if count == 1 else f"{count} processes of the benchmark were"
    return (
        f"{was} still running after the benchmark's end, and {'was' if count == 1 else 'were'} ended{which}. "
        "Output and values emitted after the benchmark's end are not counted."
    )


def _why_nothing_is_quoted(ctx: RunContext) -> str | None:
    """Return why the benchmark's output cannot be quoted without the job's secrets; None if the output can be
    quoted."""
    if ctx.may_quote or (read_exit(ctx.rundir) is None and not _has_content(ctx.rundir.kept_output)):
        return None
    # If an earlier agent started the benchmark, this agent has not read the secrets yet.
    deadline = ctx.drain_deadline()
    why = "no time was left to look up the secrets that the output may contain"
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
    """Return the last lines of the benchmark's output, without lines of its launcher. Return the failed
    process's exception instead, if the last lines do not contain it."""
    text = read_end(ctx.rundir.kept_output, ctx.redactor, begin=generation_begin(ctx))
    if cause is not None and cause.printed is not None:
        text = cause.printed
    # The lines are redacted again, because a secret can appear as a whole only after cursor movements are
    # applied.
    from bai_agent.metrics.search.terminal import last_lines

    lines = [ctx.redactor.redact(line) for line in last_lines(text, _LAST_LINES)]
    if cause is not None and cause.traceback and cause.traceback[-1] not in lines:
        return list(cause.traceback[-_LAST_LINES:])
    return lines
