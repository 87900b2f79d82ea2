"""Records the result of a launch in `launched.json`: the instances, or the refusal. `launched.json` is written only
once, by the first process that has a result."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from bai_agent.errors import BaiError
from bai_agent.job.descriptor.strategy_tables import SERVER_NODE
from bai_agent.job.launches import launch_key
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import now_ms
from bai_agent.light_dataclass import dataclass
from executor.backends.ec2.inferred_result import write_result
from executor.backends.ec2.instances import Instance, find_launch_instances, terminate_one
from executor.backends.ec2.launch.error_classes import ErrorClass
from executor.backends.ec2.launch.launch_record import LaunchFile, candidate_table, read_decision
from executor.backends.ec2.launch.resolve import Candidate
from executor.backends.ec2.session import AwsSession
from executor.errors import LaunchError

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Launched:
    """The instances of an attempt, in the order of their ranks."""

    instances: tuple[str, ...]
    subnet: str
    zone: str


def find_refusal(record: JobRecord) -> LaunchError | None:
    """Return EC2's final refusal of the job; None if EC2 did not refuse the job."""
    decided = read_decision(record, attempt=0)
    if decided is None or decided["instances"]:
        return None
    return _refusal(decided)


def decided_before(record: JobRecord, *, attempt: int = 0, launch: int = 0) -> Launched | None:
    """Return the instances in `launched.json`; None if that file does not exist yet. Raises LaunchError if
    the launch was refused."""
    decided = read_decision(record, attempt=attempt, launch=launch)
    return None if decided is None else _apply(record, attempt, launch, decided)


def accept(
    record: JobRecord,
    file: LaunchFile | None,
    aws: AwsSession,
    instances: Sequence[str],
    candidate: Candidate,
) -> Launched:
    """Record the instances that EC2 launched for `candidate`, unless another process has recorded the
    launch's result. Return the recorded instances. file: record of the launch; None for the first launch of attempt
    0.
    """
    later: dict[str, Any] = {}
    if file is not None and file.number:
        later = {"first_node": file.first_node, "replaces": list(file.replaces)}
    wanted: dict[str, Any] = {
        "instances": list(instances),
        **candidate_table(candidate),
        **later,
        "time": now_ms(),
    }
    return _decide(record, file, aws, wanted)


def refuse(record: JobRecord, file: LaunchFile, aws: AwsSession, why: ErrorClass) -> Launched:
    """Record that the launch is refused. Raises LaunchError, unless another process has launched the job in
    the meantime."""
    wanted: dict[str, Any] = {
        "instances": [],
        "error": {"code": why.code, "message": why.sentence},
        "outcome": why.outcome.value,
        "sentence": f"{why.sentence[:1].upper()}{why.sentence[1:]}.",
        "time": now_ms(),
    }
    return _decide(record, file, aws, wanted)


def adopt(record: JobRecord, aws: AwsSession, *, file: LaunchFile | None = None) -> Launched | None:
    """Record and return the instances of this launch that EC2 shows; None if EC2 shows no instances of the
    launch. Raises BaiError.

    file: record of the launch; None for the first launch of attempt 0. The process that launched the instances may
    have died before EC2's answer. If EC2 shows no instances, this proves nothing, because EC2 is eventually
    consistent.
    """
    attempt, number = (file.attempt, file.number) if file is not None else (0, 0)
    found = find_launch_instances(aws.ec2(), record.job_id, attempt, store=record.store.url, launch=number)
    if not found:
        return None
    if (record.job() if file is None else file).server is not None:
        return _adopt_with_server(record, aws, found, file)
    # A launch has instances of only one candidate. If EC2 shows instances of several candidates, a candidate
    # with living instances is used, and the other instances are surplus.
    candidates = {each.id: _candidate_of(each) for each in found}
    accepted = candidates[next((each.id for each in found if each.living), found[0].id)]
    chosen = [each for each, candidate in candidates.items() if candidate == accepted]
    return accept(record, file, aws, chosen, accepted)


def _adopt_with_server(
    record: JobRecord, aws: AwsSession, found: Sequence[Instance], file: LaunchFile | None
) -> Launched | None:
    """Record and return a client's machine with its server's machine in the same zone. Terminate a client's machine
    without a server's machine, and a server's machine without a client's machine."""
    living = [each for each in found if each.living]
    pair = _client_and_server(living or found)
    if pair is None:
        end_surplus(aws, [each.id for each in living])
        return None
    client, server = pair
    return accept(record, file, aws, (client.id, server.id), _candidate_of(client))


def _client_and_server(machines: Sequence[Instance]) -> tuple[Instance, Instance] | None:
    for client, server in product(machines, machines):
        if (client.index, server.index) == (0, SERVER_NODE) and client.zone == server.zone:
            return client, server
    return None


def _candidate_of(machine: Instance) -> Candidate:
    return Candidate(subnet="", zone=machine.zone, type=machine.type, market=machine.market)


def end_surplus(aws: AwsSession, surplus: Sequence[str]) -> None:
    """Terminate instances that are not in a launch's recorded result. If the request fails, the next check of
    the job repeats the request."""
    for instance_id in surplus:
        try:
            terminate_one(aws.ec2(), instance_id)
        except BaiError as error:
            log.warning("%s; `bai status` tries to terminate the machine again", error)


def _decide(record: JobRecord, file: LaunchFile | None, aws: AwsSession, wanted: dict[str, Any]) -> Launched:
    """Record `wanted` as the launch's result, unless another process has recorded a result. If another process has
    recorded a result, use the recorded result, and terminate the instances of `wanted` that the recorded result
    does not contain."""
    attempt, launch = (file.attempt, file.number) if file is not None else (0, 0)
    key = launch_key(record, attempt, launch, "launched.json")
    decided = wanted
    if not record.store.put(key, json.dumps(wanted, ensure_ascii=False).encode() + b"\n", if_absent=True):
        decided = read_decision(record, attempt=attempt, launch=launch) or wanted
        if surplus := sorted(set(wanted["instances"]) - set(decided["instances"])):
            log.warning(
                "%s was launched by another process as well; terminating %s",
                record.job_id,
                ", ".join(surplus),
            )
            end_surplus(aws, surplus)
    return _apply(record, attempt, launch, decided)


def _apply(record: JobRecord, attempt: int, launch: int, decided: Mapping[str, Any]) -> Launched:
    if not decided["instances"]:
        refusal = _refusal(decided)
        if launch == 0:
            write_result(record, refusal.outcome, str(decided["sentence"]), attempt=attempt)
        raise refusal
    subnet, zone = decided.get("subnet") or "", decided.get("az") or ""
    return Launched(instances=tuple(decided["instances"]), subnet=subnet, zone=zone)


def _refusal(decided: Mapping[str, Any]) -> LaunchError:
    return LaunchError(str(decided["sentence"]).rstrip("."), Outcome(decided["outcome"]))
