"""How a job ended whose agent could not say: why its machines are gone, and the `result.json` that is written on their behalf.

Why they are gone is read from EC2's StateReason and the end of the console output. StateReason codes:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from bai_agent.job.durations import format_duration
from bai_agent.job.job_result import sentence_of_node
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import ArtifactCount, GitCommit, JobResult, NodeOutcome, as_table
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import now_ms
from bai_agent.metrics.terminal import last_lines
from executor.backends.ec2.console import Console
from executor.backends.ec2.instances import Instance
from executor.records.follower import events_of, tail_position
from executor.records.node_status import node_outcomes
from executor.records.reading import result_of
from executor.records.run_state import RunState

_LAST_BYTES = 65536
_LAST_LINES = 20
_OWN_FAILURES = {each.value for each in Outcome} - {
    Outcome.SUCCEEDED.value,
    Outcome.INTERRUPTED.value,
    Outcome.PEER_FAILED.value,
    Outcome.PEER_LOST.value,
}
"""Outcomes of a node that are not what its machine's end, or another node's, made of it."""

_BY_ITSELF = "Client.InstanceInitiatedShutdown"
_BY_SOMEBODY = ("Client.UserInitiatedShutdown", "Client.UserInitiatedHibernate", "Client.InstanceTerminated")

_AT_LAUNCH = {
    "Server.InsufficientInstanceCapacity": (
        Outcome.CAPACITY,
        "try again later, or with another instance type or more subnets",
    ),
    "Client.VolumeLimitExceeded": (
        Outcome.QUOTA,
        "the account's limit of EBS storage is reached; delete volumes or have it raised in Service Quotas",
    ),
    "Client.InternalError": (
        Outcome.LAUNCH_FAILED,
        "an encrypted volume whose KMS key these credentials may not use ends so; check the AMI's and the account's "
        "default encryption key",
    ),
    "Client.InvalidSnapshot.NotFound": (
        Outcome.LAUNCH_FAILED,
        "a snapshot of the AMI or of a mapping does not exist; check the AMI",
    ),
    "Server.InternalError": (Outcome.LAUNCH_FAILED, "run it again"),
}
"""Code → how the job ended, and what to do."""

_TAKEN = {
    "Server.SpotInstanceTermination": "EC2 took the spot machine back",
    "Server.SpotInstanceShutdown": "EC2 took the spot machine back",
    "Server.ScheduledStop": "AWS stopped the machine for maintenance",
}

_LAST_WORDS = {
    "no-settings": (Outcome.BOOT_FAILED, "the machine found no settings in its user data"),
    "no-python": (
        Outcome.BOOT_FAILED,
        "the AMI has no Python 3.10 or newer, and none could be installed; use another AMI or init_commands",
    ),
    "no-metadata": (Outcome.BOOT_FAILED, "the instance metadata service did not answer"),
    "fetch-failed": (
        Outcome.BOOT_FAILED,
        "the agent could not be fetched: S3 cannot be reached from its subnet; `bai doctor` looks at the routes",
    ),
    "fetch-denied": (
        Outcome.BOOT_FAILED,
        "S3 refused the agent's bundle: check the role of the instance profile (s3:GetObject on agent/*)",
    ),
    "fetch-missing": (
        Outcome.BOOT_FAILED,
        "the agent's bundle is not in the bucket; `bai bundle --upload` puts it there",
    ),
    "fetch-corrupt": (
        Outcome.BOOT_FAILED,
        "the agent's bundle is not what was submitted; `bai bundle --upload` renews it",
    ),
    "clock-wrong": (
        Outcome.BOOT_FAILED,
        "the machine's clock was wrong and nothing set it within 5 min; use an AMI with a time service (chrony)",
    ),
    "disk-full": (Outcome.DISK_FULL, "the machine's disk was full before the benchmark started"),
    "init-failed": (Outcome.BOOT_FAILED, "one of init_commands failed"),
    "bad-descriptor": (Outcome.BAD_DESCRIPTOR, "its agent refused the job descriptor"),
    "boot-hung": (Outcome.BOOT_FAILED, "the boot hung before the agent could be started"),
    "too-many-boots": (Outcome.LOST, "the machine rebooted too often"),
    "agent-crashed": (Outcome.AGENT_ERROR, "the agent crashed again and again"),
    "deadline": (Outcome.LOST, "the machine was still up at its deadline, and powered itself off"),
}
"""First word behind BAI-END → how the job ended, and what it means."""


@dataclass(frozen=True)
class InferredOutcome:
    """How a job ended whose agent could not write a result."""

    outcome: Outcome
    sentence: str
    rank: int = 0
    """Of the node that is the cause."""


def why_gone(
    left: Sequence[Instance],
    signs: Mapping[int, timedelta],
    consoles: Mapping[str, Console],
    *,
    expires: datetime | None,
    boot_limit: timedelta | None,
    cancelled: bool,
) -> InferredOutcome:
    """Return how a job ended whose machines `left` (not empty) are gone, or going, without a result.

    signs: ranks whose agents had reported. expires: when the job's machines had to be gone by themselves. boot_limit: after so
    long their agents had to have reported.
    """
    if cancelled:
        return InferredOutcome(
            Outcome.CANCELLED, "The job was cancelled, and its machines ended before it wrote a result."
        )
    # Where several have left, one of them was first, and the others were ended for it.
    culprit = min(left, key=lambda each: (each.reason_code in _BY_SOMEBODY, each.index in signs, each.index))
    inferred = _why_gone(
        culprit, consoles, reported=culprit.index in signs, expires=expires, boot_limit=boot_limit
    )
    return replace(inferred, rank=culprit.index)


def write_result(
    record: JobRecord, outcome: Outcome, sentence: str, *, attempt: int = 0, rank: int = 0
) -> bool:
    """Write that the job ended so; return False, and leave it, where it has a result. Raises StoreError.

    It has the keys of an agent's result (docs/run-directory.md), and `"on_behalf": true`. rank: the node that is the cause, whose last
    lines are the result's. A node of several that has said why it failed goes before: then that is the cause, and what is given a warning.
    """
    if result_of(record) is not None:
        return False
    state = RunState()
    for event in events_of(record.node(attempt=attempt)):
        state.apply(event)
    now = now_ms()
    warnings = list(state.warnings)
    kept = record.store.find(record.key("artifacts/"))
    job = record.job() if record.exists() else None
    last: list[str] = []
    if job is not None and not job.benchmark.secrets:
        last = _last_lines(record, attempt, rank)
    else:
        # Only its own machine can look the secrets up, and a result goes further than the log.
        warnings.append(
            "The last lines of the output are not in the result: secrets may stand in them, which are not known here. "
            "`bai logs` shows them."
        )
    if (failed := _first_failure(record, attempt)) is not None:
        warnings.append(sentence)
        outcome = Outcome(failed.outcome)
        sentence = sentence_of_node(failed.rank, outcome, failed.sentence)
        last = failed.last_lines or last
    result = JobResult(
        job_id=record.job_id,
        outcome=outcome.value,
        status=outcome.status.value,
        exit_code=int(outcome.exit_code),
        sentence=sentence,
        phases=state.finished,
        last_lines=last,
        artifacts=ArtifactCount(files=len(kept), bytes=sum(each.size for each in kept)),
        started=state.started if state.started is not None else now,
        ended=now,
        git=GitCommit(**vars(job.git)) if job is not None and job.git is not None else None,
        warnings=warnings,
        on_behalf=True,
    )
    table = Redactor().redact_all(as_table(result), own_levels=1)
    content = json.dumps(table, ensure_ascii=False).encode(errors="replace")
    return record.store.put(record.key("result.json"), content + b"\n", if_absent=True)


def _why_gone(
    culprit: Instance,
    consoles: Mapping[str, Console],
    *,
    reported: bool,
    expires: datetime | None,
    boot_limit: timedelta | None,
) -> InferredOutcome:
    code = culprit.reason_code
    if code.startswith("Server.Insufficient"):
        code = "Server.InsufficientInstanceCapacity"
    if not reported and code in _AT_LAUNCH:
        outcome, advice = _AT_LAUNCH[code]
        return InferredOutcome(
            outcome, f"EC2 ended {culprit.id} while it started: {_reason_of(culprit)}; {advice}."
        )
    if code in _TAKEN:
        return InferredOutcome(Outcome.INTERRUPTED, f"{_TAKEN[code]} ({culprit.id}, {_reason_of(culprit)}).")
    console = consoles.get(culprit.id, Console())
    if code in _BY_SOMEBODY and console.end in (None, "terminated"):
        if expires is not None and culprit.ended is not None and culprit.ended > expires:
            return InferredOutcome(
                Outcome.LOST,
                f"{culprit.id} hung: it was still there after its time was up and was terminated.{_last_step(console)}",
            )
        lived = culprit.ended - culprit.launched if culprit.ended and culprit.launched else timedelta()
        if not reported and boot_limit is not None and lived > boot_limit:
            return InferredOutcome(
                Outcome.BOOT_FAILED,
                f"{culprit.id} was terminated {format_duration(lived)} after its launch, and its agent had never reported."
                f"{_last_step(console)}",
            )
        return InferredOutcome(
            Outcome.INTERRUPTED, f"Somebody terminated {culprit.id}: {_reason_of(culprit)}."
        )
    if console.end is not None:
        return _by_last_word(culprit, console, reported)
    if code and code != _BY_ITSELF:
        return InferredOutcome(
            Outcome.LOST if reported else Outcome.LAUNCH_FAILED,
            f"EC2 ended {culprit.id}: {_reason_of(culprit)}.{_last_step(console)}",
        )
    if reported:
        return InferredOutcome(Outcome.LOST, f"{culprit.id} is off and left no result.{_last_step(console)}")
    return InferredOutcome(
        Outcome.BOOT_FAILED, f"{culprit.id} went off before its agent reported.{_last_step(console)}"
    )


def _by_last_word(culprit: Instance, console: Console, reported: bool) -> InferredOutcome:
    end, detail = console.end or "", f" ({console.detail})" if console.detail else ""
    if end == "done":
        return InferredOutcome(
            Outcome.STORE_FAILED,
            f"The agent on {culprit.id} ended with exit code {console.detail or 'unknown'}, and its result never "
            f"reached the store.{_last_step(console)}",
        )
    if end == "terminated":
        return InferredOutcome(Outcome.INTERRUPTED, f"{culprit.id} was shut down from outside{detail}.")
    outcome, meaning = _LAST_WORDS.get(end, (Outcome.LOST, f"the machine powered itself off: {end}"))
    if not reported and outcome is Outcome.LOST:
        outcome = Outcome.BOOT_FAILED
    return InferredOutcome(outcome, f"{culprit.id}: {meaning}{detail}.{_last_step(console)}")


def _reason_of(instance: Instance) -> str:
    message = instance.reason.strip().removesuffix(".")
    if message.startswith(f"{instance.reason_code}: "):
        message = message[len(instance.reason_code) + 2 :]
    if message and instance.reason_code:
        return f"{message} ({instance.reason_code})"
    return message or instance.reason_code or "EC2 does not say why"


def _last_step(console: Console) -> str:
    return f" Its last step: {console.last_step.removesuffix('.')}." if console.last_step else ""


def _first_failure(record: JobRecord, attempt: int) -> NodeOutcome | None:
    """Return how the node ended that failed first, by itself; None where none has said that it did."""
    failed = [each for each in node_outcomes(record, attempt=attempt) if each.outcome in _OWN_FAILURES]
    return min(failed, key=lambda each: (each.ended or 0, each.rank), default=None)


def _last_lines(record: JobRecord, attempt: int, rank: int) -> list[str]:
    node = record.node(rank, attempt=attempt)
    if not node.size("log"):
        return []
    position = tail_position(node, "log", _LAST_BYTES)
    text = node.read("log", position, limit=_LAST_BYTES).decode(errors="replace")
    return last_lines(text, _LAST_LINES)
