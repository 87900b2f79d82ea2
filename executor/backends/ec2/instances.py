"""The instances of jobs, as EC2 describes them: found by their tags, and ended only where their tags say that they are ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from bai_agent.errors import BaiError
from executor.backends.ec2.console import Console, read_console
from executor.backends.ec2.session import FAILURES, AwsError, aws_error, code_of
from executor.descriptor.ec2_table import ON_DEMAND

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef

JOB_TAG = "bai:job-id"
ATTEMPT_TAG = "bai:attempt"
CLIENT_TAG = "bai:client-id"
EXPIRES_TAG = "bai:expires"
STORE_TAG = "bai:store"

LIVING = ("pending", "running")
GONE = ("terminated", "stopped")
"""A stopped machine runs nothing; nobody but a person can stop one of ours, and it is terminated then."""

_NO_LATEST = frozenset({"UnsupportedOperation", "InvalidParameterCombination", "InvalidParameterValue"})
_VALUES = 200
"""Values that one filter may have: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstances.html"""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One instance as EC2 describes it."""

    id: str
    state: str
    """pending, running, shutting-down, terminated, stopping or stopped."""
    index: int = 0
    """Which of its launch it is: its rank."""
    type: str = ""
    market: str = ON_DEMAND
    """InstanceLifecycle, where EC2 says one: "spot"."""
    operation: str = ""
    """UsageOperation, which says what its licences cost; empty where EC2 does not say."""
    tenancy: str = "default"
    zone: str = ""
    reason_code: str = ""
    """StateReason, such as "Client.UserInitiatedShutdown"."""
    reason: str = ""
    launched: datetime | None = None
    age: timedelta | None = None
    """Since its launch: both times by AWS's clocks. None where EC2 does not say."""
    ended: datetime | None = None
    """When somebody ended it, where EC2 says so."""
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


def instances_of(ec2: EC2Client, job_ids: Iterable[str]) -> list[Instance]:
    """Return all instances that carry the tag of one of these jobs, in whatever state. Raises BaiError."""
    wanted = list(job_ids)
    found: list[Instance] = []
    for start in range(0, len(wanted), _VALUES):
        found += described(ec2, [{"Name": f"tag:{JOB_TAG}", "Values": wanted[start : start + _VALUES]}])
    return found


def instances_of_attempt(ec2: EC2Client, job_id: str, attempt: int, *, store: str) -> list[Instance]:
    """Return the instances that were launched for an attempt of a job of `store`, by rank, in whatever state. Raises BaiError."""
    found = instances_of(ec2, [job_id])
    mine = [each for each in found if each.attempt == str(attempt) and each.tags.get(STORE_TAG) == store]
    return sorted(mine, key=lambda each: each.index)


def instances_by_id(ec2: EC2Client, ids: Sequence[str]) -> list[Instance]:
    """Return the instances of these ids that EC2 still knows; an unknown one is not an error. Raises BaiError.

    For those whose tags are gone: a terminated instance loses them while EC2 still shows it.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/how-ec2-instance-termination-works.html
    """
    found: list[Instance] = []
    for start in range(0, len(ids), _VALUES):
        found += described(ec2, [{"Name": "instance-id", "Values": list(ids[start : start + _VALUES])}])
    return found


def described(ec2: EC2Client, filters: Sequence[FilterTypeDef]) -> list[Instance]:
    """Return the instances that `filters` let through, over all pages. Raises BaiError."""
    with plain_errors("describing the instances"):
        pages = ec2.get_paginator("describe_instances").paginate(Filters=list(filters))
        return [
            _instance(each, now=_answered(page))
            for page in pages
            for reservation in page.get("Reservations", ())
            for each in reservation.get("Instances", ())
        ]


def console_of(ec2: EC2Client, instance_id: str) -> str:
    """Return what is on an instance's console: the newest 64 KiB, or what EC2 last kept where it has no newer. Raises BaiError."""
    with plain_errors(f"reading the console of {instance_id}"):
        try:
            # botocore decodes it, and puts U+FFFD for what is not text.
            newest = ec2.get_console_output(InstanceId=instance_id, Latest=True).get("Output")
        except ClientError as error:
            # Instances that are not on Nitro know no "Latest".
            if code_of(error) not in _NO_LATEST:
                raise
            newest = None
        # Also empty where there is no newer output than what was kept, such as that of a machine that has ended.
        return newest or ec2.get_console_output(InstanceId=instance_id).get("Output") or ""


def read_consoles(
    ec2: EC2Client, instances: Iterable[Instance]
) -> tuple[dict[str, Console], dict[str, BaiError]]:
    """Return what the consoles say, and why others cannot be read, by instance id."""
    found: dict[str, Console] = {}
    unreadable: dict[str, BaiError] = {}
    for each in instances:
        try:
            found[each.id] = read_console(console_of(ec2, each.id))
        except BaiError as error:
            unreadable[each.id] = error
    return found, unreadable


def terminate(ec2: EC2Client, instances: Iterable[Instance], *, job_id: str) -> list[str]:
    """Terminate those instances that carry this job's tag; return their ids. One that is gone is not an error.

    One that EC2 refuses to terminate does not keep the others. Raises BaiError: at the end where some were refused, at once where
    EC2 cannot be asked.
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
    """Terminate an instance; one that EC2 knows no more is not an error. Raises BaiError."""
    with plain_errors(f"terminating {instance_id}"):
        try:
            ec2.terminate_instances(InstanceIds=[instance_id])
        except ClientError as error:
            if code_of(error) != "InvalidInstanceID.NotFound":
                raise


@contextmanager
def plain_errors(doing: str) -> Iterator[None]:
    """Turn what botocore raises into a BaiError: "<doing> failed: …"."""
    try:
        yield
    except FAILURES as error:
        raise aws_error(error, doing=doing) from error


def tags_of(item: Mapping[str, Any]) -> dict[str, str]:
    return {each["Key"]: each.get("Value", "") for each in item.get("Tags", ())}


def _answered(answer: Mapping[str, Any]) -> datetime | None:
    """Return when AWS gave this answer, by its own clock."""
    date = (answer.get("ResponseMetadata", {}).get("HTTPHeaders") or {}).get("date")
    try:
        time = parsedate_to_datetime(date) if date else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None


def _instance(item: Mapping[str, Any], *, now: datetime | None) -> Instance:
    reason = item.get("StateReason") or {}
    # "The time is determined by AWS": https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Instance.html
    launched = item.get("LaunchTime")
    return Instance(
        id=item["InstanceId"],
        state=item["State"]["Name"],
        index=int(item.get("AmiLaunchIndex") or 0),
        type=item.get("InstanceType", ""),
        market=item.get("InstanceLifecycle") or ON_DEMAND,
        operation=item.get("UsageOperation") or "",
        tenancy=(item.get("Placement") or {}).get("Tenancy") or "default",
        zone=(item.get("Placement") or {}).get("AvailabilityZone", ""),
        reason_code=reason.get("Code", ""),
        reason=reason.get("Message", ""),
        launched=launched,
        age=now - launched if now is not None and launched is not None else None,
        ended=_moment_in(item.get("StateTransitionReason") or ""),
        tags=tags_of(item),
    )


def _moment_in(text: str) -> datetime | None:
    """Return the time in a text such as "User initiated (2026-11-20 22:10:31 GMT)"."""
    inside = text.rpartition("(")[2].removesuffix(")").removesuffix(" GMT").removesuffix(" UTC")
    try:
        return datetime.strptime(inside, "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
