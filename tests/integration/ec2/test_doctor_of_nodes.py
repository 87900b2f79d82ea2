"""`bai doctor FILE` before a launch of several machines, with one missing requirement at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_harness import CliHarness
from moto_aws import HELLO, REGION, MotoAws, open_moto_aws
from sandbox.fake_aws.iam.identities import SETUP
from sandbox.fake_aws.iam.policy import Policy

from executor.backends.ec2.doctor.doctor_findings import Health, HealthFinding
from executor.backends.ec2.doctor.launch_checks import request_findings
from executor.backends.ec2.launch.resolve import resolve
from executor.backends.ec2.session import aws_session
from executor.configuration.config import read_settings
from executor.planning.request import JobRequest, read_request

STANDARD = "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"
EFA = """
[[aws.ec2.run_instances.NetworkInterfaces]]
DeviceIndex = 0
InterfaceType = "efa"
[[aws.ec2.run_instances.NetworkInterfaces]]
DeviceIndex = 1
NetworkCardIndex = 1
InterfaceType = "efa-only"
"""


class DoctorHarness:
    """An account, and what `bai doctor` finds in it."""

    def __init__(self, aws: MotoAws, folder: Path) -> None:
        self.aws, self.file = aws, folder / "b.toml"
        self.ec2 = aws.client("ec2", SETUP)
        self.settings = read_settings()
        self.session = aws_session(self.settings)
        [self.vpc] = {each["VpcId"] for each in self.ec2.describe_subnets()["Subnets"]}

    def found(self, nodes: int, more: str = "", kind: str = "t3.small") -> dict[str, HealthFinding]:
        """Return what was found, by the name of the check."""
        table = f'"{kind}"\nstrategy = "torchrun"\n[hardware.distributed]\nnum_instances = {nodes}\n'
        return self._found(HELLO.replace('"t3.small"\n', table) + more)

    def found_with_server(self, kind: str) -> dict[str, HealthFinding]:
        """Return what was found for a client on a t3.small and its server on a `kind`; of several findings of a check the last."""
        server = f'[server.hardware]\ninstance_type = "{kind}"\n[server.env]\nstart_command = "serve"\nports = [80]\n'
        return self._found(
            HELLO.replace('"t3.small"\n', '"t3.small"\nstrategy = "inference"\n') + f"\n{server}"
        )

    def _found(self, text: str) -> dict[str, HealthFinding]:
        self.file.write_text(text)
        descriptor, _ = read_request(JobRequest(file=self.file))
        resolved = resolve(descriptor, self.settings, self.session)
        return {
            each.check: each
            for each in request_findings(descriptor, resolved, self.session, bucket_region=REGION)
        }

    def group(self, name: str = "mine", **tags: str) -> str:
        tag_list = [{"Key": key, "Value": value} for key, value in tags.items()]
        made = self.ec2.create_security_group(
            GroupName=name,
            Description="of a test",
            VpcId=self.vpc,
            TagSpecifications=[{"ResourceType": "security-group", "Tags": tag_list}] if tags else [],
        )
        return str(made["GroupId"])


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DoctorHarness]:
    for name in [name for name in os.environ if name.startswith(("AWS_", "BAI_"))]:
        monkeypatch.delenv(name)
    with open_moto_aws() as aws:
        for name, value in aws.environment().items():
            monkeypatch.setenv(name, value)
        yield DoctorHarness(aws, tmp_path)


def test_enough_quota_and_addresses_pass_the_checks(account: DoctorHarness) -> None:
    found = account.found(8)

    assert {found[check].health for check in ("quota", "addresses", "group rights", "launch")} == {Health.OK}
    assert "1,152 vCPUs, of which 0 are in use; the job needs 16 (8 × 2)" in found["quota"].sentence
    assert "change and delete groups are not known yet" in found["group rights"].sentence
    assert "8 machines" in found["launch"].sentence
    [tried] = account.aws.calls("RunInstances")
    assert (tried.parameters["MinCount"], tried.parameters["MaxCount"]) == ("8", "8")
    assert account.aws.instances() == []
    assert [each.parameters["DryRun"] for each in account.aws.calls("CreateSecurityGroup")] == ["true"]


def test_a_quota_includes_running_machines(account: DoctorHarness) -> None:
    account.ec2.run_instances(
        ImageId="ami-0deb1200000000001", InstanceType="m5.large", MinCount=3, MaxCount=3
    )
    account.aws.quotas.vcpus[STANDARD] = 20.0

    assert account.found(7)["quota"].health is Health.OK
    short = account.found(8)["quota"]

    assert short.health is Health.FAILED
    assert "20 vCPUs, of which 6 are in use; the job needs 16 (8 × 2)" in short.sentence
    assert "Service Quotas" in short.todo


def test_a_servers_machine_is_examined_like_its_clients(account: DoctorHarness) -> None:
    account.aws.quotas.vcpus[STANDARD] = 5.0

    found = account.found_with_server("m5.xlarge")

    assert found["quota"].health is Health.FAILED
    assert "5 vCPUs, of which 0 are in use; the job needs 6 (1 × 2 + 1 × 4)" in found["quota"].sentence
    assert found["group rights"].health is Health.OK  # the client must reach the server
    assert "accepted (the server, m5.xlarge)" in found["launch"].sentence
    tried = [each.parameters for each in account.aws.calls("RunInstances")]
    assert [each["InstanceType"] for each in tried] == ["t3.small", "m5.xlarge"]
    assert account.aws.instances() == []

    account.aws.fail("RunInstances", code="OptInRequired", match={"InstanceType": "m5.xlarge"}, times=None)
    refused = account.found_with_server("m5.xlarge")["launch"]
    assert (refused.health, "(the server, m5.xlarge)" in refused.sentence) == (Health.FAILED, True)


def test_spot_machines_have_a_separate_quota(account: DoctorHarness) -> None:
    spot = '[aws.ec2.run_instances.InstanceMarketOptions]\nMarketType = "spot"\n'

    assert "Spot Instance Requests" in account.found(2, spot)["quota"].sentence
    assert account.found(3, spot)["quota"].health is Health.FAILED


def test_a_quota_that_the_user_may_not_read_is_reported_as_unknown(account: DoctorHarness) -> None:
    _deny(account, "servicequotas:ListServiceQuotas")

    found = account.found(2)["quota"]

    assert found.health is Health.UNKNOWN
    assert "servicequotas:ListServiceQuotas" in found.sentence
    account.aws.policies.take_refused()


def test_a_subnet_with_too_few_free_addresses_is_reported(account: DoctorHarness) -> None:
    small = account.ec2.create_subnet(VpcId=account.vpc, CidrBlock="172.31.250.0/28")["Subnet"]["SubnetId"]
    large = next(iter(account.aws.subnets.values()))

    assert account.found(8, f'subnets = ["{small}"]\n')["addresses"].health is Health.OK
    none = account.found(12, f'subnets = ["{small}"]\n')["addresses"]
    assert (none.health, small in none.sentence) == (Health.FAILED, True)
    one = account.found(12, f'subnets = ["{small}", "{large}"]\n')["addresses"]
    assert (one.health, large in one.sentence) == (Health.WARNING, False)


def test_subnets_in_several_vpcs_without_a_security_group_fail_the_launch_check(
    account: DoctorHarness,
) -> None:
    other = account.ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    foreign = account.ec2.create_subnet(VpcId=other, CidrBlock="10.9.1.0/24")["Subnet"]["SubnetId"]
    own = next(iter(account.aws.subnets.values()))

    found = account.found(2, f'subnets = ["{own}", "{foreign}"]\n')["launch"]

    assert (found.health, found.configuration) == (Health.FAILED, True)
    assert "several VPCs" in found.sentence


def test_permissions_for_security_groups_are_checked_with_dry_runs(account: DoctorHarness) -> None:
    earlier = account.group("bai before 0", **{"bai:job-id": "before"})
    assert "are not known yet" not in account.found(2)["group rights"].sentence

    _deny(account, "ec2:DeleteSecurityGroup")
    found = account.found(2)["group rights"]

    assert found.health is Health.FAILED
    assert "ec2:DeleteSecurityGroup is not allowed" in found.sentence
    assert "docs/iam" in found.todo
    account.aws.policies.take_refused()
    assert earlier in {each["GroupId"] for each in account.ec2.describe_security_groups()["SecurityGroups"]}


def test_configured_security_groups_must_allow_traffic_between_nodes(account: DoctorHarness) -> None:
    group = account.group()
    more = f'security_groups = ["{group}"]\n'

    closed = account.found(2, more)["group rules"]
    assert (closed.health, group in closed.todo) == (Health.WARNING, True)
    assert "authorize-security-group-ingress" in closed.todo

    ssh = {
        "IpProtocol": "tcp",
        "FromPort": 22,
        "ToPort": 22,
        "UserIdGroupPairs": [{"GroupId": group}],
    }
    _let_in(account, group, ssh)
    assert account.found(2, more)["group rules"].health is Health.WARNING
    _let_in(account, group, {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]})
    assert account.found(2, more)["group rules"].health is Health.OK


def test_a_rule_for_an_address_range_is_enough_for_tcp_but_not_for_efa(account: DoctorHarness) -> None:
    group = account.group()
    _let_in(account, group, {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "172.16.0.0/12"}]})
    more = f'security_groups = ["{group}"]\n'

    assert account.found(2, more)["group rules"].health is Health.OK
    found = account.found(2, more + EFA, kind="p4d.24xlarge")["group rules"]
    assert found.health is Health.WARNING
    assert "in and out" in found.sentence


def test_a_missing_or_unsuitable_placement_group_is_reported(account: DoctorHarness) -> None:
    more = '[aws.ec2.run_instances.Placement]\nGroupName = "together"\n'

    missing = account.found(2, more)["placement"]
    assert (missing.health, missing.configuration) == (Health.FAILED, True)
    assert "create-placement-group --strategy cluster --group-name together" in missing.todo

    account.aws.placement_groups.strategies["together"] = "spread"
    assert account.found(7, more)["placement"].health is Health.OK
    assert account.found(8, more)["placement"].health is Health.FAILED
    account.aws.placement_groups.strategies["together"] = "cluster"
    assert account.found(8, more)["placement"].health is Health.OK


@pytest.mark.parametrize(
    ("kind", "health", "words"),
    [
        ("p4d.24xlarge", Health.OK, "2 of at most 4"),
        ("c5n.18xlarge", Health.FAILED, "up to 1"),
        ("t3.small", Health.FAILED, "takes none"),
    ],
)
def test_efa_needs_a_type_that_supports_it(
    account: DoctorHarness, kind: str, health: Health, words: str
) -> None:
    found = account.found(2, EFA, kind=kind)["efa"]

    assert found.health is health
    assert words in found.sentence


def test_several_interfaces_need_a_route_to_s3_without_public_addresses(account: DoctorHarness) -> None:
    tables = account.ec2.describe_route_tables()["RouteTables"]
    gateway = account.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    account.ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=account.vpc)
    account.ec2.create_route(
        RouteTableId=tables[0]["RouteTableId"], DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway
    )
    cut_off = account.found(1, EFA, kind="p4d.24xlarge")["interfaces"]
    assert cut_off.health is Health.FAILED
    assert "no public address" in cut_off.sentence

    account.ec2.create_vpc_endpoint(
        VpcId=account.vpc,
        ServiceName=f"com.amazonaws.{REGION}.s3",
        RouteTableIds=[each["RouteTableId"] for each in tables],
        VpcEndpointType="Gateway",
    )
    assert account.found(1, EFA, kind="p4d.24xlarge")["interfaces"].health is Health.OK


def test_options_change_what_doctor_checks(account: DoctorHarness, tmp_path: Path) -> None:
    account.file.write_text(HELLO.replace('"t3.small"\n', '"t3.small"\nstrategy = "torchrun"\n'))
    cli = CliHarness(tmp_path, dict(os.environ))

    done = cli.bai("doctor", "b.toml", "--nodes", "3", "--instance-type", "p4d.24xlarge", "--json")

    quota = next(each for each in done.objects if each["check"] == "quota")
    assert "288 (3 × 96)" in quota["sentence"]
    alone = cli.bai("doctor", "--nodes", "3")
    assert alone.code == 2
    assert "bai doctor FILE" in alone.stderr


def _let_in(account: DoctorHarness, group: str, rule: dict[str, Any]) -> None:
    account.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])


def _deny(account: DoctorHarness, action: str) -> None:
    """Take one action out of what the documented policy allows a user."""
    policies = account.aws.policies
    kept = [
        replace(each, actions=tuple(name for name in each.actions if name != action))
        for each in policies.documented("user").statements
    ]
    policies.attach("user", Policy(tuple(kept)))
