"""`efa = "all"`: planned, tried and launched with every Elastic Fabric Adapter of the type."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli_harness import CliHarness
from moto_aws import HELLO, REGION, MotoAws
from sandbox.fake_aws.iam.identities import SETUP

_ALL = HELLO.replace("t3.small", "p4d.24xlarge") + 'efa = "all"\n'
_WARNING = "a machine with 5 network interfaces gets no public address"


@pytest.fixture
def cli(moto_aws: MotoAws, tmp_path: Path) -> CliHarness:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BAI_"))}
    (tmp_path / "b.toml").write_text(_ALL)
    return CliHarness(tmp_path, {**environment, **moto_aws.environment()})


def test_the_planned_and_the_sent_launch_have_every_efa_of_the_type(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    planned = json.loads(cli.bai("plan", "b.toml", "--json").stdout)["request"]["NetworkInterfaces"]
    shown = cli.bai("plan", "b.toml").stdout
    submitted = cli.bai("submit", "b.toml")

    assert [each["InterfaceType"] for each in planned] == ["interface", *["efa-only"] * 4]
    assert shown.count('"InterfaceType": "efa-only"') == 4
    assert submitted.code == 0, submitted.stderr
    [call] = moto_aws.calls("RunInstances")
    sent = call.parameters
    for number, each in enumerate(planned, 1):
        for key, value in each.items():
            assert sent[f"NetworkInterface.{number}.{key}"] == str(value).replace("True", "true")
        assert sent[f"NetworkInterface.{number}.SubnetId"].startswith("subnet-")
    assert "NetworkInterface.6.DeviceIndex" not in sent


def test_submit_warns_of_several_interfaces_without_a_route_to_s3(moto_aws: MotoAws, cli: CliHarness) -> None:
    ec2 = moto_aws.client("ec2", SETUP)
    cut_off = " ".join(cli.bai("submit", "b.toml").stderr.split())
    tables = ec2.describe_route_tables()["RouteTables"]
    ec2.create_vpc_endpoint(
        VpcId=tables[0]["VpcId"],
        ServiceName=f"com.amazonaws.{REGION}.s3",
        RouteTableIds=[each["RouteTableId"] for each in tables],
        VpcEndpointType="Gateway",
    )
    reached = cli.bai("submit", "b.toml")

    assert f"warning: {_WARNING}" in cut_off
    assert "add a gateway endpoint for S3" in cut_off
    assert reached.code == 0
    assert "network interfaces" not in reached.stderr


def test_submit_without_permission_to_read_routes_warns_of_the_network_requirements(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    moto_aws.policies.attach("user", moto_aws.policies.documented("user").without("ExamineTheAccount"))

    submitted = cli.bai("submit", "b.toml")

    said = " ".join(submitted.stderr.split())
    assert submitted.code == 0
    assert f"warning: {_WARNING}" in said
    assert "could not look up the routes to S3" in said
    moto_aws.policies.take_refused()


@pytest.mark.parametrize("command", ["plan", "submit"])
def test_an_instance_type_without_efa_is_refused(moto_aws: MotoAws, cli: CliHarness, command: str) -> None:
    (cli.folder / "b.toml").write_text(f'{HELLO}efa = "all"\n')

    refused = cli.bai(command, "b.toml")

    assert refused.code == 2
    assert "aws.ec2.efa: t3.small has no Elastic Fabric Adapter" in " ".join(refused.stderr.split())
    assert moto_aws.calls("RunInstances") == []


def test_doctor_counts_the_adapters_of_the_type(cli: CliHarness) -> None:
    found = {each["check"]: each for each in cli.bai("doctor", "b.toml", "--json").objects}

    assert found["efa"]["sentence"] == "4 of at most 4 EFA interfaces of p4d.24xlarge are requested"
    assert _WARNING in found["interfaces"]["sentence"]


def test_without_credentials_the_plan_has_placeholders_for_interfaces(cli: CliHarness) -> None:
    kept = {name: value for name, value in cli.environment.items() if not name.startswith("AWS_")}
    alone = CliHarness(cli.folder, {**kept, "AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": REGION})

    planned = alone.bai("plan", "b.toml")

    assert planned.code == 0, planned.stderr
    assert "<resolved at submission: all EFAs of p4d.24xlarge>" in planned.stdout
