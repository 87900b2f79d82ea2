"""Launches a job's instances: once, whatever dies or is repeated on the way.

`attempts/<n>/launch.json` holds the whole request before it is sent the first time; whoever repeats the launch sends that
request, once `executor/backends/ec2/launch/repeat.py` has found it to be the one that they would make themselves. `refused/<k>.json` says that
candidate k was definitely refused, so that a repeated launch does not try it again after another one was accepted. `launched.json` decides: it is written once, with the instances or with the refusal.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from bai_agent import __version__
from bai_agent.backoff import Backoff
from bai_agent.errors import BaiError, StoreError
from bai_agent.job.durations import format_duration
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import now_ms
from executor.backends.ec2.instances import instances_of_attempt, terminate_one
from executor.backends.ec2.launch.errors import ErrorClass, RetryAction, classify_error
from executor.backends.ec2.launch.launch_record import (
    LAUNCH_WINDOW,
    VERSION,
    attempt_key,
    read_decision,
    read_launch_table,
    read_refusal,
)
from executor.backends.ec2.launch.placement import Candidate
from executor.backends.ec2.launch.request import for_candidate
from executor.backends.ec2.session import FAILURES, AwsSession
from executor.backends.ec2.tags import VALUE_LIMIT, clean_text, tag_time
from executor.backends.ec2.verdict import write_result

log = logging.getLogger(__name__)

PATIENCE = 300.0
"""Seconds for which one candidate is asked again while there is no definite answer."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


class LaunchError(BaiError):
    """The launch was refused for good: nothing runs, and the job's result says so."""

    def __init__(self, sentence: str, outcome: Outcome) -> None:
        super().__init__(sentence)
        self.outcome = outcome


class UndecidedError(BaiError):
    """Nobody knows whether the job was launched; the same launch can be repeated, and launches it once."""


@dataclass(frozen=True, kw_only=True)
class LaunchFile:
    """`launch.json`: all that a repeated launch needs. Times are UTC, as in tags."""

    job_id: str
    attempt: int
    region: str
    candidates: tuple[Candidate, ...]
    request: Mapping[str, Any]
    """RunInstances' parameters without subnet and token; UserData is base64."""
    expires: str
    created: str
    boot_limit: int | None = None
    """Seconds after which a machine has given a sign of life, or has ended by itself."""
    token: str = ""
    """Made of all the rest, so that a repeat can tell whether it is this launch's own; see `sealed`."""
    bai: str = __version__
    """The version of `bai` that wrote it; another one may render the same job differently."""
    version: int = VERSION

    def sealed(self) -> LaunchFile:
        """Return this launch with its token."""
        table = json.dumps(self.as_table() | {"token": ""}, sort_keys=True)
        return replace(self, token=hashlib.sha256(table.encode()).hexdigest())

    def as_table(self) -> dict[str, Any]:
        """Return it as JSON values."""
        table = asdict(self)
        table["candidates"] = [{"subnet": each.subnet, "az": each.zone} for each in self.candidates]
        return table


@dataclass(frozen=True, kw_only=True)
class Launched:
    """The instances of an attempt, in the order of their ranks."""

    instances: tuple[str, ...]
    subnet: str
    zone: str


def write_launch(record: JobRecord, file: LaunchFile) -> LaunchFile:
    """Write `launch.json` unless there is one; return what stands there."""
    content = json.dumps(file.as_table(), ensure_ascii=False).encode() + b"\n"
    key = attempt_key(record, file.attempt, "launch.json")
    if record.store.put(key, content, if_absent=True):
        return file
    found = read_launch(record, attempt=file.attempt)
    if found is None:
        raise StoreError(f"{record.store.url}/{key} went away while it was read")
    return found


def read_launch(record: JobRecord, *, attempt: int = 0) -> LaunchFile | None:
    """Return what `launch.json` holds, or None. Raises StoreError, RecordError."""
    table = read_launch_table(record, attempt=attempt)
    if table is None:
        return None
    table["candidates"] = tuple(
        Candidate(subnet=each["subnet"], zone=each["az"]) for each in table["candidates"]
    )
    return LaunchFile(
        **{"bai": "", **{each.name: table[each.name] for each in fields(LaunchFile) if each.name in table}}
    )


def launch(
    record: JobRecord,
    file: LaunchFile,
    aws: AwsSession,
    *,
    deadman: timedelta,
    told: Callable[[str], None] = log.info,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
) -> Launched:
    """Launch what `file` says, or return what was launched by it before.

    deadman: how long a machine of the job may be on; nothing is launched that would be reaped before. `told` hears what is
    tried next.
    Raises LaunchError where it is refused for good (the job then has a result), UndecidedError where no definite answer came.
    """
    if (launched := decided_before(record, attempt=file.attempt)) is not None:
        return launched
    if stop := _overtaken(record):
        return _decide(record, file.attempt, aws, _refusal(stop))
    refusals: list[tuple[Candidate, ErrorClass]] = []
    for number, candidate in enumerate(file.candidates):
        if tag_time(now() + deadman) > file.expires:
            late = _refusal(_expired(file))
            return adopt(record, aws, attempt=file.attempt) or _decide(record, file.attempt, aws, late)
        if (before := read_refusal(record, number, attempt=file.attempt)) is not None:
            refusals.append((candidate, _meaning_of(before)))
            continue
        answer = _ask(file, candidate, aws, told=told, sleep=sleep, clock=clock)
        if not isinstance(answer, ErrorClass):
            return _decide(record, file.attempt, aws, _acceptance(answer, candidate))
        refusals.append((candidate, answer))
        if answer.next is RetryAction.STOP:
            break
        told(f"{candidate.zone}: {answer.sentence}")
        # Before the next one is asked: a launch that is repeated now must not find room here after all.
        content = json.dumps(
            {"outcome": answer.outcome.value, "code": answer.code, "sentence": answer.sentence}
        )
        key = attempt_key(record, file.attempt, f"refused/{number}.json")
        record.store.put(key, content.encode() + b"\n", if_absent=True)
    return _decide(record, file.attempt, aws, _refusal(_verdict(file, refusals)))


def refusal_of(record: JobRecord, *, attempt: int = 0) -> LaunchError | None:
    """Return why EC2 refused the job for good, where it did."""
    decided = read_decision(record, attempt=attempt)
    if decided is None or decided["instances"]:
        return None
    return LaunchError(str(decided["sentence"]).rstrip("."), Outcome(decided["outcome"]))


def expires_at(start: datetime, deadman: timedelta) -> str:
    """Return the time by which a machine submitted at `start` must be gone, as it stands in a tag.

    It may be launched for LAUNCH_WINDOW, and has the whole of `deadman` then.
    """
    return tag_time(start + LAUNCH_WINDOW + deadman)


def decided_before(record: JobRecord, *, attempt: int = 0) -> Launched | None:
    """Return the instances that `launched.json` names; None where nothing is decided. Raises LaunchError where it was refused."""
    decided = read_decision(record, attempt=attempt)
    return None if decided is None else _obey(record, attempt, decided)


def adopt(record: JobRecord, aws: AwsSession, *, attempt: int = 0) -> Launched | None:
    """Return the instances that EC2 shows of this attempt, and write them down; None where it shows none. Raises BaiError.

    Who launched them may have died before EC2's answer came. That none is shown proves nothing: EC2 is eventually consistent.
    """
    store = clean_text(record.store.url)[:VALUE_LIMIT]
    found = instances_of_attempt(aws.ec2(), record.job_id, attempt, store=store)
    if not found:
        return None
    # One launch is in one zone; of several, one that lives counts, and the others are surplus.
    zone = next((each.zone for each in found if each.living), found[0].zone)
    chosen = tuple(each.id for each in found if each.zone == zone)
    return _decide(record, attempt, aws, _acceptance(chosen, Candidate(subnet="", zone=zone)))


def _ask(
    file: LaunchFile,
    candidate: Candidate,
    aws: AwsSession,
    *,
    told: Callable[[str], None],
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> tuple[str, ...] | ErrorClass:
    """Ask one candidate until the answer is definite: instances, or a refusal."""
    client = aws.no_retry_client()
    request = for_candidate(file.request, candidate, file.token)
    deadline, backoff = clock() + PATIENCE, Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
    while True:
        try:
            found = client.run_instances(**request)["Instances"]
        except FAILURES as error:
            answer = classify_error(error)
        else:
            ranked = sorted(found, key=lambda each: each.get("AmiLaunchIndex", 0))
            return tuple(each.get("InstanceId", "") for each in ranked)
        if answer.next in (RetryAction.STOP, RetryAction.NEXT_SUBNET):
            return answer
        pause = backoff.next()
        if answer.next is RetryAction.GIVE_UP or clock() + pause > deadline:
            raise UndecidedError(
                f"whether {file.job_id} was launched is not known: {answer.sentence}. "
                f"Submit it again with --job-id {file.job_id}: it will run once"
            )
        told(f"{candidate.zone}: {answer.sentence}; asking again in {pause:.0f} s")
        sleep(pause)


def _overtaken(record: JobRecord) -> ErrorClass | None:
    """Return why nothing must be launched any more, where that is so."""
    if (result := record.result()) is not None:
        said = f"it has ended before: {result.get('sentence')}".rstrip(".")
        return ErrorClass(RetryAction.STOP, Outcome.LAUNCH_FAILED, "Ended", said)
    if record.cancelled():
        return ErrorClass(
            RetryAction.STOP, Outcome.CANCELLED, "Cancelled", "it was cancelled before it was launched"
        )
    return None


def _expired(file: LaunchFile) -> ErrorClass:
    """Return that it is too late: its machines would be reaped at `expires`, before they had the time that the job may take."""
    said = (
        f"it was submitted at {file.created} and not launched within {format_duration(LAUNCH_WINDOW)}; its machines must be "
        f"gone by {file.expires}, which is too early now. Submit it with a new job id"
    )
    return ErrorClass(RetryAction.STOP, Outcome.LAUNCH_FAILED, "Expired", said)


def _verdict(file: LaunchFile, refusals: Sequence[tuple[Candidate, ErrorClass]]) -> ErrorClass:
    _, last = refusals[-1]
    if last.next is RetryAction.STOP:
        return last
    kind = file.request.get("InstanceType")
    zones = ", ".join(dict.fromkeys(candidate.zone for candidate, _ in refusals))
    advice = "try later, take another instance type, or name more subnets"
    sentence = f"no zone had room for {kind} ({zones}); {advice}. {last.sentence}"
    return ErrorClass(RetryAction.STOP, Outcome.CAPACITY, last.code, sentence)


def _acceptance(instances: tuple[str, ...], candidate: Candidate) -> dict[str, Any]:
    return {"instances": list(instances), "subnet": candidate.subnet, "az": candidate.zone, "time": now_ms()}


def _refusal(why: ErrorClass) -> dict[str, Any]:
    return {
        "instances": [],
        "error": {"code": why.code, "message": why.sentence},
        "outcome": why.outcome.value,
        "sentence": f"{why.sentence[:1].upper()}{why.sentence[1:]}.",
        "time": now_ms(),
    }


def _decide(record: JobRecord, attempt: int, aws: AwsSession, wanted: dict[str, Any]) -> Launched:
    """Write how the launch came out, unless another has; then that holds, and instances of ours beside it are ended."""
    key = attempt_key(record, attempt, "launched.json")
    decided = wanted
    if not record.store.put(key, json.dumps(wanted, ensure_ascii=False).encode() + b"\n", if_absent=True):
        decided = read_decision(record, attempt=attempt) or wanted
        if surplus := sorted(set(wanted["instances"]) - set(decided["instances"])):
            log.warning(
                "%s was launched by somebody else as well; ending %s", record.job_id, ", ".join(surplus)
            )
            _end_surplus(aws, surplus)
    return _obey(record, attempt, decided)


def _end_surplus(aws: AwsSession, surplus: Sequence[str]) -> None:
    """Terminate instances that are nobody's; where that fails, whoever looks after the job next does it."""
    for instance_id in surplus:
        try:
            terminate_one(aws.ec2(), instance_id)
        except BaiError as error:
            log.warning("%s; `bai status` tries it again", error)


def _obey(record: JobRecord, attempt: int, decided: Mapping[str, Any]) -> Launched:
    if not decided["instances"]:
        outcome, sentence = Outcome(decided["outcome"]), str(decided["sentence"])
        write_result(record, outcome, sentence, attempt=attempt)
        raise LaunchError(sentence.rstrip("."), outcome)
    subnet, zone = decided.get("subnet") or "", decided.get("az") or ""
    return Launched(instances=tuple(decided["instances"]), subnet=subnet, zone=zone)


def _meaning_of(table: Mapping[str, Any]) -> ErrorClass:
    return ErrorClass(
        RetryAction.NEXT_SUBNET, Outcome(table["outcome"]), str(table["code"]), str(table["sentence"])
    )
