"""Finds and terminates the EC2 instances of jobs. Instances are found by their tags. Only instances with
bai's tags are terminated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from bai_agent.errors import BaiError
from bai_agent.light_dataclass import dataclass, field
from executor.backends.ec2.console import Console, read_console
from executor.backends.ec2.session import AwsSession, plain_errors, tolerated
from executor.backends.ec2.tags import (
    ATTEMPT_TAG,
    EXPIRES_TAG,
    FIRST_NODE_TAG,
    JOB_TAG,
    LAUNCH_TAG,
    STORE_TAG,
    parse_timestamp,
    read_tags,
    tag_value,
)
from executor.descriptor.ec2_table import ON_DEMAND
from executor.errors import AwsError

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef

LIVING = ("pending", "running")
GONE = ("terminated", "stopped")
"""States of machines on which nothing runs. bai never stops machines, so a stopped machine was stopped by a
user or by AWS. bai terminates stopped machines."""

_UNKNOWN = "InvalidInstanceID.NotFound"
_NO_LATEST = ("UnsupportedOperation", "InvalidParameterCombination", "InvalidParameterValue")
_VALUES = 200
"""Maximum number of values in one filter of DescribeInstances:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstances.html"""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """EC2's description of one instance."""

    id: str
    state: str
    """State of the instance: pending, running, shutting-down, terminated, stopping or stopped."""
    index: int = 0
    """Number of the instance's node: the instance's index in its launch, plus the number of the launch's
    first node."""
    type: str = ""
    market: str = ON_DEMAND
    """InstanceLifecycle ("spot"), or "on-demand" if EC2 reports none."""
    operation: str = ""
    """UsageOperation, which determines the cost of licences; empty if EC2 reports none."""
    tenancy: str = "default"
    zone: str = ""
    reason_code: str = ""
    """Code of EC2's StateReason, such as "Client.UserInitiatedShutdown"."""
    reason: str = ""
    launched: datetime | None = None
    age: timedelta | None = None
    """Time since the instance's launch, by AWS's clocks; None if EC2 does not report the time of the
    launch."""
    ended: datetime | None = None
    """Time at which a user terminated the instance; None if EC2 does not report the time."""
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def living(self) -> bool:
        return self.state in LIVING

    @property
    def gone(self) -> bool:
        return self.state in GONE

    @property
    def job_id(self) -> str | None:
        return self.tags.get(JOB_TAG)

    @property
    def attempt(self) -> str:
        return self.tags.get(ATTEMPT_TAG, "0")

    @property
    def launch(self) -> str:
        """Number of the launch by which the instance was started."""
        return self.tags.get(LAUNCH_TAG, "0")

    @property
    def expires(self) -> datetime | None:
        """Time by which the instance must be gone; None if its tags do not contain a time."""
        return parse_timestamp(self.tags.get(EXPIRES_TAG))


def find_instances(ec2: EC2Client, job_ids: Iterable[str]) -> list[Instance]:
    """Return all instances with the tag of one of these jobs, in any state. Raises BaiError."""
    return _described_by(ec2, f"tag:{JOB_TAG}", list(job_ids))


def find_launch_instances(
    ec2: EC2Client, job_id: str, attempt: int, *, store: str, launch: int = 0
) -> list[Instance]:
    """Return the instances of a launch of a job of `store` (a URL), by rank, in any state. Raises BaiError."""
    wanted = (str(attempt), str(launch), tag_value(store))
    found = find_instances(ec2, [job_id])
    mine = [each for each in found if (each.attempt, each.launch, each.tags.get(STORE_TAG)) == wanted]
    return sorted(mine, key=lambda each: each.index)


def find_machines(ec2: EC2Client, jobs: Mapping[str, Sequence[str]]) -> dict[str, list[Instance]]:
    """Return the instances of each job, in any state. Raises BaiError. jobs: job id → ids of the instances of
    its launches. All other instances of a job are found by the job's tag. The ids are needed for terminated
    instances, which EC2 still shows for a while, but without their tags.
    """
    owners = {each: job_id for job_id, ids in jobs.items() for each in ids}
    tagged = find_instances(ec2, jobs)
    untagged = instances_by_id(ec2, sorted(owners.keys() - {each.id for each in tagged}))
    found: dict[str, list[Instance]] = {each: [] for each in jobs}
    for instance in (*tagged, *untagged):
        mine = found.get(instance.job_id or owners.get(instance.id, ""))
        if mine is not None:
            mine.append(instance)
    return found


def find_job_instances(
    aws: Callable[[str | None], AwsSession], region: str | None, jobs: Mapping[str, Sequence[str]]
) -> Mapping[str, list[Instance] | None]:
    """Return the machines of `find_machines` in a region; None for each job if EC2 cannot be queried."""
    try:
        return find_machines(aws(region).ec2(), jobs)
    except BaiError:
        return dict.fromkeys(jobs)


def instances_by_id(ec2: EC2Client, ids: Sequence[str]) -> list[Instance]:
    """Return the instances with these ids that EC2 still knows. Raises BaiError.

    Terminated instances are also returned. EC2 still shows terminated instances for a while, but without their
    tags. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/how-ec2-instance-termination-works.html
    """
    return _described_by(ec2, "instance-id", ids)


def described(ec2: EC2Client, filters: Sequence[FilterTypeDef]) -> list[Instance]:
    """Return the instances that match `filters`, from all pages. Raises BaiError."""
    with plain_errors("describing the instances"):
        pages = ec2.get_paginator("describe_instances").paginate(Filters=list(filters))
        return [
            _instance(each, now=_answered(page))
            for page in pages
            for reservation in page.get("Reservations", ())
            for each in reservation.get("Instances", ())
        ]


def _described_by(ec2: EC2Client, name: str, values: Sequence[str]) -> list[Instance]:
    """Return the instances for which the filter `name` matches one of `values`. The number of values is not
    limited. Raises BaiError."""
    return [
        each
        for start in range(0, len(values), _VALUES)
        for each in described(ec2, [{"Name": name, "Values": list(values[start : start + _VALUES])}])
    ]


def failing_checks(ec2: EC2Client, ids: Sequence[str]) -> dict[str, timedelta]:
    """Return the time for which EC2's instance status check has been failing, by instance id. EC2 runs the check
    once a minute. Machines that pass the check are not included. Raises BaiError.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-system-instance-status-check.html
    """
    answer: Mapping[str, Any] = {}
    with plain_errors("describing the status of the instances"), tolerated(_UNKNOWN):
        answer = ec2.describe_instance_status(InstanceIds=list(ids))
    now = _answered(answer)
    return {
        each["InstanceId"]: now - check["ImpairedSince"]
        for each in answer.get("InstanceStatuses", ())
        for check in each["InstanceStatus"].get("Details", ())
        if check.get("Status") == "failed" and now is not None and check.get("ImpairedSince") is not None
    }


def fetch_console(ec2: EC2Client, instance_id: str) -> str:
    """Return the newest 64 KiB of an instance's console, or EC2's last copy if there is nothing newer. Raises
    BaiError."""
    newest: str | None = None
    with plain_errors(f"reading the console of {instance_id}"):
        # EC2 supports `Latest`, the newest console output, only for instances that are built on Nitro.
        with tolerated(*_NO_LATEST):
            # botocore decodes the output, with U+FFFD for bytes that are not text.
            newest = ec2.get_console_output(InstanceId=instance_id, Latest=True).get("Output")
        # EC2 also returns an empty latest output if EC2's stored copy is the newest output, for example that
        # of a terminated machine.
        return newest or ec2.get_console_output(InstanceId=instance_id).get("Output") or ""


def read_consoles(
    ec2: EC2Client, instances: Iterable[Instance]
) -> tuple[dict[str, Console], dict[str, BaiError]]:
    """Return the consoles that can be read, and the errors for the other consoles, both by instance id."""
    found: dict[str, Console] = {}
    unreadable: dict[str, BaiError] = {}
    for each in instances:
        try:
            found[each.id] = read_console(fetch_console(ec2, each.id))
        except BaiError as error:
            unreadable[each.id] = error
    return found, unreadable


def terminate(ec2: EC2Client, instances: Iterable[Instance], *, job_id: str) -> list[str]:
    """Terminate the instances with this job's tag; return their ids. Instances that are already gone are not
    an error.

    If EC2 refuses to terminate one instance, the other instances are still terminated. If EC2 refused to
    terminate an instance, BaiError is raised after all other instances were terminated. If EC2 cannot be reached,
    BaiError is raised at once.
    """
    ours = [each.id for each in instances if each.job_id == job_id and each.state != "terminated"]
    refusals: list[AwsError] = []
    for instance_id in ours:
        try:
            terminate_one(ec2, instance_id)
        except AwsError as error:
            if not error.code:
                raise
            refusals.append(error)
    if len(refusals) == 1:
        raise refusals[0]
    if refusals:
        raise AwsError(
            f"{len(refusals)} of {len(ours)} machines were not terminated; the first: {refusals[0]}",
            code=refusals[0].code,
        )
    return ours


def terminate_one(ec2: EC2Client, instance_id: str) -> None:
    """Terminate an instance. If EC2 no longer knows the instance, no error is raised. Raises BaiError."""
    with plain_errors(f"terminating {instance_id}"), tolerated(_UNKNOWN):
        ec2.terminate_instances(InstanceIds=[instance_id])


def _answered(answer: Mapping[str, Any]) -> datetime | None:
    """Return the time at which AWS sent an answer, by AWS's clock."""
    date = (answer.get("ResponseMetadata", {}).get("HTTPHeaders") or {}).get("date")
    try:
        time = parsedate_to_datetime(date) if date else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None


def _instance(item: Mapping[str, Any], *, now: datetime | None) -> Instance:
    reason, placement = item.get("StateReason") or {}, item.get("Placement") or {}
    # "The time is determined by AWS": https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Instance.html
    launched, tags = item.get("LaunchTime"), read_tags(item)
    return Instance(
        id=item["InstanceId"],
        state=item["State"]["Name"],
        index=int(item.get("AmiLaunchIndex") or 0) + _first_node(tags),
        type=item.get("InstanceType", ""),
        market=item.get("InstanceLifecycle") or ON_DEMAND,
        operation=item.get("UsageOperation") or "",
        tenancy=placement.get("Tenancy") or "default",
        zone=placement.get("AvailabilityZone", ""),
        reason_code=reason.get("Code", ""),
        reason=reason.get("Message", ""),
        launched=launched,
        age=now - launched if now is not None and launched is not None else None,
        ended=_moment_in(item.get("StateTransitionReason") or ""),
        tags=tags,
    )


def _first_node(tags: Mapping[str, str]) -> int:
    written = tags.get(FIRST_NODE_TAG, "")
    return int(written) if written.isdecimal() else 0


def _moment_in(text: str) -> datetime | None:
    """Return the time in a text such as "User initiated (2026-11-20 22:10:31 GMT)"."""
    inside = text.rpartition("(")[2].removesuffix(")").removesuffix(" GMT").removesuffix(" UTC")
    try:
        return datetime.strptime(inside, "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
