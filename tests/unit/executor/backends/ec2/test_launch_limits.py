"""The limits of the watcher's launches, as far as they need no account."""

from __future__ import annotations

from typing import Any

import pytest

from executor.backends.ec2.launch.launch_record import LaunchFile
from executor.backends.ec2.launch.resolve import Candidate
from executor.backends.ec2.watcher.launch_limits import LaunchLimits
from executor.errors import UsageError

STORE = "s3://exchange/jobs"
LIMITS = LaunchLimits(
    profile="bai-instance",
    groups=(),
    subnets=("subnet-1",),
    owners=("amazon",),
    types=("t3.*",),
    dollars_a_day=1.0,
)


class Images:
    """EC2 with one image, of Amazon."""

    def describe_images(self, **_: Any) -> dict[str, Any]:
        return {"Images": [{"OwnerId": "1", "ImageOwnerAlias": "amazon"}]}


def marked(kind: str, tags: dict[str, str]) -> dict[str, Any]:
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def launch_with(machine: dict[str, str], group: dict[str, str]) -> LaunchFile:
    # What a descriptor tags in addition has only the user's own tags.
    machines = [
        marked("instance", machine),
        marked("volume", OURS),
        marked("network-interface", {"team": "a"}),
    ]
    groups = [marked("security-group", group)]
    return LaunchFile(
        job_id="job",
        attempt=0,
        region="eu-central-1",
        candidates=(Candidate(subnet="subnet-1", zone="eu-central-1a"),),
        request={"InstanceType": "t3.small", "TagSpecifications": machines},
        security_group={"GroupName": "bai job 0", "VpcId": "vpc-1", "TagSpecifications": groups},
        expires="2026-11-21T00:00:00Z",
        created="2026-11-20T00:00:00Z",
    )


OURS = {"bai:job-id": "job", "bai:store": STORE}


@pytest.mark.parametrize(
    ("machine", "group", "complaint"),
    [
        ({**OURS, "bai:store": "s3://another/jobs"}, OURS, 'the tag bai:store="s3://another/jobs"'),
        ({**OURS, "bai:job-id": "another"}, OURS, 'the tag bai:job-id="another"'),
        ({"bai:job-id": "job"}, OURS, 'the tag bai:store=""'),
        (OURS, {**OURS, "bai:job-id": "another"}, 'the tag bai:job-id="another"'),
        (OURS, {"bai:job-id": "job"}, 'the tag bai:store=""'),
    ],
)
def test_tags_of_another_job_or_store_are_refused(
    machine: dict[str, str], group: dict[str, str], complaint: str
) -> None:
    ec2: Any = Images()
    LIMITS.check(launch_with(OURS, OURS), ec2, store=STORE)

    with pytest.raises(UsageError, match=complaint):
        LIMITS.check(launch_with(machine, group), ec2, store=STORE)
