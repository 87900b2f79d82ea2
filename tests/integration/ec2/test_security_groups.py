"""The security group of a job of several machines if none is configured: created once, used by this job only, and deleted after it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cli_harness import CliHarness
from moto_aws import HELLO, MotoAws
from sandbox.fake_aws.iam.identities import SETUP

GANG = HELLO.replace(
    '"t3.small"\n', '"t3.small"\nstrategy = "torchrun"\n[hardware.distributed]\nnum_instances = 2\n'
)


@pytest.fixture
def cli(moto_aws: MotoAws, tmp_path: Path) -> CliHarness:
    (tmp_path / "b.toml").write_text(GANG)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BAI_"))}
    return CliHarness(tmp_path, {**kept, **moto_aws.environment()})


def groups(aws: MotoAws) -> list[dict[str, Any]]:
    """Return the groups of jobs."""
    found = aws.client("ec2", SETUP).describe_security_groups()["SecurityGroups"]
    return [each for each in found if each["GroupName"].startswith("bai ")]


def test_machines_of_a_job_reach_each_other_until_they_are_gone(moto_aws: MotoAws, cli: CliHarness) -> None:
    # Given a job, of which no group is configured
    done = cli.bai("submit", "b.toml", "--job-id", "gang-1")
    assert done.code == 0, done.stderr

    # Then its machines are in one that lets in what comes from it, and nothing else
    [group] = groups(moto_aws)
    tags = {each["Key"]: each["Value"] for each in group["Tags"]}
    assert (group["GroupName"], tags["bai:job-id"]) == ("bai gang-1 0", "gang-1")
    machines = moto_aws.instances()
    assert [[each["GroupId"] for each in machine["SecurityGroups"]] for machine in machines] == [
        [group["GroupId"]]
    ] * 2
    [inside] = group["IpPermissions"]
    assert (inside["IpProtocol"], inside["IpRanges"]) == ("-1", [])
    assert [each["GroupId"] for each in inside["UserIdGroupPairs"]] == [group["GroupId"]]
    outside = [
        (pair["GroupId"] for pair in each["UserIdGroupPairs"]) for each in group["IpPermissionsEgress"]
    ]
    assert group["GroupId"] in [each for ids in outside for each in ids]
    assert "0.0.0.0/0" in json.dumps(group["IpPermissionsEgress"])

    # And who repeats the submission, or reaps, leaves it; once the machines are gone, it goes
    for command in (("submit", "b.toml", "--job-id", "gang-1"), ("reap",)):
        again = cli.bai(*command)
        assert again.code == 0, again.stderr
        assert groups(moto_aws) == [group]
    moto_aws.client("ec2", SETUP).terminate_instances(InstanceIds=[each["InstanceId"] for each in machines])
    assert cli.bai("reap", "--dry-run").code == 0
    assert groups(moto_aws) == [group]
    assert cli.bai("reap").code == 0
    assert groups(moto_aws) == []


def test_a_configured_security_group_is_used_unchanged(moto_aws: MotoAws, cli: CliHarness) -> None:
    [default, *_] = moto_aws.client("ec2", SETUP).describe_security_groups()["SecurityGroups"]
    (cli.folder / "b.toml").write_text(f'{GANG}security_groups = ["{default["GroupId"]}"]\n')

    assert cli.bai("submit", "b.toml", "--job-id", "gang-1").code == 0

    assert not moto_aws.calls("CreateSecurityGroup")


def test_a_refused_launch_deletes_its_security_group(moto_aws: MotoAws, cli: CliHarness) -> None:
    moto_aws.fail("RunInstances", code="VcpuLimitExceeded", status=400)

    assert cli.bai("submit", "b.toml", "--job-id", "gang-1").code == 5

    assert moto_aws.calls("CreateSecurityGroup")
    assert groups(moto_aws) == []


def test_a_repeated_submission_reuses_its_security_group(moto_aws: MotoAws, cli: CliHarness) -> None:
    moto_aws.fail("AuthorizeSecurityGroupIngress", code="InternalFailure", status=400)
    assert cli.bai("submit", "b.toml", "--job-id", "gang-1").code == 5
    assert moto_aws.instances() == []

    done = cli.bai("submit", "b.toml", "--job-id", "gang-1")

    assert done.code == 0, done.stderr
    [group] = groups(moto_aws)
    assert {each["SecurityGroups"][0]["GroupId"] for each in moto_aws.instances()} == {group["GroupId"]}
    assert group["IpPermissions"]


def test_a_security_group_with_other_tags_is_not_reused(moto_aws: MotoAws, cli: CliHarness) -> None:
    ec2 = moto_aws.client("ec2", SETUP)
    vpc = ec2.describe_subnets(SubnetIds=list(moto_aws.subnets.values())[:1])["Subnets"][0]["VpcId"]
    ec2.create_security_group(GroupName="bai gang-1 0", Description="not ours", VpcId=vpc)
    [before] = groups(moto_aws)

    done = cli.bai("submit", "b.toml", "--job-id", "gang-1")

    assert done.code == 5
    assert '"bai gang-1 0" that is not of this job' in " ".join(done.stderr.split())
    assert groups(moto_aws) == [before]
    assert moto_aws.instances() == []


def test_a_new_security_group_without_visible_tags_is_looked_up_again(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    # Given an EC2 that has not yet heard everywhere of the tag by which the policies allow to change the group
    fault = moto_aws.fail(
        "AuthorizeSecurityGroupIngress", code="UnauthorizedOperation", status=403, message="no", times=2
    )

    done = cli.bai("submit", "b.toml", "--job-id", "gang-1")

    assert done.code == 0, done.stderr
    assert fault.hits == 2
    assert len(moto_aws.instances()) == 2
