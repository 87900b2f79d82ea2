"""Launches a job's instances: once, whatever dies or is repeated on the way.

`attempts/<n>/launch.json` holds the whole request before it is sent the first time; whoever repeats the launch sends that
request, once `executor/backends/ec2/launch/repeat.py` has found it to be the one that they would make themselves. `refused/<k>.json` says that
candidate k was definitely refused, so that a repeated launch does not try it again after another one was accepted. `launched.json` decides: it is written once, with the instances or with the refusal.
Where the machines need a security group of their own, it is made once `launch.json` is written, before the first request.
A job that waits for capacity is launched in rounds, each with a `launch.json` of its own (`waiting.py`), until `launched.json` decides.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from bai_agent.backoff import Backoff
from bai_agent.errors import BaiError, StoreError
from bai_agent.job.durations import format_duration
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import now_ms
from executor.backends.ec2.inferred_result import write_result
from executor.backends.ec2.instances import instances_of_attempt, terminate_one
from executor.backends.ec2.launch.errors import ErrorClass, RetryAction, classify_error, is_unknown_profile
from executor.backends.ec2.launch.launch_record import (
    LAUNCH_WINDOW,
    LaunchFile,
    Wait,
    attempt_key,
    candidate_table,
    read_decision,
    read_refusal,
    round_key,
)
from executor.backends.ec2.launch.network import in_group
from executor.backends.ec2.launch.request import for_candidate
from executor.backends.ec2.launch.resolve import Candidate, kind_name, named, types_of
from executor.backends.ec2.launch.waiting import NoCapacityError, no_capacity
from executor.backends.ec2.security_group import NO_GROUP, delete_groups, make_group
from executor.backends.ec2.session import FAILURES, AwsError, AwsSession
from executor.backends.ec2.tags import VALUE_LIMIT, clean_text, tag_time
from executor.errors import NotStartedError
from executor.program import command

log = logging.getLogger(__name__)

PATIENCE_S = 300.0
"""Seconds for which one candidate is asked again while there is no definite answer."""
_PROFILE_PATIENCE_S = 120.0
"""Seconds for which EC2 may not know an instance profile that was just made.
https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot.html#troubleshoot_general_eventual-consistency"""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_LOOKS_S = (2.0, 4.0)
"""Between looks for machines of a launch that is in doubt: EC2 shows what it has made some seconds later.
https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html"""


class LaunchError(NotStartedError):
    """The launch was refused for good: nothing runs, and the job's result says so."""


class UndecidedError(BaiError):
    """Nobody knows whether the job was launched; the same launch can be repeated, and launches it once."""


@dataclass(frozen=True, kw_only=True)
class Launched:
    """The instances of an attempt, in the order of their ranks."""

    instances: tuple[str, ...]
    subnet: str
    zone: str


def launch(
    record: JobRecord,
    file: LaunchFile,
    aws: AwsSession,
    *,
    deadman: timedelta,
    begun_before: bool = False,
    on_progress: Callable[[str], None] = log.info,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
) -> Launched:
    """Launch what `file` says, or return what was launched by it before.

    deadman: how long a machine of the job may be on; nothing is launched that would be reaped before. begun_before: somebody may
    have asked EC2 for it already. `on_progress` hears what is tried next.
    Raises LaunchError where it is refused for good (the job then has a result), UndecidedError where no definite answer came,
    NoCapacityError where a later round is due.
    """
    if (launched := decided_before(record, attempt=file.attempt)) is not None:
        return launched
    if stop := _overtaken(record):
        found = adopt(record, aws, attempt=file.attempt) if begun_before else None
        return found or _decide(record, file.attempt, aws, _refusal(stop))
    if file.security_group is None:
        return _launch_in_turn(record, file, aws, deadman, begun_before, on_progress, sleep, clock, now)
    group = make_group(aws.ec2(), file.security_group, sleep=sleep)
    grouped = replace(file, request=in_group(file.request, group))
    try:
        return _launch_in_turn(record, grouped, aws, deadman, begun_before, on_progress, sleep, clock, now)
    except (LaunchError, NoCapacityError):
        delete_groups(aws.ec2(), [group])
        raise


def _launch_in_turn(
    record: JobRecord,
    file: LaunchFile,
    aws: AwsSession,
    deadman: timedelta,
    begun_before: bool,
    on_progress: Callable[[str], None],
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    now: Callable[[], datetime],
) -> Launched:
    """Ask one candidate after the other, and write down how that came out."""
    refusals: list[tuple[Candidate, ErrorClass]] = []
    for place, candidate in enumerate(file.candidates):
        if any(each.kind == candidate.kind and why.next is RetryAction.STOP for each, why in refusals):
            # Another zone does not help it.
            continue
        if (before := read_refusal(record, place, attempt=file.attempt, number=file.round)) is not None:
            refusals.append((candidate, _meaning_of(before)))
            continue
        if tag_time(now() + deadman) > file.expires:
            if (adopted := adopt(record, aws, attempt=file.attempt)) is not None:
                return adopted
            if file.wait is not None and now() < file.wait.until:
                # It was asked so long ago that EC2 would show what it had given; what is left is the next round's.
                break
            return _decide(record, file.attempt, aws, _refusal(_expired(file)))
        answer, in_doubt = _ask(
            file,
            candidate,
            aws,
            begun_before=begun_before,
            on_progress=on_progress,
            sleep=sleep,
            clock=clock,
        )
        if not isinstance(answer, ErrorClass):
            try:
                return _decide(record, file.attempt, aws, _acceptance(answer, candidate))
            except StoreError as error:
                raise UndecidedError(
                    f"{', '.join(answer)} was launched, and that could not be written down: {error}. {_may_run(file)}"
                ) from error
        if (in_doubt or begun_before) and (found := _look(record, file, aws, answer, sleep)) is not None:
            return found
        # Whoever began it had no answer about one candidate at most: this one, as refusals before it are written down.
        begun_before = False
        refusals.append((candidate, answer))
        if answer.next is RetryAction.STOP and not _helps_another_kind(answer):
            break
        on_progress(f"{named(candidate, file.candidates)}: {answer.sentence}")
        # Before the next one is asked: a launch that is repeated now must not find room here after all.
        content = json.dumps(
            {"outcome": answer.outcome.value, "code": answer.code, "sentence": answer.sentence}
        )
        key = round_key(record, file.attempt, file.round, f"refused/{place}.json")
        record.store.put(key, content.encode() + b"\n", if_absent=True)
    if file.wait is not None and now() < file.wait.until and not _is_stopped(refusals):
        raise _waiting(record, file, file.wait, refusals)
    return _decide(record, file.attempt, aws, _refusal(_verdict(file, refusals)))


def _waiting(
    record: JobRecord, file: LaunchFile, wait: Wait, refusals: Sequence[tuple[Candidate, ErrorClass]]
) -> NoCapacityError:
    """Write down for people how a round came out; return what to raise."""
    found = no_capacity(file, wait, refusals, is_cancelled=record.cancelled)
    content = {"sentence": found.sentence, "until": tag_time(found.until), "again": tag_time(found.again)}
    key = attempt_key(record, file.attempt, "waiting.json")
    record.store.put(key, json.dumps(content, ensure_ascii=False).encode() + b"\n")
    return NoCapacityError(found)


def _is_stopped(refusals: Sequence[tuple[Candidate, ErrorClass]]) -> bool:
    """Return whether waiting helps nothing of what was refused."""
    if not refusals:
        return False
    last = {candidate.kind: why for candidate, why in refusals}
    final = refusals[-1][1]
    return all(why.next is RetryAction.STOP for why in last.values()) or (
        final.next is RetryAction.STOP and not _helps_another_kind(final)
    )


def _helps_another_kind(why: ErrorClass) -> bool:
    """Return whether another type, or another market, may be launched where one is refused for good: quotas are not the same for all."""
    return why.outcome is Outcome.QUOTA


def refusal_of(record: JobRecord) -> LaunchError | None:
    """Return why EC2 refused the job for good, where it did."""
    decided = read_decision(record, attempt=0)
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
    # One launch is of one candidate; of several, one that lives counts, and the others are surplus.
    candidates = {
        each.id: Candidate(subnet="", zone=each.zone, type=each.type, market=each.market) for each in found
    }
    accepted = candidates[next((each.id for each in found if each.living), found[0].id)]
    chosen = tuple(each for each, candidate in candidates.items() if candidate == accepted)
    return _decide(record, attempt, aws, _acceptance(chosen, accepted))


def _ask(
    file: LaunchFile,
    candidate: Candidate,
    aws: AwsSession,
    *,
    begun_before: bool,
    on_progress: Callable[[str], None],
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> tuple[tuple[str, ...] | ErrorClass, bool]:
    """Ask one candidate until the answer is definite: instances, or a refusal; return it, and whether an earlier one was not."""
    client, in_doubt = aws.no_retry_client(), False
    request = for_candidate(file.request, candidate, file.token)
    begun = clock()
    deadline, backoff = begun + PATIENCE_S, Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    while True:
        try:
            found = client.run_instances(**request)["Instances"]
        except FAILURES as error:
            answer = classify_error(error)
            if file.security_group is not None and answer.code in NO_GROUP:
                # EC2 may not know everywhere yet what it has just made.
                answer = replace(answer, next=RetryAction.BACK_OFF)
            if is_unknown_profile(answer) and clock() < begun + _PROFILE_PATIENCE_S:
                answer = replace(answer, next=RetryAction.BACK_OFF)
        else:
            ranked = sorted(found, key=lambda each: each.get("AmiLaunchIndex", 0))
            return tuple(each.get("InstanceId", "") for each in ranked), in_doubt
        if answer.next in (RetryAction.STOP, RetryAction.NEXT_SUBNET):
            return answer, in_doubt
        in_doubt = in_doubt or answer.next is RetryAction.AMBIGUOUS
        pause = backoff.next()
        if answer.next is RetryAction.GIVE_UP or clock() + pause > deadline:
            raise UndecidedError(
                f"whether {file.job_id} was launched is not known: {answer.sentence}. {_may_run(file)}"
                if in_doubt or begun_before
                else f"{file.job_id} was not launched: {answer.sentence}. {_again(file)}"
            )
        on_progress(f"{named(candidate, file.candidates)}: {answer.sentence}; asking again in {pause:.0f} s")
        sleep(pause)


def _look(
    record: JobRecord, file: LaunchFile, aws: AwsSession, refusal: ErrorClass, sleep: Callable[[float], None]
) -> Launched | None:
    """Return what EC2 shows of a launch that is refused now, and that it may have carried out before. Raises UndecidedError.

    A refusal, such as that of credentials that were changed meanwhile, need not be about the first request.
    """
    for pause in (0.0, *_LOOKS_S):
        sleep(pause)
        try:
            found = adopt(record, aws, attempt=file.attempt)
        except AwsError as error:
            raise UndecidedError(
                f"whether {file.job_id} was launched is not known: it is refused now ({refusal.sentence}), "
                f"and may have been accepted before: {error}. {_may_run(file)}"
            ) from error
        if found is not None:
            return found
    return None


def _again(file: LaunchFile) -> str:
    return f"Submit it again with --job-id {file.job_id}: it will run once"


def _may_run(file: LaunchFile) -> str:
    """Return what to do about a launch that EC2 may have accepted."""
    return (
        f"A machine may run, and cost: `{command('status', file.job_id)}` looks, `{command('cancel', file.job_id, '--now')}` "
        f"ends it. {_again(file)}"
    )


def _overtaken(record: JobRecord) -> ErrorClass | None:
    """Return why nothing must be launched any more, where that is so."""
    if (result := record.result()) is not None:
        sentence = f"it has ended before: {result.get('sentence')}".rstrip(".")
        return ErrorClass(RetryAction.STOP, Outcome.LAUNCH_FAILED, "Ended", sentence)
    if record.cancelled():
        return ErrorClass(
            RetryAction.STOP, Outcome.CANCELLED, "Cancelled", "it was cancelled before it was launched"
        )
    return None


def _expired(file: LaunchFile) -> ErrorClass:
    """Return that it is too late: its machines would be reaped at `expires`, before they had the time that the job may take."""
    sentence = (
        f"it was submitted at {file.created} and not launched within {format_duration(LAUNCH_WINDOW)}; its machines must be "
        f"gone by {file.expires}, which is too early now. Submit it with a new job id"
    )
    return ErrorClass(RetryAction.STOP, Outcome.LAUNCH_FAILED, "Expired", sentence)


def _verdict(file: LaunchFile, refusals: Sequence[tuple[Candidate, ErrorClass]]) -> ErrorClass:
    if not refusals:
        # A round that was cut short, and the wait has ended since.
        return _expired(file)
    _, last = refusals[-1]
    stops = [each for each in refusals if each[1].next is RetryAction.STOP]
    if last.next is RetryAction.STOP and not _helps_another_kind(last):
        stops = [refusals[-1]]
    told = "; ".join(_about(file, candidate, why) for candidate, why in stops)
    if _is_stopped(refusals):
        return replace(last, sentence=told)
    full = [each for each in refusals if each[1].next is not RetryAction.STOP]
    _, last = full[-1]
    zones = ", ".join(dict.fromkeys(candidate.zone for candidate, _ in full))
    kinds = ", ".join(dict.fromkeys(kind_name(each, file.candidates) or types_of([each]) for each, _ in full))
    advice = "try later, take another instance type, or name more subnets"
    waited = ""
    if file.wait is not None:
        waited = f" within {format_duration(timedelta(seconds=file.wait.seconds))}"
    others = f"; {told}" if told else ""
    sentence = f"no zone had room for {kinds}{waited} ({zones}); {advice}. {last.sentence}{others}"
    return ErrorClass(RetryAction.STOP, Outcome.CAPACITY, last.code, sentence)


def _about(file: LaunchFile, candidate: Candidate, why: ErrorClass) -> str:
    """Return why a candidate was refused for good, whichever its zone."""
    what = kind_name(candidate, file.candidates)
    return f"for {what}: {why.sentence}" if what else why.sentence


def _acceptance(instances: tuple[str, ...], candidate: Candidate) -> dict[str, Any]:
    return {"instances": list(instances), **candidate_table(candidate), "time": now_ms()}


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
    outcome = Outcome(table["outcome"])
    # Of what ends a launch only a quota is written down, where other types are asked for after it.
    following = RetryAction.STOP if outcome is Outcome.QUOTA else RetryAction.NEXT_SUBNET
    return ErrorClass(following, outcome, str(table["code"]), str(table["sentence"]))
