"""`bai doctor` in an account with one problem at a time."""

from __future__ import annotations

import json
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from ec2_cli import REGION, Ec2Cli
from light_bundles import light_cache
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from s3_gate import denied

from executor.backends.ec2.doctor.doctor import examine
from executor.backends.ec2.doctor.doctor_findings import Health, HealthFinding
from executor.backends.ec2.watched_jobs import Looker, note_look
from executor.configuration.config import read_settings
from executor.errors import UsageError
from executor.planning.request import JobRequest

_DESCRIPTOR = """\
spec_version = "0.1.0"
[info]
description = "A launch to be tried"
execution_engine = "aws.ec2"
labels = {{ task_name = "tried" }}
[hardware]
instance_type = "{kind}"
strategy = "single_node"
[aws.ec2]
image = "{image}"
[ml]
benchmark_code = "true"
"""


@pytest.fixture
def healthy(cli: Ec2Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ec2Cli:
    """An account in which all is well."""
    iam = boto3.client("iam", region_name=REGION)
    iam.create_instance_profile(InstanceProfileName="bai-instance")
    iam.create_role(RoleName="bai-instance", AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17"}))
    iam.add_role_to_instance_profile(InstanceProfileName="bai-instance", RoleName="bai-instance")
    _configure(cli, instance_profile="bai-instance")
    (vpc,) = cli.ec2.describe_vpcs()["Vpcs"]
    tables = [each["RouteTableId"] for each in cli.ec2.describe_route_tables()["RouteTables"]]
    cli.ec2.create_vpc_endpoint(
        VpcId=vpc["VpcId"],
        ServiceName=f"com.amazonaws.{REGION}.s3",
        RouteTableIds=tables,
        VpcEndpointType="Gateway",
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", cli.gate.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cli


def _configure(cli: Ec2Cli, **values: Any) -> None:
    table = {
        "bucket": "bucket",
        "region": REGION,
        "client_id": "me",
        "instance_profile": "bai-instance",
        **values,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if value is not None]
    (cli.folder / "config.toml").write_text("\n".join(lines) + "\n")


def found(check: str, file: Path | None = None) -> list[HealthFinding]:
    request = JobRequest(file=file) if file is not None else None
    return [each for each in examine(read_settings(), request) if each.check == check]


def health(check: str) -> set[Health]:
    return {each.health for each in found(check)}


def test_every_check_is_ok_in_a_healthy_account(healthy: Ec2Cli) -> None:
    answer = healthy.bai("doctor")

    assert answer.code == 0, answer.stdout
    words = [line.split()[:2] for line in answer.stdout.splitlines()]
    assert {check for word, check in words if word == "ok"} == {
        "credentials",
        "region",
        "bucket",
        "looks",
        "profile",
        "subnets",
        "groups",
    }
    assert not any(word == "failed" for word, _ in words)
    assert healthy.bai("doctor").code == 0


def test_without_credentials_doctor_checks_nothing_else(cli: Ec2Cli) -> None:
    answer = cli.bai(
        "doctor", env={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_CONFIG_FILE": "/nowhere"}
    )

    assert answer.code == 2
    assert [line.split()[:2] for line in answer.stdout.splitlines()] == [["failed", "credentials"]]
    assert "aws configure" in answer.stdout


def test_without_a_configuration_doctor_says_what_to_write(cli: Ec2Cli) -> None:
    (cli.folder / "config.toml").write_text("")

    answer = cli.bai("doctor", "--json")

    assert answer.code == 2
    assert "region" in answer.objects[0]["sentence"]
    _configure(cli, bucket=None)
    assert health("bucket") == {Health.FAILED}
    assert "bucket =" in found("bucket")[0].todo


def test_a_configuration_mistake_decides_doctors_exit_code(healthy: Ec2Cli) -> None:
    _configure(healthy, bucket="nowhere-bucket")
    assert healthy.bai("doctor").code == 5
    # And where the configuration is wrong as well, that comes first
    _configure(healthy, bucket="nowhere-bucket", instance_profile=None)
    assert healthy.bai("doctor").code == 2


def test_doctor_says_who_checks_jobs_and_when_it_was_last_done(healthy: Ec2Cli) -> None:
    [nobody] = found("looks")
    note_look(healthy.store, Looker.REAP, every=timedelta(minutes=1))
    [reaped] = found("looks")
    note_look(healthy.store, Looker.WATCHER, every=timedelta(minutes=1))
    [watched] = found("looks")
    for key in s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets["bucket"].keys.values():
        key.last_modified -= timedelta(minutes=5)
    [late] = found("looks")

    assert nobody.sentence.startswith("nothing checks unattended jobs")
    assert "bai setup --watcher" in nobody.todo
    assert reaped.sentence.startswith("`bai reap` checks all jobs every 1m, ")
    assert watched.sentence.startswith(
        "the watcher in the account checks all jobs every minute, most recently "
    )
    assert late.health is Health.WARNING
    assert late.sentence.startswith("the watcher in the account last checked the jobs 5m")
    assert "/aws/lambda/bai-watcher;" in late.todo


def test_doctor_names_the_log_group_of_an_overdue_watcher(healthy: Ec2Cli) -> None:
    _configure(healthy, instance_profile="team-instance")
    note_look(healthy.store, Looker.WATCHER, every=timedelta(minutes=1))
    for key in s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets["bucket"].keys.values():
        key.last_modified -= timedelta(minutes=5)

    [late] = found("looks")

    assert "/aws/lambda/team-watcher;" in late.todo


def test_a_missing_or_forbidden_bucket_is_reported(healthy: Ec2Cli) -> None:
    _configure(healthy, bucket="nowhere-bucket")
    assert "does not exist" in found("bucket")[0].sentence
    assert "aws s3 mb" in found("bucket")[0].todo

    _configure(healthy)
    healthy.gate.refuse = lambda method, path: denied("AccessDenied") if method == "HEAD" else None
    assert health("bucket") == {Health.FAILED}
    healthy.gate.refuse = lambda method, path: denied("AccessDenied") if method == "PUT" else None
    assert (health("bucket"), health("bucket list"), health("bucket write")) == (
        {Health.OK},
        {Health.OK},
        {Health.FAILED},
    )
    healthy.gate.refuse = lambda method, path: denied("AccessDenied") if "list-type" in path else None
    assert health("bucket list") == {Health.FAILED}


def test_a_bucket_in_another_region_cannot_be_used(healthy: Ec2Cli) -> None:
    healthy.gate.bucket_region = "eu-central-1"

    (finding,) = found("bucket")
    assert finding.health is Health.FAILED
    assert 'region = "eu-central-1"' in finding.todo
    assert found("bucket write") == []


def test_a_submission_names_the_region_of_a_bucket_elsewhere(healthy: Ec2Cli, tmp_path: Path) -> None:
    healthy.gate.bucket_region = "eu-central-1"
    file = tmp_path / "benchmark.toml"
    file.write_text(_DESCRIPTOR.format(kind="t3.micro", image=healthy.image))

    answer = healthy.bai("submit", file)

    assert answer.code == 2
    assert 'write region = "eu-central-1"' in answer.stderr
    assert not [each for each in healthy.gate.requests if each[0] == "PUT"]


def test_the_probe_object_has_a_checksum(healthy: Ec2Cli) -> None:
    assert health("bucket write") == {Health.OK}

    assert healthy.gate.checksums
    assert all(checksum for _, checksum in healthy.gate.checksums)


def test_a_server_that_ignores_conditions_is_refused(healthy: Ec2Cli) -> None:
    healthy.gate.refuse = lambda method, path: (200, b"") if method == "PUT" else None

    (finding,) = found("bucket write")
    assert finding.health is Health.FAILED
    assert "launched twice" in finding.sentence


@pytest.mark.parametrize(
    ("profile", "word"), [("nothing", "does not exist"), (None, "no instance_profile"), ("empty", "no role")]
)
def test_an_unusable_instance_profile_is_reported(healthy: Ec2Cli, profile: str | None, word: str) -> None:
    boto3.client("iam", region_name=REGION).create_instance_profile(InstanceProfileName="empty")
    _configure(healthy, instance_profile=profile)

    (finding,) = found("profile")
    assert finding.health is Health.FAILED
    assert word in finding.sentence
    assert finding.todo


def test_a_subnet_without_a_route_to_s3_and_a_security_group_of_another_vpc_are_reported(
    healthy: Ec2Cli,
) -> None:
    vpc = healthy.ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = healthy.ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24")["Subnet"]["SubnetId"]
    group = healthy.ec2.describe_security_groups(Filters=[{"Name": "vpc-id", "Values": [vpc]}])[
        "SecurityGroups"
    ][0]
    _configure(healthy, subnets=[subnet])
    (finding,) = found("subnets")
    assert finding.health is Health.FAILED
    assert "no route out" in finding.sentence
    assert "gateway endpoint" in finding.todo

    _configure(healthy, security_groups=[group["GroupId"]])
    assert "another VPC" in found("groups")[0].sentence
    _configure(healthy, security_groups=["sg-00000000000000000"])
    assert health("groups") == {Health.FAILED}
    _configure(healthy, subnets=["subnet-00000000000000000"])
    assert health("subnets") == {Health.FAILED}


def test_a_default_security_group_without_egress_is_reported(healthy: Ec2Cli) -> None:
    groups = healthy.ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["default"]}])
    (group,) = groups["SecurityGroups"]
    assert health("groups") == {Health.OK}

    healthy.ec2.revoke_security_group_egress(
        GroupId=group["GroupId"],
        IpPermissions=group["IpPermissionsEgress"],
    )

    (finding,) = found("groups")
    assert finding.health is Health.FAILED
    assert group["GroupId"] in finding.sentence
    assert "TCP 443" in finding.todo


def test_doctor_connects_to_the_kafka_brokers(cli: Ec2Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        monkeypatch.setenv("BAI_KAFKA_BROKERS", f"127.0.0.1:{port}")
        assert health("kafka") == {Health.OK}
    assert health("kafka") == {Health.WARNING}
    monkeypatch.setenv("BAI_KAFKA_BROKERS", "broker")
    with pytest.raises(UsageError, match='BAI_KAFKA_BROKERS: "broker" is not a broker'):
        health("kafka")


def test_doctor_tries_the_launch_of_a_descriptor_as_a_dry_run(healthy: Ec2Cli, tmp_path: Path) -> None:
    file = tmp_path / "benchmark.toml"
    file.write_text(_DESCRIPTOR.format(kind="t3.micro", image=healthy.image))

    assert [each.health for each in found("image", file)] == [Health.OK]
    assert [each.health for each in found("launch", file)] == [Health.OK]
    assert healthy.ec2.describe_instances()["Reservations"] == []
    file.write_text(_DESCRIPTOR.format(kind="t3.micro", image="ami-0123456789abcdef0"))
    assert [each.health for each in found("image", file)] == [Health.FAILED]
    file.write_text("a = 1")
    assert [each.health for each in found("descriptor", file)] == [Health.FAILED]


def test_a_versioned_bucket_needs_a_rule_for_old_versions(healthy: Ec2Cli) -> None:
    assert health("bucket versions") == {Health.OK}
    s3 = healthy.gate.s3
    s3.put_bucket_versioning(Bucket="bucket", VersioningConfiguration={"Status": "Enabled"})
    (finding,) = found("bucket versions")
    assert finding.health is Health.WARNING
    assert "NoncurrentVersionExpiration" in finding.todo

    rule: Any = {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": ""}}
    rule["NoncurrentVersionExpiration"] = {"NoncurrentDays": 7}
    s3.put_bucket_lifecycle_configuration(Bucket="bucket", LifecycleConfiguration={"Rules": [rule]})
    assert health("bucket versions") == {Health.OK}

    healthy.gate.refuse = lambda method, path: denied("AccessDenied") if "versioning" in path else None
    assert health("bucket versions") == {Health.UNKNOWN}


def test_a_descriptors_own_region_and_subnets_are_examined(
    healthy: Ec2Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there = healthy.in_region("eu-west-1")
    vpc = there.ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = there.ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24")["Subnet"]["SubnetId"]
    tables = there.ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"]
    there.ec2.create_vpc_endpoint(
        VpcId=vpc,
        ServiceName="com.amazonaws.eu-west-1.s3",
        RouteTableIds=[each["RouteTableId"] for each in tables],
        VpcEndpointType="Gateway",
    )
    file = tmp_path / "benchmark.toml"
    ours = f'region = "eu-west-1"\nsubnets = ["{subnet}"]\nimage = '
    text = _DESCRIPTOR.format(kind="t3.micro", image=there.image).replace("image = ", ours)
    file.write_text(text)

    (finding,) = found("subnets", file)
    assert (finding.health, finding.sentence.split()[0]) == (Health.FAILED, subnet)
    assert "no route out" in finding.sentence  # the endpoint leads to its own region's buckets only
    beside = [each for each in found("bucket", file) if each.health is Health.WARNING]
    assert ["eu-west-1" in each.sentence for each in beside] == [True]
    # The whole bundle would be made for a machine that never boots.
    monkeypatch.setenv("XDG_CACHE_HOME", light_cache())
    assert "AWS charges for each GB between the regions" in healthy.bai("submit", file).stderr
