"""The security group of a job of several machines, where none is configured: they reach each other, and nobody else reaches them.

It is made before the launch and found by its tags, as the machines are, and is deleted by whoever sees that they are gone. EC2
keeps it as long as one of them is there, so that deleting it too early is nothing but an error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from bai_agent.errors import BaiError
from executor.backends.ec2.instances import ATTEMPT_TAG, JOB_TAG, STORE_TAG, plain_errors, tags_of
from executor.backends.ec2.session import code_of

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef

log = logging.getLogger(__name__)

_DUPLICATE_RULE = "InvalidPermission.Duplicate"
_PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds."""
_USED = "DependencyViolation"
NO_GROUP = frozenset({"InvalidGroup.NotFound", "InvalidGroupId.NotFound", "InvalidSecurityGroupID.NotFound"})


def group_request(job_id: str, attempt: int, vpc: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """Return what boto3's create_security_group takes for an attempt of a job: always the same."""
    return {
        "GroupName": f"bai {job_id} {attempt}",
        "Description": "The machines of a job reach each other",
        "VpcId": vpc,
        "TagSpecifications": [
            {
                "ResourceType": "security-group",
                "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
            }
        ],
    }


def make_group(
    ec2: EC2Client, request: Mapping[str, Any], *, sleep: Callable[[float], None] = time.sleep
) -> str:
    """Return the id of the group that `request` describes, made now or before. Raises BaiError.

    One of the same name is it only with the tags of the same job.
    """
    name = request["GroupName"]
    with plain_errors(f'creating the security group "{name}"'):
        try:
            group = ec2.create_security_group(**request)["GroupId"]
        except ClientError as error:
            if code_of(error) != "InvalidGroup.Duplicate":
                raise
            group = _found(ec2, request)
        itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
        # To itself as well: EFA wants that to be said, beside what goes anywhere.
        _allow(lambda: ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=itself), sleep)  # type: ignore[arg-type]
        _allow(lambda: ec2.authorize_security_group_egress(GroupId=group, IpPermissions=itself), sleep)  # type: ignore[arg-type]
    return group


def groups_of(ec2: EC2Client, filters: Iterable[FilterTypeDef]) -> dict[str, dict[str, str]]:
    """Return the tags of our groups that `filters` let through, by group id. Raises BaiError."""
    with plain_errors("describing the security groups"):
        pages = ec2.get_paginator("describe_security_groups").paginate(
            Filters=[{"Name": "tag-key", "Values": [JOB_TAG]}, *filters]
        )
        return {each["GroupId"]: tags_of(each) for page in pages for each in page["SecurityGroups"]}


def delete_groups(ec2: EC2Client, groups: Iterable[str]) -> list[str]:
    """Delete groups that no machine uses any more; return which are gone. What is in the way will be there the next time, too."""
    gone = []
    for group in groups:
        try:
            with plain_errors(f"deleting the security group {group}"):
                try:
                    ec2.delete_security_group(GroupId=group)
                except ClientError as error:
                    if code_of(error) == _USED:
                        continue
                    if code_of(error) not in NO_GROUP:
                        raise
            gone.append(group)
        except BaiError as error:
            log.info("%s", error)
    return gone


def _found(ec2: EC2Client, request: Mapping[str, Any]) -> str:
    name, vpc = request["GroupName"], request["VpcId"]
    wanted = tags_of(request["TagSpecifications"][0])
    there = groups_of(ec2, [{"Name": "group-name", "Values": [name]}, {"Name": "vpc-id", "Values": [vpc]}])
    for group, tags in there.items():
        if all(tags.get(key) == wanted.get(key) for key in (JOB_TAG, ATTEMPT_TAG, STORE_TAG)):
            return group
    raise BaiError(
        f'{vpc} has a security group "{name}" that is not of this job; delete it, or submit with another job id'
    )


def _allow(ask: Callable[[], object], sleep: Callable[[float], None]) -> None:
    """Ask for a rule, unless it is there; of a group that was just made for a while, as EC2 may not know it everywhere yet."""
    for pause in (*_PAUSES, None):
        try:
            ask()
        except ClientError as error:
            if code_of(error) == _DUPLICATE_RULE:
                return
            # The policies allow it by the group's tag, which EC2 may not know everywhere yet either.
            if code_of(error) not in (*NO_GROUP, "UnauthorizedOperation") or pause is None:
                raise
            sleep(pause)
        else:
            return
