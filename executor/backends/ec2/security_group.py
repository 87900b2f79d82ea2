"""Creates and deletes the security group of a job of several machines, if no group is configured. The group
allows incoming traffic only from the job's own machines.

The security group is created before the launch, found by its tags like the machines, and deleted after the machines
are gone. EC2 refuses to delete the group while any of the machines exists, so an early attempt does no harm.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from bai_agent.errors import BaiError
from executor.backends.ec2.session import code_of, plain_errors, tolerated
from executor.backends.ec2.tags import JOB_TAG, attempt_tags, read_tags, tag_list

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef

log = logging.getLogger(__name__)

_DUPLICATE_RULE = "InvalidPermission.Duplicate"
_PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds."""
_USED = "DependencyViolation"
NO_GROUP = ("InvalidGroup.NotFound", "InvalidGroupId.NotFound", "InvalidSecurityGroupID.NotFound")


def group_request(job_id: str, attempt: int, vpc: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters of boto3's create_security_group for an attempt of a job. Every call for the same
    attempt returns the same parameters."""
    return {
        "GroupName": f"bai {job_id} {attempt}",
        "Description": "The machines of a job reach each other",
        "VpcId": vpc,
        "TagSpecifications": [{"ResourceType": "security-group", "Tags": tag_list(tags)}],
    }


def make_group(
    ec2: EC2Client, request: Mapping[str, Any], *, sleep: Callable[[float], None] = time.sleep
) -> str:
    """Create the group that `request` describes, unless the group exists, and return the group's id. Raises
    BaiError. An existing group of the same name is used only if that group has the tags of the same job.
    """
    name = request["GroupName"]
    with plain_errors(f'creating the security group "{name}"'):
        try:
            group = ec2.create_security_group(**request)["GroupId"]
        except ClientError as error:
            if code_of(error) != "InvalidGroup.Duplicate":
                raise
            group = find_group(ec2, request)
        itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
        # EFA needs a rule that allows outgoing traffic to the group itself, in addition to the rule for
        # outgoing traffic to any address.
        _allow(lambda: ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=itself), sleep)  # type: ignore[arg-type]
        _allow(lambda: ec2.authorize_security_group_egress(GroupId=group, IpPermissions=itself), sleep)  # type: ignore[arg-type]
    return group


def find_groups(ec2: EC2Client, filters: Iterable[FilterTypeDef]) -> dict[str, dict[str, str]]:
    """Return the tags of bai's groups that match `filters`, by group id. Raises BaiError."""
    with plain_errors("describing the security groups"):
        pages = ec2.get_paginator("describe_security_groups").paginate(
            Filters=[{"Name": "tag-key", "Values": [JOB_TAG]}, *filters]
        )
        return {each["GroupId"]: read_tags(each) for page in pages for each in page["SecurityGroups"]}


def delete_groups(ec2: EC2Client, groups: Iterable[str]) -> None:
    """Delete groups that no machine uses any more. Groups that are still in use are left for the next
    check."""
    for group in groups:
        try:
            with plain_errors(f"deleting the security group {group}"), tolerated(_USED, *NO_GROUP):
                ec2.delete_security_group(GroupId=group)
        except BaiError as error:
            log.info("%s", error)


def find_group(ec2: EC2Client, request: Mapping[str, Any]) -> str:
    """Return the id of the job's own group, which `make_group` created. Raises BaiError."""
    name, vpc = request["GroupName"], request["VpcId"]
    owner = attempt_tags(read_tags(request["TagSpecifications"][0]))
    there = find_groups(ec2, [{"Name": "group-name", "Values": [name]}, {"Name": "vpc-id", "Values": [vpc]}])
    for group, tags in there.items():
        if attempt_tags(tags) == owner:
            return group
    raise BaiError(
        f'{vpc} has a security group "{name}" that is not of this job; delete it, or submit with another job id'
    )


def _allow(ask: Callable[[], object], sleep: Callable[[float], None]) -> None:
    """Add a rule unless the rule exists. The request is repeated for a while, because parts of EC2 may not
    know a new group yet."""
    for pause in (*_PAUSES, None):
        try:
            with tolerated(_DUPLICATE_RULE):
                ask()
            return
        except ClientError as error:
            # The IAM policies allow this request only for groups with bai's tag. Parts of EC2 may not know
            # the tag of a new group yet.
            if code_of(error) not in (*NO_GROUP, "UnauthorizedOperation") or pause is None:
                raise
            sleep(pause)
