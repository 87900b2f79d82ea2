"""Launches a job's instances exactly once, even if the launch is interrupted or repeated.

`attempts/<n>/launch.json` is written with the whole request before the request is sent for the first time. A
repeated launch sends the recorded request. Before that, `executor/backends/ec2/launch/repeat.py` compares the
recorded request with the request that the repeated launch would make. `refused/<k>.json` records that EC2
definitely refused candidate k. A repeated launch reads this record, and does not request candidate k again after
EC2 has accepted another candidate. `launched.json` records the launch's result (`launch_decision.py`). If the
machines need a security group of their own, the group is created after `launch.json` is written and before the
first request. A job that waits for capacity is launched in rounds, each with a `launch.json` of its own
(`waiting.py`), until `launched.json` exists.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from bai_agent.backoff import Backoff
from bai_agent.errors import StoreError
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.schema.durations import format_duration
from bai_agent.light_dataclass import dataclass, replace
from executor.backends.ec2.instances import find_launch_instances
from executor.backends.ec2.launch.error_classes import (
    ErrorClass,
    RetryAction,
    classify_error,
    is_unknown_profile,
)
from executor.backends.ec2.launch.launch_decision import (
    Launched,
    accept,
    adopt,
    decided_before,
    end_surplus,
    refuse,
)
from executor.backends.ec2.launch.launch_record import (
    EXPIRED,
    LAUNCH_WINDOW,
    LaunchFile,
    attempt_key,
    read_refusal,
    round_key,
)
from executor.backends.ec2.launch.launch_request import for_candidate
from executor.backends.ec2.launch.network import in_group
from executor.backends.ec2.launch.resolve import Candidate, kind_name, named, type_names
from executor.backends.ec2.launch.waiting import NoCapacityError, no_capacity
from executor.backends.ec2.security_group import NO_GROUP, delete_groups, make_group
from executor.backends.ec2.session import FAILURES, AwsSession
from executor.backends.ec2.tags import tag_time
from executor.errors import AwsError, LaunchError, UndecidedError
from executor.program import command

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

log = logging.getLogger(__name__)

PATIENCE_S = 300.0
"""Longest time for which one candidate is requested without a definite answer (seconds)."""
_PROFILE_PATIENCE_S = 120.0
"""Longest time until all parts of EC2 know a new instance profile (seconds).
https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot.html#troubleshoot_general_eventual-consistency"""
_DEFINITE = (RetryAction.STOP, RetryAction.NEXT_SUBNET)
_ENDED = "IdempotentInstanceTerminated"
"""EC2's error code for a repeated request whose machine has been terminated in the meantime."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_LOOKS_S = (2.0, 4.0)
"""Pauses between searches for machines of a launch whose answer is unknown (seconds). EC2 shows new machines
after some seconds. https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html"""


def launch(
    record: JobRecord,
    file: LaunchFile,
    aws: AwsSession,
    *,
    deadman: timedelta,
    begun_before: bool = False,
    patience_s: float = PATIENCE_S,
    on_progress: Callable[[str], None] = log.info,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
) -> Launched:
    """Launch the machines that `file` requests, or return these machines if they have already been launched.

    deadman: longest run time of a machine of the job. No machine is launched if reapers would terminate the machine
    before `deadman` is over. begun_before: whether an earlier process may have sent the request. patience_s:
    longest time for which one candidate is requested without a definite answer (seconds). on_progress: called with
    a sentence about each next step. Raises LaunchError if the launch is refused for good (the job then has a
    result). Raises UndecidedError if there is no definite answer. Raises NoCapacityError if a later round is due.
    """
    if (launched := decided_before(record, attempt=file.attempt, launch=file.number)) is not None:
        return launched
    if stop := _find_end(record):
        found = adopt(record, aws, file=file) if begun_before else None
        return found or refuse(record, file, aws, stop)
    launcher = _Launcher(
        record=record,
        file=file,
        aws=aws,
        deadman=deadman,
        patience_s=patience_s,
        on_progress=on_progress,
        sleep=sleep,
        clock=clock,
        now=now,
    )
    if file.security_group is None:
        return launcher.launch_in_turn(begun_before=begun_before)
    group = make_group(aws.ec2(), file.security_group, sleep=sleep)
    grouped = replace(file, request=in_group(file.request, group))
    try:
        return replace(launcher, file=grouped).launch_in_turn(begun_before=begun_before)
    except (LaunchError, NoCapacityError):
        delete_groups(aws.ec2(), [group])
        raise


@dataclass(frozen=True, kw_only=True)
class _Launcher:
    """One launch, with everything that its steps share."""

    record: JobRecord
    file: LaunchFile
    aws: AwsSession
    deadman: timedelta
    patience_s: float
    on_progress: Callable[[str], None]
    sleep: Callable[[float], None]
    clock: Callable[[], float]
    now: Callable[[], datetime]

    def launch_in_turn(self, *, begun_before: bool) -> Launched:
        """Request one candidate after the other, and record the launch's result."""
        refusals: list[tuple[Candidate, ErrorClass]] = []
        for place, candidate in self._open_candidates(refusals):
            if tag_time(self.now() + self.deadman) > self.file.expires:
                if (adopted := adopt(self.record, self.aws, file=self.file)) is not None:
                    return adopted
                if self._still_waits():
                    # The requests are so old that EC2 would show the machines if it had accepted one of the
                    # requests. The other candidates are requested in the next round.
                    break
                return refuse(self.record, self.file, self.aws, _expired(self.file))
            answer = self._try(candidate, begun_before=begun_before)
            if isinstance(answer, Launched):
                return answer
            # An earlier process can lack an answer only for this candidate, because a process records a
            # refusal before it requests the next candidate.
            begun_before = False
            refusals.append((candidate, answer))
            if _is_final(answer):
                break
            self.on_progress(f"{named(candidate, self.file.candidates)}: {answer.sentence}")
            self._keep_refusal(place, answer)
        if self._still_waits() and not _is_stopped(refusals):
            raise self._waiting(refusals)
        return refuse(self.record, self.file, self.aws, _verdict(self.file, refusals))

    def _open_candidates(
        self, refusals: list[tuple[Candidate, ErrorClass]]
    ) -> Iterator[tuple[int, Candidate]]:
        """Yield the candidates that EC2 has not definitely refused. Adds recorded refusals to `refusals`."""
        for place, candidate in enumerate(self.file.candidates):
            if any(each.kind == candidate.kind and why.next is RetryAction.STOP for each, why in refusals):
                continue  # EC2 would refuse the candidate in any other zone as well.
            before = read_refusal(
                self.record,
                place,
                attempt=self.file.attempt,
                number=self.file.round,
                launch=self.file.number,
            )
            if before is None:
                yield place, candidate
            else:
                refusals.append((candidate, _read_refusal(before)))

    def _try(self, candidate: Candidate, *, begun_before: bool) -> Launched | ErrorClass:
        """Return the machines that EC2 launched for a candidate, or EC2's definite refusal of the
        candidate."""
        answer, in_doubt = self._ask(candidate, begun_before=begun_before)
        if self.file.server is not None and not isinstance(answer, ErrorClass):
            answer = self._add_server(candidate, answer, self.file.server, begun_before=begun_before)
            if isinstance(answer, ErrorClass):
                return answer
        if isinstance(answer, ErrorClass):
            found = self._look(answer) if in_doubt or begun_before else None
            return found or answer
        most = self.file.request.get("MaxCount", len(answer))
        if len(answer) < most:
            self.on_progress(f"EC2 had room for {len(answer):,} of {most:,} machines")
        try:
            return accept(self.record, self.file, self.aws, answer, candidate)
        except StoreError as error:
            raise UndecidedError(
                f"{', '.join(answer)} was launched, and that could not be recorded: {error}. {_may_run(self.file)}"
            ) from error

    def _add_server(
        self,
        candidate: Candidate,
        client: tuple[str, ...],
        server: Mapping[str, Any],
        *,
        begun_before: bool,
    ) -> tuple[str, ...] | ErrorClass:
        """Launch a client's server in the client's subnet; return the client's and the server's machine. If
        the server is refused, the client's machine is terminated."""
        answer, in_doubt = self._ask(candidate, begun_before=True, server=server)
        if not isinstance(answer, ErrorClass):
            return (*client, *answer)
        end_surplus(self.aws, client)
        # EC2 may have accepted the server's request earlier, and may show the server's machine late.
        for pause in (0.0, *_LOOKS_S) if in_doubt or begun_before else ():
            self.sleep(pause)
            found = find_launch_instances(
                self.aws.ec2(),
                self.record.job_id,
                self.file.attempt,
                store=self.record.store.url,
                launch=self.file.number,
            )
            end_surplus(self.aws, [each.id for each in found if each.living])
        sentence = f"{answer.sentence.rstrip('.')} (for the server, {server['InstanceType']})"
        return replace(answer, sentence=sentence)

    def _ask(
        self, candidate: Candidate, *, begun_before: bool, server: Mapping[str, Any] | None = None
    ) -> tuple[tuple[str, ...] | ErrorClass, bool]:
        """Repeat the request until EC2's answer is definite: either instances or a refusal. Return the definite
        answer, and whether an earlier answer was indefinite. server: parameters of the server's request; if None,
        the client's request is sent."""
        client, in_doubt = self.aws.no_retry_client(), False
        request = for_candidate(self.file.request, candidate, self.file.token)
        if server is not None:
            own = replace(candidate, type=str(server["InstanceType"]))
            request = for_candidate({**self.file.request, **server}, own, f"{self.file.token} server")
        begun = self.clock()
        deadline, backoff = begun + self.patience_s, Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            answer = self._ask_once(client, request, begun)
            if not isinstance(answer, ErrorClass) or answer.next in _DEFINITE:
                return answer, in_doubt
            in_doubt = in_doubt or answer.next is RetryAction.AMBIGUOUS
            pause = backoff.next()
            if answer.next is RetryAction.GIVE_UP or self.clock() + pause > deadline:
                job_id = self.file.job_id
                raise UndecidedError(
                    f"whether {job_id} was launched is not known: {answer.sentence}. {_may_run(self.file)}"
                    if in_doubt or begun_before
                    else f"{job_id} was not launched: {answer.sentence}. {_again(self.file)}"
                )
            place = named(candidate, self.file.candidates)
            self.on_progress(f"{place}: {answer.sentence}; asking again in {pause:.0f} s")
            self.sleep(pause)

    def _ask_once(
        self, client: EC2Client, request: Mapping[str, Any], begun: float
    ) -> tuple[str, ...] | ErrorClass:
        try:
            found = client.run_instances(**request)["Instances"]
        except FAILURES as error:
            answer = classify_error(error)
            # A new security group or instance profile may not be known in all parts of EC2 yet.
            is_new_group = self.file.security_group is not None and answer.code in NO_GROUP
            is_young = self.clock() < begun + _PROFILE_PATIENCE_S
            if is_new_group or (is_unknown_profile(answer) and is_young):
                return replace(answer, next=RetryAction.BACK_OFF)
            if self.file.server is not None and answer.code == _ENDED:
                # An earlier attempt terminated this machine in this zone, because EC2 refused the other
                # machine of the pair of client and server.
                return replace(answer, next=RetryAction.NEXT_SUBNET, outcome=Outcome.CAPACITY)
            return answer
        ranked = sorted(found, key=lambda each: each.get("AmiLaunchIndex", 0))
        return tuple(each.get("InstanceId", "") for each in ranked)

    def _look(self, refusal: ErrorClass) -> Launched | None:
        """Return the machines of a launch that EC2 refuses now, but may have accepted earlier. Raises
        UndecidedError.

        EC2 may refuse the repeated request for a new reason, such as credentials that were changed in the
        meantime.
        """
        for pause in (0.0, *_LOOKS_S):
            self.sleep(pause)
            try:
                found = adopt(self.record, self.aws, file=self.file)
            except AwsError as error:
                raise UndecidedError(
                    f"whether {self.file.job_id} was launched is not known: EC2 refuses the launch now ({refusal.sentence}), "
                    f"but may have accepted an earlier request: {error}. {_may_run(self.file)}"
                ) from error
            if found is not None:
                return found
        return None

    def _keep_refusal(self, place: int, answer: ErrorClass) -> None:
        """Record a refusal before the next candidate is requested, so that a repeated launch does not request
        this candidate again."""
        table = {"outcome": answer.outcome.value, "code": answer.code, "sentence": answer.sentence}
        file, name = self.file, f"refused/{place}.json"
        key = round_key(self.record, file.attempt, file.round, name, launch=file.number)
        self.record.store.put(key, json.dumps(table).encode() + b"\n", if_absent=True)

    def _still_waits(self) -> bool:
        return self.file.wait is not None and self.now() < self.file.wait.until

    def _waiting(self, refusals: Sequence[tuple[Candidate, ErrorClass]]) -> NoCapacityError:
        """Record the round's result, which is shown to the user; return the error to raise."""
        assert self.file.wait is not None
        found = no_capacity(self.file, self.file.wait, refusals, is_cancelled=self.record.cancelled)
        content = {"sentence": found.sentence, "until": tag_time(found.until), "again": tag_time(found.again)}
        key = attempt_key(self.record, self.file.attempt, "waiting.json")
        self.record.store.put(key, json.dumps(content, ensure_ascii=False).encode() + b"\n")
        return NoCapacityError(found)


def _is_stopped(refusals: Sequence[tuple[Candidate, ErrorClass]]) -> bool:
    """Return whether waiting for capacity is useless, because the refusals have other reasons."""
    if not refusals:
        return False
    last = {candidate.kind: why for candidate, why in refusals}
    return _is_final(refusals[-1][1]) or all(why.next is RetryAction.STOP for why in last.values())


def _is_final(why: ErrorClass) -> bool:
    """Return whether a refusal applies to every instance type and market. A refusal for a quota applies to
    one type and market, because each type and market has its own quota."""
    return why.next is RetryAction.STOP and why.outcome is not Outcome.QUOTA


def _again(file: LaunchFile) -> str:
    return f"Submit the job again with --job-id {file.job_id}: the job will run only once"


def _may_run(file: LaunchFile) -> str:
    """Return the advice for the user about a launch that EC2 may have accepted."""
    return (
        f"A machine may be running, and cost money: `{command('status', file.job_id)}` shows the job, `{command('cancel', file.job_id, '--now')}` "
        f"ends the job. {_again(file)}"
    )


def _find_end(record: JobRecord) -> ErrorClass | None:
    """Return the reason why the job must not be launched any more; None if the job may still be launched."""
    if (result := record.result()) is not None:
        sentence = f"the job has already ended: {result.get('sentence')}".rstrip(".")
        return ErrorClass(RetryAction.STOP, Outcome.LAUNCH_FAILED, "Ended", sentence)
    if record.cancelled():
        return ErrorClass(
            RetryAction.STOP, Outcome.CANCELLED, "Cancelled", "the job was cancelled before it was launched"
        )
    return None


def _expired(file: LaunchFile) -> ErrorClass:
    """Return the refusal of a launch that is too late: reapers would terminate the machines at `expires`, before
    the job's time is over."""
    sentence = (
        f"the job was submitted at {file.created} and not launched within {format_duration(LAUNCH_WINDOW)}; the deadline of its "
        f"machines, {file.expires}, is now too early. Submit the job with a new job id"
    )
    return ErrorClass(RetryAction.STOP, Outcome.LAUNCH_FAILED, EXPIRED, sentence)


def _verdict(file: LaunchFile, refusals: Sequence[tuple[Candidate, ErrorClass]]) -> ErrorClass:
    """Return the refusal of the whole launch."""
    if not refusals:
        # A round of requests was interrupted, and the wait for capacity has ended in the meantime.
        return _expired(file)
    final = [refusals[-1]] if _is_final(refusals[-1][1]) else refusals
    stops = [each for each in final if each[1].next is RetryAction.STOP]
    told = "; ".join(_about(file, candidate, why) for candidate, why in stops)
    if _is_stopped(refusals):
        return replace(refusals[-1][1], sentence=told)
    return _no_room(file, [each for each in refusals if each[1].next is not RetryAction.STOP], told)


def _no_room(file: LaunchFile, full: Sequence[tuple[Candidate, ErrorClass]], told: str) -> ErrorClass:
    """Return the refusal of a launch for which no zone had capacity. told: sentences about refusals for
    reasons other than capacity."""
    _, last = full[-1]
    zones = ", ".join(dict.fromkeys(candidate.zone for candidate, _ in full))
    kinds = ", ".join(
        dict.fromkeys(kind_name(each, file.candidates) or type_names([each]) for each, _ in full)
    )
    advice = "try later, take another instance type, or name more subnets"
    waited = (
        f" within {format_duration(timedelta(seconds=file.wait.seconds))}" if file.wait is not None else ""
    )
    others = f"; {told}" if told else ""
    sentence = f"no zone had room for {kinds}{waited} ({zones}); {advice}. {last.sentence}{others}"
    return ErrorClass(RetryAction.STOP, Outcome.CAPACITY, last.code, sentence)


def _about(file: LaunchFile, candidate: Candidate, why: ErrorClass) -> str:
    """Return the reason of a candidate's final refusal, without the zone."""
    what = kind_name(candidate, file.candidates)
    return f"for {what}: {why.sentence}" if what else why.sentence


def _read_refusal(table: Mapping[str, Any]) -> ErrorClass:
    outcome = Outcome(table["outcome"])
    # The only final refusal that is recorded is a refusal for a quota. After a quota's refusal, other
    # instance types are still requested.
    following = RetryAction.STOP if outcome is Outcome.QUOTA else RetryAction.NEXT_SUBNET
    return ErrorClass(following, outcome, str(table["code"]), str(table["sentence"]))
