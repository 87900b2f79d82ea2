"""The limits of the watcher's launches. The limits are parameters of the watcher's stack, so nothing in the
bucket can change them.

Other users may write into the bucket. So the watcher launches machines only for a job whose
`.watched/<job-id>` contains the token of the stored launch, and only within the watcher's limits. An instance can
change neither the token nor the limits.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bai_agent.light_dataclass import dataclass
from executor.backends.ec2.launch.launch_record import LaunchFile
from executor.backends.ec2.launch.network import group_ids
from executor.backends.ec2.session import plain_errors
from executor.backends.ec2.tags import JOB_TAG, STORE_TAG, read_tags, sanitised
from executor.errors import UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

PROFILE, GROUPS, SUBNETS = "BAI_WATCHER_PROFILE", "BAI_WATCHER_GROUPS", "BAI_WATCHER_SUBNETS"
OWNERS, TYPES, DOLLARS = "BAI_WATCHER_OWNERS", "BAI_WATCHER_TYPES", "BAI_WATCHER_USD_A_DAY"
"""Environment variables of the function; lists are separated by commas."""


@dataclass(frozen=True, kw_only=True)
class LaunchLimits:
    """The limits of the watcher's launches."""

    profile: str
    """Name of the instance profile of all machines."""
    groups: tuple[str, ...]
    """Security groups that machines may have, in addition to their job's own group."""
    subnets: tuple[str, ...]
    owners: tuple[str, ...]
    """Owners of images: account numbers, and "amazon" or "self"."""
    types: tuple[str, ...]
    """Instance types; may contain `*` and `?`."""
    dollars_a_day: float
    """Maximum total cost of the machines launched in a day in UTC, until their deadlines (USD)."""

    def check(self, file: LaunchFile, ec2: EC2Client, *, store: str) -> None:
        """Raise UsageError unless a launch is within these limits. The launch's cost is not checked here.
        Raises BaiError. store: URL of the job's store."""
        found = [*self._beyond(file.request), *self._beyond_places(file), *_foreign_tags(file, store)]
        owner = _owner(ec2, str(file.request.get("ImageId")))
        if not found and not set(owner) & set(self.owners):
            found = [
                f"the image {file.request.get('ImageId')}, which belongs to {' or '.join(owner) or 'nobody'}"
            ]
        if found:
            raise UsageError(
                f"the watcher may not launch with {found[0]}; `bai setup --watcher` sets the watcher's limits"
            )

    def _beyond(self, request: Mapping[str, Any]) -> Sequence[str]:
        profile = request.get("IamInstanceProfile", {})
        name = str(profile.get("Name") or profile.get("Arn", "")).rpartition("/")[2]
        interfaces = request.get("NetworkInterfaces", ())
        subnets = [each["SubnetId"] for each in interfaces if each.get("SubnetId")]
        # A launch must not use an existing network interface, because such an interface may be in any subnet
        # and any security group.
        there = [each["NetworkInterfaceId"] for each in interfaces if each.get("NetworkInterfaceId")]
        return [
            *([f'the instance profile "{name}"'] if name not in ("", self.profile) else []),
            *(["security groups by name"] if request.get("SecurityGroups") else []),
            *(f"the security group {each}" for each in group_ids(request) if each not in self.groups),
            *(f"the subnet {each}" for each in subnets if each not in self.subnets),
            *(f"the existing network interface {each}" for each in there),
        ]

    def _beyond_places(self, file: LaunchFile) -> Sequence[str]:
        types = [each.type or str(file.request.get("InstanceType")) for each in file.candidates]
        return [
            *(f"the subnet {each.subnet}" for each in file.candidates if each.subnet not in self.subnets),
            *(f"the type {each}" for each in types if not self._has_type(each)),
        ]

    def _has_type(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, each) for each in self.types)


def _foreign_tags(file: LaunchFile, store: str) -> Sequence[str]:
    """Return the tags of machines, volumes and the job's own security group that are missing, or name another
    job or store."""
    ours = sanitised({JOB_TAG: file.job_id, STORE_TAG: store})
    group = file.security_group or {}
    specifications = [*file.request.get("TagSpecifications", ()), *group.get("TagSpecifications", ())]
    tags = {each.get("ResourceType"): read_tags(each) for each in specifications}
    return [
        f'the tag {key}="{tags.get(kind, {}).get(key, "")}" of the {kind}'
        for kind in ("instance", "volume", *(["security-group"] if group else []))
        for key, value in ours.items()
        if tags.get(kind, {}).get(key) != value
    ]


def read_limits(environment: Mapping[str, str]) -> LaunchLimits:
    """Return the watcher's limits, which the Lambda function's environment variables contain. Raises UsageError."""
    try:
        dollars = float(environment.get(DOLLARS) or 0)
    except ValueError:
        dollars = math.nan
    if not 0 <= dollars < math.inf:
        raise UsageError(f'{DOLLARS} is "{environment.get(DOLLARS)}"; write an amount such as 50')
    return LaunchLimits(
        profile=environment.get(PROFILE, ""),
        groups=_items(environment.get(GROUPS, "")),
        subnets=_items(environment.get(SUBNETS, "")),
        owners=_items(environment.get(OWNERS, "")),
        types=_items(environment.get(TYPES, "")),
        dollars_a_day=dollars,
    )


def _owner(ec2: EC2Client, image: str) -> list[str]:
    """Return the owner of an image: the account's id, and its alias."""
    with plain_errors(f"describing the image {image}"):
        found = ec2.describe_images(ImageIds=[image])["Images"]
    if not found:
        return []
    named = [str(found[0].get("OwnerId", "")), str(found[0].get("ImageOwnerAlias") or "")]
    return [each for each in named if each]


def _items(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())
