"""Infers why a job's machines are gone if their agents could not report the reason, and writes `result.json`
on the agents' behalf.

The reason is read from EC2's StateReason and the end of the console output. StateReason codes:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import Job
from bai_agent.job.job_result import sentence_of_node
from bai_agent.job.outcome import OWN_FAILURES, Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import (
    ArtifactCount,
    GenerationOutcome,
    GitCommit,
    JobResult,
    NodeOutcome,
    as_table,
)
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import now_ms
from bai_agent.job.schema.durations import format_duration
from bai_agent.light_dataclass import dataclass, replace
from bai_agent.metrics.search.terminal import last_lines
from executor.backends.ec2.console import Console
from executor.backends.ec2.instances import Instance
from executor.records.follower import tail_position
from executor.records.generations import generations_of
from executor.records.node_status import node_outcomes
from executor.records.reading import events_of, result_of
from executor.records.run_state import RunState

_LAST_BYTES = 65536
_LAST_LINES = 20

_BY_ITSELF = "Client.InstanceInitiatedShutdown"
_BY_SOMEBODY = ("Client.UserInitiatedShutdown", "Client.UserInitiatedHibernate", "Client.InstanceTerminated")

_LATER = "try again later, or with another instance type or more subnets"
_AT_LAUNCH = {
    "Server.InsufficientInstanceCapacity": (Outcome.CAPACITY, _LATER),
    "Client.VolumeLimitExceeded": (
        Outcome.QUOTA,
        "the account's limit of EBS storage is reached; delete volumes, or ask for more under Service Quotas",
    ),
    "Client.InternalError": (
        Outcome.LAUNCH_FAILED,
        "possibly these credentials may not use the KMS key of an encrypted volume; check the AMI's and the account's "
        "default encryption key",
    ),
    "Client.InvalidSnapshot.NotFound": (
        Outcome.LAUNCH_FAILED,
        "a snapshot of the AMI or of a block device mapping does not exist; check the AMI",
    ),
    "Server.InternalError": (Outcome.LAUNCH_FAILED, "run it again"),
}
"""Code of EC2's StateReason → the job's outcome, and the advice for the user."""

_TAKEN = {
    "Server.SpotInstanceTermination": "EC2 took the spot machine back",
    "Server.SpotInstanceShutdown": "EC2 took the spot machine back",
    "Server.ScheduledStop": "AWS stopped the machine for maintenance",
}

_LAST_WORDS = {
    "no-settings": "the machine found no settings in its user data",
    "no-python": "the AMI has no Python 3.10 or newer, and none could be installed; use another AMI or init_commands",
    "no-metadata": "the instance metadata service did not answer",
    "fetch-failed": "the agent could not be fetched: S3 cannot be reached from the machine's subnet; `bai doctor` checks the routes",
    "fetch-denied": "S3 refused the agent's bundle: check the role of the instance profile (s3:GetObject on agent/*)",
    "fetch-missing": "the agent's bundle is not in the bucket; `bai bundle --upload` uploads the bundle",
    "fetch-corrupt": "the agent's bundle differs from the submitted one; `bai bundle --upload` uploads the bundle again",
    "clock-wrong": "the machine's clock was wrong and nothing set it within 5 min; use an AMI with a time service (chrony)",
    "disk-full": "the machine's disk was full before the benchmark started",
    "init-failed": "one of init_commands failed",
    "bad-descriptor": "its agent refused the job descriptor",
    "boot-hung": "the boot hung before the agent could be started",
    "too-many-boots": "the machine rebooted too often",
    "agent-crashed": "the agent crashed repeatedly",
    "deadline": "the machine was still up at its deadline, and powered itself off",
}
"""First word after BAI-END on a machine's console → sentence for the user."""
_ALL_PYTHONS_KILLED = (
    "the Python process that ends the machine at its deadline was killed with each Python in turn, so the machine powered "
    "itself off; the benchmark must not kill processes of others"
)
"""Sentence for the user if a machine's last line is `no-python` although Python had been found on the machine
before."""
_OUTCOMES = {
    "disk-full": Outcome.DISK_FULL,
    "bad-descriptor": Outcome.BAD_DESCRIPTOR,
    "too-many-boots": Outcome.LOST,
    "agent-crashed": Outcome.AGENT_ERROR,
    "deadline": Outcome.LOST,
}
"""First word after BAI-END on a machine's console → the job's outcome. Words of `_LAST_WORDS` that are not in this
table mean BOOT_FAILED."""


@dataclass(frozen=True)
class InferredOutcome:
    """The inferred outcome of a job whose agent could not write a result."""

    outcome: Outcome
    sentence: str
    rank: int = 0
    """Rank of the node that caused the job's end."""


@dataclass(frozen=True, kw_only=True)
class _GoneMachine:
    """A machine that is gone or shutting down, with all known facts about the cause."""

    machine: Instance
    console: Console
    reported: bool
    """Whether the machine's agent had written a heartbeat."""
    expires: datetime | None
    boot_limit: timedelta | None

    @property
    def last_step(self) -> str:
        step = self.console.last_step
        return f" The machine's last step: {step.removesuffix('.')}." if step else ""

    @property
    def _had_python(self) -> bool:
        """Whether the guardian found Python on the machine earlier. The guardian writes on the console that it
        found Python. A heartbeat of the agent also proves that Python was found."""
        return self.reported or any(each.text.startswith("python ") for each in self.console.steps)

    @property
    def reason(self) -> str:
        code, message = self.machine.reason_code, self.machine.reason.strip().removesuffix(".")
        message = message.removeprefix(f"{code}: ") if code else message
        if message and code:
            return f"{message} ({code})"
        return message or code or "EC2 does not say why"

    @property
    def _lived(self) -> timedelta:
        ended, launched = self.machine.ended, self.machine.launched
        return ended - launched if ended and launched else timedelta()

    def infer(self) -> InferredOutcome:
        """Return the outcome that the first applicable rule infers."""
        for rule in (
            self._ended_at_launch,
            self._taken_back,
            self._terminated,
            self._last_word,
            self._by_ec2,
        ):
            if (found := rule()) is not None:
                return InferredOutcome(*found, rank=self.machine.index)
        outcome = Outcome.LOST if self.reported else Outcome.BOOT_FAILED
        how = "is off and left no result" if self.reported else "was off before its agent reported"
        return InferredOutcome(outcome, f"{self.machine.id} {how}.{self.last_step}", self.machine.index)

    def _ended_at_launch(self) -> tuple[Outcome, str] | None:
        code = self.machine.reason_code
        if code.startswith("Server.Insufficient"):
            code = "Server.InsufficientInstanceCapacity"
        if self.reported or code not in _AT_LAUNCH:
            return None
        outcome, advice = _AT_LAUNCH[code]
        return outcome, f"EC2 ended {self.machine.id} while it started: {self.reason}; {advice}."

    def _taken_back(self) -> tuple[Outcome, str] | None:
        taken = _TAKEN.get(self.machine.reason_code)
        return (Outcome.INTERRUPTED, f"{taken} ({self.machine.id}, {self.reason}).") if taken else None

    def _terminated(self) -> tuple[Outcome, str] | None:
        """Return the outcome if the machine was terminated from outside."""
        machine = self.machine
        if machine.reason_code not in _BY_SOMEBODY or self.console.end not in (None, "terminated"):
            return None
        if self.expires is not None and machine.ended is not None and machine.ended > self.expires:
            sentence = f"{machine.id} hung: the machine was still on after its deadline, and was terminated."
            return Outcome.LOST, sentence + self.last_step
        if not self.reported and self.boot_limit is not None and self._lived > self.boot_limit:
            when = f"{format_duration(self._lived)} after its launch"
            sentence = f"{machine.id} was terminated {when}, and its agent had never reported."
            return Outcome.BOOT_FAILED, sentence + self.last_step
        return Outcome.INTERRUPTED, f"Somebody terminated {machine.id}: {self.reason}."

    def _last_word(self) -> tuple[Outcome, str] | None:
        machine, end = self.machine, self.console.end
        if end is None:
            return None
        if end == "done":
            code = self.console.detail or "unknown"
            sentence = f"The agent on {machine.id} ended with exit code {code}, and its result never reached the store."
            return Outcome.STORE_FAILED, sentence + self.last_step
        if end == "no-python" and self._had_python:
            return Outcome.LOST, f"{machine.id}: {_ALL_PYTHONS_KILLED}.{self.last_step}"
        detail = f" ({self.console.detail})" if self.console.detail else ""
        if end == "terminated":
            return Outcome.INTERRUPTED, f"{machine.id} was shut down from outside{detail}."
        meaning = _LAST_WORDS.get(end, f"the machine powered itself off: {end}")
        return self._outcome_of(end), f"{machine.id}: {meaning}{detail}.{self.last_step}"

    def _outcome_of(self, end: str) -> Outcome:
        """Return the job's outcome for `end`, the reason in the guardian's last line."""
        outcome = _OUTCOMES.get(end, Outcome.BOOT_FAILED if end in _LAST_WORDS else Outcome.LOST)
        return Outcome.BOOT_FAILED if outcome is Outcome.LOST and not self.reported else outcome

    def _by_ec2(self) -> tuple[Outcome, str] | None:
        if self.machine.reason_code in ("", _BY_ITSELF):
            return None
        outcome = Outcome.LOST if self.reported else Outcome.LAUNCH_FAILED
        return outcome, f"EC2 ended {self.machine.id}: {self.reason}.{self.last_step}"


def why_gone(
    left: Sequence[Instance],
    signs: Mapping[int, timedelta],
    consoles: Mapping[str, Console],
    *,
    expires: datetime | None,
    boot_limit: timedelta | None,
    cancelled: bool,
) -> InferredOutcome:
    """Infer the outcome of a job that has no result and whose machines `left` (not empty) are gone or
    shutting down.

    signs: rank of each agent that has written a heartbeat → age of the last heartbeat. expires: time by which
    the machines had to power themselves off. boot_limit: time within which the machines' agents had to write
    their first heartbeat.
    """
    if cancelled:
        sentence = "The job was cancelled, and its machines ended before the job had a result."
        return InferredOutcome(Outcome.CANCELLED, sentence)
    # If several machines are gone, one machine's loss is taken as the cause of the others. Preferred are
    # machines that were not terminated by a request, then machines whose agents never wrote a heartbeat, then
    # low ranks.
    culprit = min(left, key=lambda each: (each.reason_code in _BY_SOMEBODY, each.index in signs, each.index))
    return _GoneMachine(
        machine=culprit,
        console=consoles.get(culprit.id, Console()),
        reported=culprit.index in signs,
        expires=expires,
        boot_limit=boot_limit,
    ).infer()


def write_result(
    record: JobRecord, outcome: Outcome, sentence: str, *, attempt: int = 0, rank: int = 0
) -> bool:
    """Write the job's result. If the job already has a result, change nothing and return False. Raises
    StoreError.

    The result has the keys of an agent's result (docs/run-directory.md), and `"on_behalf": true`. rank: the
    node that caused the job's end. The node's last output lines are copied into the result. If one of several
    nodes has reported its own failure, that failure is the cause, and `sentence` becomes a warning. In an elastic
    job that has begun, a node's own failure is not the cause, because the job continues without the failed node.
    """
    if result_of(record) is not None:
        return False
    state = RunState()
    state.apply_all(events_of(record.node(attempt=attempt)))
    job = record.job() if record.exists() else None
    warnings, last = list(state.warnings), []
    if job is not None and not job.benchmark.secrets:
        last = _last_lines(record, attempt, rank)
    else:
        # The result is written without the last lines, because only the job's own machines can look up the
        # secrets that must be redacted. A result is also copied to more places than the log.
        warnings.append(
            "The last lines of the output are not in the result, because they may contain secrets that are not known here. "
            "`bai logs` shows them."
        )
    # An elastic job that has begun continues without a failed node.
    has_begun = (
        job is not None and job.is_elastic and bool(AttemptRecord(record, attempt).control().generations)
    )
    if not has_begun and (failed := _first_failure(record, attempt)) is not None:
        warnings.append(sentence)
        outcome = Outcome(failed.outcome)
        sentence = sentence_of_node(failed.rank, outcome, failed.sentence)
        last = failed.last_lines or last
    now = now_ms()
    kept = record.store.find(record.key("artifacts/"))
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
        git=_commit(job),
        generations=_generations(record, outcome, sentence) if job is not None else None,
        warnings=warnings,
        on_behalf=True,
    )
    table = Redactor().redact_all(as_table(result), own_levels=1)
    content = json.dumps(table, ensure_ascii=False).encode(errors="replace")
    return record.store.put(record.key("result.json"), content + b"\n", if_absent=True)


def _generations(record: JobRecord, outcome: Outcome, sentence: str) -> list[GenerationOutcome] | None:
    """Return the generations of a job in the store, with the job's outcome for the last generation. None if
    the job has no generations."""
    found = list(generations_of(record, None))
    if found and not found[-1].sentence:
        found[-1] = replace(found[-1], outcome=outcome.value, sentence=sentence)
    return found or None


def _commit(job: Job | None) -> GitCommit | None:
    return GitCommit(**vars(job.git)) if job is not None and job.git is not None else None


def _first_failure(record: JobRecord, attempt: int) -> NodeOutcome | None:
    """Return the outcome of the node whose own failure came first; None if no node has reported a failure of
    its own."""
    failed = [each for each in node_outcomes(record, attempt=attempt) if each.outcome in OWN_FAILURES]
    return min(failed, key=lambda each: (each.ended or 0, each.rank), default=None)


def _last_lines(record: JobRecord, attempt: int, rank: int) -> list[str]:
    node = record.node(rank, attempt=attempt)
    if not node.size("log"):
        return []
    position = tail_position(node, "log", _LAST_BYTES)
    text = node.read("log", position, limit=_LAST_BYTES).decode(errors="replace")
    return last_lines(text, _LAST_LINES)
