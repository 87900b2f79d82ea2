"""Launches a job's instances: once, whatever dies or is repeated on the way.

`attempts/<n>/launch.json` holds the whole request before it is sent the first time; whoever repeats the launch sends that
file. `refused/<k>.json` says that candidate k was definitely refused, so that a repeated launch does not try it again after
another one was accepted. `launched.json` decides: it is written once, with the instances or with the refusal.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta, timezone
from typing import Any

from bai_agent.errors import BaiError, StoreError
from bai_agent.outcome import Outcome
from bai_agent.rundir import now_ms
from bai_agent.store.record import JobRecord
from executor.ec2.errors import Meaning, Next, meaning
from executor.ec2.instances import terminate_one
from executor.ec2.launch_record import VERSION, attempt_key, read_decision, read_launch_table, read_refusal
from executor.ec2.placement import Candidate
from executor.ec2.request import for_candidate
from executor.ec2.session import FAILURES, Aws
from executor.ec2.tags import tag_time
from executor.ec2.verdict import write_result

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
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    expires: str
    created: str
    boot_limit: int | None = None
    """Seconds after which a machine has given a sign of life, or has ended by itself."""
    version: int = VERSION


@dataclass(frozen=True, kw_only=True)
class Launched:
    """The instances of an attempt, in the order of their ranks."""

    instances: tuple[str, ...]
    subnet: str
    zone: str


def write_launch(record: JobRecord, file: LaunchFile) -> LaunchFile:
    """Write `launch.json` unless there is one; return what stands there."""
    table = asdict(file)
    table["candidates"] = [{"subnet": each.subnet, "az": each.zone} for each in file.candidates]
    content = json.dumps(table, ensure_ascii=False).encode() + b"\n"
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
    return LaunchFile(**{each.name: table[each.name] for each in fields(LaunchFile) if each.name in table})


def launch(
    record: JobRecord,
    file: LaunchFile,
    aws: Aws,
    *,
    told: Callable[[str], None] = log.info,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
) -> Launched:
    """Launch what `file` says, or return what was launched by it before.

    Raises LaunchError where it is refused for good (the job then has a result), UndecidedError where no definite answer
    came; `told` hears what is tried next.
    """
    if (decided := read_decision(record, attempt=file.attempt)) is not None:
        return _obey(record, file, decided)
    if stop := _overtaken(record, file, now()):
        return _decide(record, file, aws, _refusal(stop))
    refusals: list[tuple[Candidate, Meaning]] = []
    for number, candidate in enumerate(file.candidates):
        if (before := read_refusal(record, number, attempt=file.attempt)) is not None:
            refusals.append((candidate, _meaning_of(before)))
            continue
        answer = _ask(file, candidate, aws, told=told, sleep=sleep, clock=clock)
        if not isinstance(answer, Meaning):
            return _decide(record, file, aws, _acceptance(answer, candidate))
        refusals.append((candidate, answer))
        if answer.next is Next.STOP:
            break
        told(f"{candidate.zone}: {answer.sentence}")
        # Before the next one is asked: a launch that is repeated now must not find room here after all.
        content = json.dumps(
            {"outcome": answer.outcome.value, "code": answer.code, "sentence": answer.sentence}
        )
        key = attempt_key(record, file.attempt, f"refused/{number}.json")
        record.store.put(key, content.encode() + b"\n", if_absent=True)
    return _decide(record, file, aws, _refusal(_verdict(file, refusals)))


def refusal_of(record: JobRecord, *, attempt: int = 0) -> LaunchError | None:
    """Return why EC2 refused the job for good, where it did."""
    decided = read_decision(record, attempt=attempt)
    if decided is None or decided["instances"]:
        return None
    return LaunchError(str(decided["sentence"]).rstrip("."), Outcome(decided["outcome"]))


def expires_at(start: datetime, deadman: timedelta) -> str:
    """Return the time by which a machine launched at `start` must be gone, as it stands in a tag."""
    return tag_time(start + deadman)


def _ask(
    file: LaunchFile,
    candidate: Candidate,
    aws: Aws,
    *,
    told: Callable[[str], None],
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> tuple[str, ...] | Meaning:
    """Ask one candidate until the answer is definite: instances, or a refusal."""
    client = aws.launcher()
    request = for_candidate(file.request, candidate, file.token)
    deadline, pause = clock() + PATIENCE, _FIRST_PAUSE
    while True:
        try:
            found = client.run_instances(**request)["Instances"]
        except FAILURES as error:
            answer = meaning(error)
        else:
            ranked = sorted(found, key=lambda each: each.get("AmiLaunchIndex", 0))
            return tuple(each.get("InstanceId", "") for each in ranked)
        if answer.next in (Next.STOP, Next.NEXT_SUBNET):
            return answer
        if answer.next is Next.GIVE_UP or clock() + pause > deadline:
            raise UndecidedError(
                f"whether {file.job_id} was launched is not known: {answer.sentence}. "
                f"Submit it again with --job-id {file.job_id}: it will run once"
            )
        told(f"{candidate.zone}: {answer.sentence}; asking again in {pause:.0f} s")
        sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _overtaken(record: JobRecord, file: LaunchFile, now: datetime) -> Meaning | None:
    """Return why nothing must be launched any more, where that is so."""
    if (result := record.result()) is not None:
        said = f"it has ended before: {result.get('sentence')}".rstrip(".")
        return Meaning(Next.STOP, Outcome.LAUNCH_FAILED, "Ended", said)
    if record.cancelled():
        return Meaning(Next.STOP, Outcome.CANCELLED, "Cancelled", "it was cancelled before it was launched")
    if tag_time(now) > file.expires:
        # A token is good for a day at least after its instances have gone; after that a second launch would be one.
        said = (
            f"it was to be launched on {file.created} and was not; its time is over. Submit it as a new job"
        )
        return Meaning(Next.STOP, Outcome.LAUNCH_FAILED, "Expired", said)
    return None


def _verdict(file: LaunchFile, refusals: Sequence[tuple[Candidate, Meaning]]) -> Meaning:
    _, last = refusals[-1]
    if last.next is Next.STOP:
        return last
    kind = file.request.get("InstanceType")
    zones = ", ".join(dict.fromkeys(candidate.zone for candidate, _ in refusals))
    advice = "try later, take another instance type, or name more subnets"
    sentence = f"no zone had room for {kind} ({zones}); {advice}. {last.sentence}"
    return Meaning(Next.STOP, Outcome.CAPACITY, last.code, sentence)


def _acceptance(instances: tuple[str, ...], candidate: Candidate) -> dict[str, Any]:
    return {"instances": list(instances), "subnet": candidate.subnet, "az": candidate.zone, "time": now_ms()}


def _refusal(why: Meaning) -> dict[str, Any]:
    return {
        "instances": [],
        "error": {"code": why.code, "message": why.sentence},
        "outcome": why.outcome.value,
        "sentence": f"{why.sentence[:1].upper()}{why.sentence[1:]}.",
        "time": now_ms(),
    }


def _decide(record: JobRecord, file: LaunchFile, aws: Aws, wanted: dict[str, Any]) -> Launched:
    """Write how the launch came out, unless another has; then that holds, and instances of ours beside it are ended."""
    key = attempt_key(record, file.attempt, "launched.json")
    decided = wanted
    if not record.store.put(key, json.dumps(wanted, ensure_ascii=False).encode() + b"\n", if_absent=True):
        decided = read_decision(record, attempt=file.attempt) or wanted
        if surplus := sorted(set(wanted["instances"]) - set(decided["instances"])):
            log.warning(
                "%s was launched by somebody else as well; ending %s", file.job_id, ", ".join(surplus)
            )
            _end_surplus(aws, surplus)
    return _obey(record, file, decided)


def _end_surplus(aws: Aws, surplus: Sequence[str]) -> None:
    """Terminate instances that are nobody's; where that fails, whoever looks after the job next does it."""
    for instance_id in surplus:
        try:
            terminate_one(aws.ec2(), instance_id)
        except BaiError as error:
            log.warning("%s; `bai status` tries it again", error)


def _obey(record: JobRecord, file: LaunchFile, decided: Mapping[str, Any]) -> Launched:
    if not decided["instances"]:
        outcome, sentence = Outcome(decided["outcome"]), str(decided["sentence"])
        write_result(record, outcome, sentence, attempt=file.attempt)
        raise LaunchError(sentence.rstrip("."), outcome)
    subnet, zone = decided.get("subnet") or "", decided.get("az") or ""
    return Launched(instances=tuple(decided["instances"]), subnet=subnet, zone=zone)


def _meaning_of(table: Mapping[str, Any]) -> Meaning:
    return Meaning(Next.NEXT_SUBNET, Outcome(table["outcome"]), str(table["code"]), str(table["sentence"]))
