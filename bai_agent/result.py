"""The last word about a run: `result.json`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bai_agent.artifacts import Kept, keep_artifacts
from bai_agent.aside import aside
from bai_agent.ballast import make_room_for_result
from bai_agent.benchmark import process
from bai_agent.errors import StoreError
from bai_agent.job import Buffering
from bai_agent.metrics.tally import missing_sentence
from bai_agent.metrics.terminal import last_lines
from bai_agent.outcome import Outcome
from bai_agent.prepare import secrets_of
from bai_agent.redaction import Redactor
from bai_agent.run_state import Run
from bai_agent.rundir import RunDir, make_folder, now_ms, read_json, write_json
from bai_agent.secrets import SecretError
from bai_agent.store import JobStore
from bai_agent.store.directory import DirectoryStore
from bai_agent.store.record import JobRecord
from bai_agent.tables import write_table

if TYPE_CHECKING:
    from bai_agent.push.store import StoreUploader

log = logging.getLogger(__name__)

VERSION = 1

_OWN_LEVELS = 2
"""The result's tables whose keys we name, and the tables in them; deeper ones have names that the benchmark chose."""

_LINE_SECONDS = 0.75e-6
"""What a Python benchmark pays for a line that is written by itself (measured by benchmarks/overhead.py)."""

_LINE_SHARE = 0.01

_LAST_LINES = 20
_LAST_BYTES = 65536
_SECRET_BYTES = 65536
"""The largest secret that AWS Secrets Manager keeps
(https://docs.aws.amazon.com/secretsmanager/latest/userguide/reference_limits.html): one may reach into the last lines."""


def write_result(this: Run) -> Outcome:
    """Keep the artifacts, write `result.json` here, and return the outcome."""
    make_folder(this.rundir.path, private=this.rundir.path)  # the benchmark may have taken it away
    artifacts = _keep_artifacts(this)
    hidden = _why_nothing_is_quoted(this)
    if hidden is not None:
        this.warn(f"What the benchmark said at its end is not in the result: {hidden}.")
    last = _last_lines(this.rundir.kept_output, this.redactor) if hidden is None else []
    benchmark = read_json(this.rundir.exit)
    outcome, sentence = _judge(this)
    if hidden is not None and benchmark is not None and benchmark.get("exec_error") is not None:
        # It names the command, into which secrets may have been expanded.
        benchmark["exec_error"]["message"] = sentence = outcome.sentence
    extracted = read_json(this.rundir.extracted)
    result: dict[str, Any] = {
        "version": VERSION,
        "job_id": this.job.job.id,
        "outcome": outcome.value,
        "status": outcome.status.value,
        "exit_code": int(outcome.exit_code),
        "sentence": sentence,
        "benchmark": benchmark,
        "phases": this.events.finished_phases(),
        "metrics": extracted,
        "kafka": _kafka(this),
        "last_lines": last,
        "artifacts": {"files": artifacts.files, "bytes": artifacts.bytes},
        "started": this.events.seen[0]["time"],
        "ended": now_ms(),
        "git": write_table(this.job.git) if this.job.git else None,
        "warnings": _warnings(this, extracted or {}),
    }
    # A secret that is a word, such as a user's name, may stand in these as well.
    result = this.redactor.redact_all(result, own_levels=_OWN_LEVELS) | {
        key: result[key] for key in ("outcome", "status")
    }
    make_room_for_result(this.rundir)
    this.events.add(
        "outcome", outcome=outcome.value, exit_code=int(outcome.exit_code), sentence=result["sentence"]
    )
    write_json(this.rundir.result, result)
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


def _judge(this: Run) -> tuple[Outcome, str]:
    """Return how the run ended, and a sentence with what is known about it."""
    left = read_json(this.rundir.exit)
    if left is None:
        reason = this.reason
        if reason is None:
            return Outcome.LOST, Outcome.LOST.sentence
        return reason.outcome, reason.message
    outcome, sentence = process.classify(left)
    told = [event for event in this.events.seen if event["type"] == "stop"]
    if left["stop"] is not None:
        return outcome, told[0]["message"] if told else sentence
    if this.reason is not None and outcome in (Outcome.LOST, Outcome.INTERRUPTED, Outcome.KILLED):
        # We ended it, and not by way of an order to the shim.
        return this.reason.outcome, this.reason.message
    if outcome is Outcome.FAILED and told and told[-1]["reason"] == Outcome.DISK_FULL:
        return Outcome.DISK_FULL, f"{told[-1]['message']} {sentence}"
    if outcome is not Outcome.SUCCEEDED:
        return outcome, sentence
    extracted = read_json(this.rundir.extracted)
    if extracted is None and not _ran_out_of_time(this):
        return (
            Outcome.AGENT_ERROR,
            "The benchmark finished successfully, but its metrics could not be extracted; agent.log tells why.",
        )
    # What was not searched may hold them: that we were slow is not the benchmark's failure.
    if extracted is not None and extracted["required_missing"] and not extracted["remaining_bytes"]:
        missing = missing_sentence(extracted["required_missing"], extracted["never_numbers"])
        return Outcome.REQUIRED_METRIC_MISSING, f"The benchmark ended well, but {missing}."
    return outcome, sentence


def _ran_out_of_time(this: Run) -> bool:
    """Return whether the extractor worked until its time was up."""
    told = [event for event in this.events.seen if event["type"] == "extraction"]
    return bool(told) and not told[-1]["stalled"]


def _keep_artifacts(this: Run) -> Kept:
    if not this.job.output.artifacts or not this.rundir.started.exists():
        return Kept(0, 0, ())
    deadline = time.monotonic() + this.job.limits.pull_timeout.total_seconds()
    store: JobStore = DirectoryStore(this.rundir.path) if this.record is None else this.record.store
    over = lambda: this.watch.hurried or time.monotonic() > deadline  # noqa: E731
    kept = aside(
        lambda: keep_artifacts(
            this.job.output.artifacts,
            folder=process.working_folder(this.job, this.rundir, scripts=this.scripts),
            store=store,
            prefix="artifacts/" if this.record is None else this.record.key("artifacts/"),
            stopping=over,
        ),
        over=over,
        name="artifacts",
    ) or Kept(0, 0, ("There was no time left to keep all artifacts.",))
    for warning in kept.warnings:
        this.warn(warning)
    return kept


def _kafka(this: Run) -> dict[str, Any] | None:
    for event in reversed(this.events.seen):
        if event["type"] == "delivery":
            return {key: event[key] for key in ("delivered", "undelivered", "error")}
    return None


def _warnings(this: Run, extracted: Mapping[str, Any]) -> list[str]:
    told = [event["message"] for event in this.events.seen if event["type"] == "warning"]
    ended = read_json(this.rundir.exit) or {}
    if ended.get("oom") and ended.get("code") == 0:
        told.append(
            "The kernel killed a process of the benchmark because memory ran out, though the benchmark ended well."
        )
    if ended.get("left_behind") and not ended.get("lost") and ended.get("stop") is None:
        told.append(_left_behind(ended))
    share = _LINE_SECONDS * extracted.get("lines", 0) / (ended.get("wall_seconds") or float("inf"))
    if this.runs_python and this.job.benchmark.buffering is Buffering.LINE and share > _LINE_SHARE:
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


def _why_nothing_is_quoted(this: Run) -> str | None:
    """Return why nothing that the benchmark said can be shown without its secrets; None where it can."""
    if this.may_quote or (read_json(this.rundir.exit) is None and not _has_content(this.rundir.kept_output)):
        return None
    # It was another agent that started the benchmark.
    deadline = this.drain_deadline()
    why = "there was no time left to look up the secrets that may stand in them"
    try:
        aside(lambda: secrets_of(this), over=lambda: time.monotonic() > deadline, name="secrets")
    except SecretError as error:
        why = str(error)
    return None if this.knows_secrets else why


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
