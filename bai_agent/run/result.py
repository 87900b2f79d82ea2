"""The last word about a run: `result.json`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bai_agent.aws.secrets import SecretError
from bai_agent.benchmark import process
from bai_agent.errors import StoreError
from bai_agent.job.descriptor import Buffering
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.redaction import Redactor
from bai_agent.job.reserved_space import make_room_for_result
from bai_agent.job.run_directory import RunDir, make_folder, now_ms, read_json, write_json
from bai_agent.job.store import JobStore
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.job.tables import write_table
from bai_agent.metrics.tally import missing_sentence
from bai_agent.metrics.terminal import last_lines
from bai_agent.run.artifacts import ArtifactSummary, keep_artifacts
from bai_agent.run.call_with_deadline import call_with_deadline
from bai_agent.run.context import RunContext
from bai_agent.run.prepare import secrets_of

if TYPE_CHECKING:
    from bai_agent.sinks.job_store.uploader import StoreUploader

log = logging.getLogger(__name__)

VERSION = 1

_OWN_LEVELS = 2
"""The result's tables whose keys we name, and the tables in them; deeper ones have names that the benchmark chose."""

_LINE_SECONDS = 0.75e-6
"""What a Python benchmark pays for a line that is written by itself (measured by benchmarks/overhead.py)."""

_LINE_SHARE = 0.01

_RESULT_SECONDS = 5.0
"""Kept for writing and publishing the result, where the machine is taken away at a known time."""

_LAST_LINES = 20
_LAST_BYTES = 65536
_SECRET_BYTES = 65536
"""The largest secret that AWS Secrets Manager keeps
(https://docs.aws.amazon.com/secretsmanager/latest/userguide/reference_limits.html): one may reach into the last lines."""


def write_result(ctx: RunContext) -> Outcome:
    """Keep the artifacts, write `result.json` here, and return the outcome."""
    make_folder(ctx.rundir.path, private=ctx.rundir.path)  # the benchmark may have taken it away
    artifacts = _keep_artifacts(ctx)
    hidden = _why_nothing_is_quoted(ctx)
    if hidden is not None:
        ctx.warn(f"What the benchmark said at its end is not in the result: {hidden}.")
    last = _last_lines(ctx.rundir.kept_output, ctx.redactor) if hidden is None else []
    benchmark = read_json(ctx.rundir.exit)
    outcome, sentence = _judge(ctx)
    if hidden is not None and benchmark is not None and benchmark.get("exec_error") is not None:
        # It names the command, into which secrets may have been expanded.
        benchmark["exec_error"]["message"] = sentence = outcome.sentence
    extracted = read_json(ctx.rundir.extracted)
    result: dict[str, Any] = {
        "version": VERSION,
        "job_id": ctx.job.job.id,
        "outcome": outcome.value,
        "status": outcome.status.value,
        "exit_code": int(outcome.exit_code),
        "sentence": sentence,
        "benchmark": benchmark,
        "phases": ctx.events.finished_phases(),
        "metrics": extracted,
        "kafka": _kafka(ctx),
        "last_lines": last,
        "artifacts": {"files": artifacts.files, "bytes": artifacts.bytes},
        "started": ctx.events.seen[0]["time"],
        "ended": now_ms(),
        "git": write_table(ctx.job.git) if ctx.job.git else None,
        "warnings": _warnings(ctx, extracted or {}),
    }
    # A secret that is a word, such as a user's name, may stand in these as well.
    result = ctx.redactor.redact_all(result, own_levels=_OWN_LEVELS) | {
        key: result[key] for key in ("outcome", "status")
    }
    make_room_for_result(ctx.rundir)
    ctx.events.add(
        "outcome", outcome=outcome.value, exit_code=int(outcome.exit_code), sentence=result["sentence"]
    )
    write_json(ctx.rundir.result, result)
    return outcome


def publish_result(
    rundir: RunDir, record: JobRecord | None, uploader: StoreUploader | None, *, deadline: float
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
            record.store.put(record.key("result.json"), rundir.result.read_bytes(), if_absent=True)
        except StoreError:
            log.exception("the result could not be written to the job store")


def _judge(ctx: RunContext) -> tuple[Outcome, str]:
    """Return how the run ended, and a sentence with what is known about it."""
    left = read_json(ctx.rundir.exit)
    if left is None:
        reason = ctx.reason
        if reason is None:
            return Outcome.LOST, Outcome.LOST.sentence
        return reason.outcome, reason.message
    outcome, sentence = process.classify(left)
    told = [event for event in ctx.events.seen if event["type"] == "stop"]
    if left["stop"] is not None:
        return outcome, told[0]["message"] if told else sentence
    if ctx.reason is not None and outcome in (Outcome.LOST, Outcome.INTERRUPTED, Outcome.KILLED):
        # We ended it, and not by way of an order to the shim.
        return ctx.reason.outcome, ctx.reason.message
    if outcome is Outcome.FAILED and told and told[-1]["reason"] == Outcome.DISK_FULL:
        return Outcome.DISK_FULL, f"{told[-1]['message']} {sentence}"
    if outcome is not Outcome.SUCCEEDED:
        return outcome, sentence
    extracted = read_json(ctx.rundir.extracted)
    if extracted is None and not _ran_out_of_time(ctx):
        return (
            Outcome.AGENT_ERROR,
            "The benchmark finished successfully, but its metrics could not be extracted; agent.log tells why.",
        )
    # What was not searched may hold them: that we were slow is not the benchmark's failure.
    if extracted is not None and extracted["required_missing"] and not extracted["remaining_bytes"]:
        missing = missing_sentence(extracted["required_missing"], extracted["never_numbers"])
        return Outcome.REQUIRED_METRIC_MISSING, f"The benchmark ended well, but {missing}."
    return outcome, sentence


def _ran_out_of_time(ctx: RunContext) -> bool:
    """Return whether the extractor worked until its time was up."""
    told = [event for event in ctx.events.seen if event["type"] == "extraction"]
    return bool(told) and not told[-1]["stalled"]


def _keep_artifacts(ctx: RunContext) -> ArtifactSummary:
    if not ctx.job.output.artifacts or process.state(ctx.rundir) is process.State.NOT_STARTED:
        return ArtifactSummary(0, 0, ())
    deadline = time.monotonic() + ctx.job.limits.pull_timeout.total_seconds()
    store: JobStore = DirectoryStore(ctx.rundir.path) if ctx.record is None else ctx.record.store
    taken_away = ctx.watch.deadline()
    if taken_away is not None:
        deadline = min(deadline, taken_away - _RESULT_SECONDS)
    over = lambda: ctx.signals.received or time.monotonic() > deadline  # noqa: E731
    kept = call_with_deadline(
        lambda: keep_artifacts(
            ctx.job.output.artifacts,
            folder=process.working_folder(ctx.job, ctx.rundir, scripts=ctx.scripts),
            store=store,
            prefix="artifacts/" if ctx.record is None else ctx.record.key("artifacts/"),
            stopping=over,
        ),
        over=over,
        name="artifacts",
    ) or ArtifactSummary(0, 0, ("There was no time left to keep all artifacts.",))
    for warning in kept.warnings:
        ctx.warn(warning)
    return kept


def _kafka(ctx: RunContext) -> dict[str, Any] | None:
    for event in reversed(ctx.events.seen):
        if event["type"] == "delivery" and event.get("sink", "Kafka") == "Kafka":
            return {key: event[key] for key in ("delivered", "undelivered", "error")}
    return None


def _warnings(ctx: RunContext, extracted: Mapping[str, Any]) -> list[str]:
    told = [event["message"] for event in ctx.events.seen if event["type"] == "warning"]
    ended = read_json(ctx.rundir.exit) or {}
    if ended.get("oom") and ended.get("code") == 0:
        told.append(
            "The kernel killed a process of the benchmark because memory ran out, though the benchmark ended well."
        )
    if ended.get("left_behind") and not ended.get("lost") and ended.get("stop") is None:
        told.append(_left_behind(ended))
    share = _LINE_SECONDS * extracted.get("lines", 0) / (ended.get("wall_seconds") or float("inf"))
    if ctx.runs_python and ctx.job.benchmark.buffering is Buffering.LINE and share > _LINE_SHARE:
        told.append(
            f"The benchmark printed so much that writing each line by itself took about {share:.0%} of its time; "
            '[output] buffering = "timed" avoids that.'
        )
    if extracted.get("remaining_bytes") and extracted["required_missing"]:
        names = ", ".join(f'"{name}"' for name in extracted["required_missing"])
        told.append(f"These required metrics were not in the part of the output that was searched: {names}.")
    return list(dict.fromkeys([*told, *extracted.get("warnings", [])]))


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


def _last_lines(path: Path, redactor: Redactor) -> list[str]:
    """Return the end of the output, redacted before it is cut: a half of a secret is not known as one."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(0, size - _LAST_BYTES - _SECRET_BYTES)
            file.seek(start)
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return []
    text = redactor.redact(content.decode(errors="replace"))
    if start:
        text = text[-_LAST_BYTES:]
    # Once more: what a cursor that was moved put together is known only now.
    return [redactor.redact(line) for line in last_lines(text, _LAST_LINES)]
