"""`bai doctor`: tries what a job on EC2 needs, launches nothing, and says what to do where something is missing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from botocore.exceptions import ClientError

from bai_agent.errors import BaiError
from executor.backends.ec2.doctor.bucket import bucket_findings
from executor.backends.ec2.doctor.findings import Health, HealthFinding, guarded, refused, unusable
from executor.backends.ec2.doctor.launch import launch_findings
from executor.backends.ec2.launch.resolve import ec2_table, named_settings, region_of
from executor.backends.ec2.routes import s3_routes
from executor.backends.ec2.session import DENIED, FAILURES, AwsSession, aws_of, code_of
from executor.config import Settings
from executor.planning.request import JobRequest, read_request

_BROKER_TIMEOUT_S = 5.0


def examine(settings: Settings, job_request: JobRequest | None = None) -> Iterator[HealthFinding]:
    """Yield what was found, one thing after the other. job_request: what is to run; its image and its launch are tried as well."""
    try:
        aws = aws_of(settings)
    except BaiError as error:
        yield unusable("region", error)
        yield from _brokers(settings)
        return
    credentials = _credentials(aws)
    yield credentials
    yield from _brokers(settings)
    if credentials.health is Health.FAILED:
        return
    region = guarded("region", lambda: _region(aws))
    yield region
    if region.health is Health.FAILED:
        return
    try:
        launched = _as_launched(settings, job_request)
        there = aws_of(settings, region=launched.region)
    except BaiError:  # said by `launch_findings`
        launched, there = settings, aws
    yield from bucket_findings(settings, aws, instances=there.region)
    yield guarded("profile", lambda: _instance_profile(launched, aws))
    yield from _network(launched, there, bucket_region=aws.region)
    yield from launch_findings(settings, aws, job_request)


def _as_launched(settings: Settings, job_request: JobRequest | None) -> Settings:
    """Return `settings` with what the job's descriptor says of its machines in their place. Raises what reading it does."""
    if job_request is None:
        return settings
    descriptor, _ = read_request(job_request)
    ec2 = ec2_table(descriptor)
    return replace(
        settings,
        region=region_of(descriptor, settings),
        subnets=tuple(ec2.subnets) or settings.subnets,
        **named_settings(ec2, settings),
    )


def _credentials(aws: AwsSession) -> HealthFinding:
    def look() -> HealthFinding:
        who = aws.sts().get_caller_identity()
        return HealthFinding(
            "credentials", Health.OK, f"{who['Arn']}" + (f", profile {aws.profile}" if aws.profile else "")
        )

    return guarded("credentials", look)


def _region(aws: AwsSession) -> HealthFinding:
    zones = aws.ec2().describe_availability_zones()["AvailabilityZones"]
    usable = [each for each in zones if each.get("State") == "available"]
    return HealthFinding("region", Health.OK, f"{aws.region}, {len(usable)} availability zones")


def _instance_profile(settings: Settings, aws: AwsSession) -> HealthFinding:
    if not settings.instance_profile:
        return HealthFinding(
            "profile",
            Health.FAILED,
            "no instance_profile is configured; without one an instance cannot fetch its agent",
            "make one with the policy in docs/iam, and configure its name",
            configuration=True,
        )
    name = settings.instance_profile.rpartition("/")[2]
    try:
        profile = aws.iam().get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    except ClientError as error:
        if code_of(error) == "NoSuchEntity":
            return HealthFinding(
                "profile", Health.FAILED, f"{name} does not exist", "correct instance_profile, or make it"
            )
        if code_of(error) in DENIED:
            return HealthFinding(
                "profile",
                Health.UNKNOWN,
                f"{name}: these credentials may not look at it (iam:GetInstanceProfile)",
            )
        raise
    roles = [each["RoleName"] for each in profile.get("Roles", ())]
    if not roles:
        return HealthFinding(
            "profile",
            Health.FAILED,
            f"{name} has no role",
            f"aws iam add-role-to-instance-profile --instance-profile-name {name} --role-name ROLE",
        )
    return HealthFinding("profile", Health.OK, f"{name}, role {roles[0]}")


def _network(settings: Settings, aws: AwsSession, *, bucket_region: str) -> Iterator[HealthFinding]:
    ec2: Any = aws.ec2()
    try:
        if settings.subnets:
            subnets = ec2.describe_subnets(SubnetIds=list(settings.subnets))["Subnets"]
        else:
            subnets = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])[
                "Subnets"
            ]
        routes = s3_routes(aws, subnets, public_ip=settings.public_ip, bucket_region=bucket_region)
    except FAILURES as error:
        yield refused("subnets", error)
        return
    if not subnets:
        yield HealthFinding(
            "subnets", Health.FAILED, f"there is no default VPC in {aws.region}", "configure `subnets`"
        )
        return
    for subnet, route in zip(subnets, routes, strict=True):
        name = f"{subnet['SubnetId']} ({subnet['AvailabilityZone']})"
        if not subnet.get("AvailableIpAddressCount", 1):
            yield HealthFinding(
                "subnets", Health.FAILED, f"{name} has no free address", "name another subnet"
            )
        else:
            yield HealthFinding(
                "subnets",
                Health.FAILED if not route.reaches else Health.WARNING if route.todo else Health.OK,
                f"{name} {route.sentence}",
                route.todo,
            )
    vpcs = sorted({each["VpcId"] for each in subnets})
    yield guarded("groups", lambda: _groups(settings, ec2, vpcs))


def _groups(settings: Settings, ec2: Any, vpcs: list[str]) -> HealthFinding:
    if not settings.security_groups:
        return _default_groups(ec2, vpcs)
    groups = ec2.describe_security_groups(GroupIds=list(settings.security_groups))["SecurityGroups"]
    foreign = [each["GroupId"] for each in groups if each.get("VpcId") not in vpcs]
    if foreign:
        return HealthFinding(
            "groups",
            Health.FAILED,
            f"{', '.join(foreign)} belongs to another VPC than the subnets",
            "name groups of their VPC",
            configuration=True,
        )
    closed = [each["GroupId"] for each in groups if not each.get("IpPermissionsEgress")]
    if len(closed) == len(groups):
        return HealthFinding(
            "groups",
            Health.FAILED,
            f"{', '.join(closed)} lets nothing out",
            "allow outgoing TCP 443, and Kafka's port",
        )
    return HealthFinding("groups", Health.OK, ", ".join(each["GroupId"] for each in groups))


def _default_groups(ec2: Any, vpcs: list[str]) -> HealthFinding:
    """Look whether the default groups of these VPCs let anything out: hardened accounts close them."""
    filters = [{"Name": "vpc-id", "Values": vpcs}, {"Name": "group-name", "Values": ["default"]}]
    groups = ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    closed = [each["GroupId"] for each in groups if not each.get("IpPermissionsEgress")]
    if closed:
        return HealthFinding(
            "groups",
            Health.FAILED,
            f"none is configured, and the default group that is used then lets nothing out: {', '.join(closed)}",
            "configure `security_groups`, one that allows outgoing TCP 443, and Kafka's port",
        )
    return HealthFinding("groups", Health.OK, "none is configured: the VPC's default group is used")


def _brokers(settings: Settings) -> Iterator[HealthFinding]:
    for broker in settings.kafka.brokers if settings.kafka else ():
        host, _, port = broker.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_BROKER_TIMEOUT_S):
                yield HealthFinding(
                    "kafka",
                    Health.OK,
                    f"{broker} answers here; whether it does to the instances, only they can tell",
                )
        except ValueError:
            yield HealthFinding(
                "kafka", Health.FAILED, f'"{broker}" is not an address', "write HOST:PORT", configuration=True
            )
        except OSError as error:
            yield HealthFinding(
                "kafka",
                Health.WARNING,
                f"{broker} does not answer from here ({error.strerror or error})",
                "that may be right where it lives in the instances' VPC",
            )
