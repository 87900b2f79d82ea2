"""Runs the checks of `bai doctor`: checks everything that a job on EC2 needs without launching a machine, and
names a remedy for each problem."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from botocore.exceptions import ClientError

from bai_agent.errors import BaiError, StoreError
from executor.backends.ec2.attention import look_sentence
from executor.backends.ec2.bucket_store import bucket_store
from executor.backends.ec2.clock import span, store_now
from executor.backends.ec2.doctor.doctor_findings import (
    Health,
    HealthFinding,
    failed,
    guarded,
    passed,
    refused,
    unknown,
    unusable,
    warned,
)
from executor.backends.ec2.doctor.launch_checks import launch_findings
from executor.backends.ec2.launch.resolve import ec2_table, launch_region, named_settings
from executor.backends.ec2.routes import find_subnets, s3_routes
from executor.backends.ec2.session import (
    DENIED,
    FAILURES,
    AwsSession,
    Failure,
    aws_session,
    code_of,
    tolerated,
)
from executor.backends.ec2.watched_jobs import Look, Looker, last_looks
from executor.configuration.config import Settings, config_file
from executor.planning.job_defaults import with_defaults
from executor.planning.request import JobRequest, read_request

_BROKER_TIMEOUT_S = 5.0


def examine(settings: Settings, job_request: JobRequest | None = None) -> Iterator[HealthFinding]:
    """Yield the findings one by one. job_request: a job whose image and launch are also checked; None if no
    job is checked."""
    try:
        aws = aws_session(settings)
    except BaiError as error:
        yield unusable("region", error)
        yield from _brokers(settings)
        return
    credentials = guarded("credentials", lambda: _credentials(aws))
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
        there = aws_session(settings, region=launched.region)
    except BaiError:  # `launch_findings` reports the error.
        launched, there = settings, aws
    yield from bucket_findings(settings, aws, instances=there.region)
    if settings.bucket:
        yield guarded("looks", lambda: _look_finding(settings))
    yield _instance_profile(launched, aws)
    yield from _network(launched, there, bucket_region=aws.region)
    yield from launch_findings(settings, aws, job_request)


def _look_finding(settings: Settings) -> HealthFinding:
    """Return the finding that says which process checks all jobs of the bucket, and how long ago its last
    check was."""
    try:
        store = bucket_store(settings, quick=True)
        looks = last_looks(store, store_now(store.url))
    except StoreError as error:
        return unknown("looks", str(error))
    if late := [each for each in looks if each.kind is Looker.WATCHER and not each.goes_on]:
        return _late_watcher(late[0], settings)
    if found := [each for each in looks if each.goes_on]:
        return passed("looks", look_sentence(found[0], "all jobs"))
    said = "nothing checks unattended jobs: a machine that hangs stays on until a command checks it"
    return passed("looks", said, "run `bai setup --watcher` or `bai reap --every 1m`")


def _late_watcher(look: Look, settings: Settings) -> HealthFinding:
    said = f"the watcher in the account last checked the jobs {span(look.age)} ago"
    # `bai setup` gives the role of the instances and the watcher's Lambda function names with the same
    # prefix.
    setup = (settings.instance_profile or "").removesuffix("-instance") or "bai"
    todo = f"the watcher's log says why: aws logs tail /aws/lambda/{setup}-watcher; `bai setup` repairs the watcher, `bai setup --no-watcher` removes the watcher"
    return warned("looks", said, todo)


def _as_launched(settings: Settings, job_request: JobRequest | None) -> Settings:
    """Return `settings` with the values that the job's descriptor overrides. Raises the errors of reading the
    descriptor."""
    if job_request is None:
        return settings
    descriptor = with_defaults(read_request(job_request)[0], settings)
    ec2 = ec2_table(descriptor)
    return replace(
        settings,
        region=launch_region(descriptor, settings),
        subnets=tuple(ec2.subnets) or settings.subnets,
        **named_settings(ec2, settings),
    )


def _credentials(aws: AwsSession) -> HealthFinding:
    who = aws.sts().get_caller_identity()
    return passed("credentials", f"{who['Arn']}" + (f", profile {aws.profile}" if aws.profile else ""))


def _region(aws: AwsSession) -> HealthFinding:
    zones = aws.ec2().describe_availability_zones()["AvailabilityZones"]
    usable = [each for each in zones if each.get("State") == "available"]
    return passed("region", f"{aws.region}, {len(usable)} availability zones")


def _instance_profile(settings: Settings, aws: AwsSession) -> HealthFinding:
    if not settings.instance_profile:
        return failed(
            "profile",
            "no instance_profile is configured; without one an instance cannot fetch its agent",
            "run `bai setup`, or create a profile with the policy in docs/iam.md, and configure its name",
            configuration=True,
        )
    name = settings.instance_profile.rpartition("/")[2]
    denied = f"{name}: these credentials may not read the profile (iam:GetInstanceProfile)"
    return guarded("profile", lambda: _role(name, aws), denied=denied)


def _role(name: str, aws: AwsSession) -> HealthFinding:
    """Check whether the instance profile `name` exists and has a role."""
    profile: Any = None
    with tolerated("NoSuchEntity"):
        profile = aws.iam().get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    if profile is None:
        return failed("profile", f"{name} does not exist", "correct instance_profile, or create the profile")
    roles = [each["RoleName"] for each in profile.get("Roles", ())]
    if roles:
        return passed("profile", f"{name}, role {roles[0]}")
    todo = f"aws iam add-role-to-instance-profile --instance-profile-name {name} --role-name ROLE"
    return failed("profile", f"{name} has no role", todo)


def _network(settings: Settings, aws: AwsSession, *, bucket_region: str) -> Iterator[HealthFinding]:
    try:
        subnets: Any = find_subnets(aws, settings.subnets)
        routes = s3_routes(aws, subnets, public_ip=settings.public_ip, bucket_region=bucket_region)
    except FAILURES as error:
        yield refused("subnets", error)
        return
    if not subnets:
        yield failed("subnets", f"there is no default VPC in {aws.region}", "configure `subnets`")
        return
    for subnet, route in zip(subnets, routes, strict=True):
        name = f"{subnet['SubnetId']} ({subnet['AvailabilityZone']})"
        if not subnet.get("AvailableIpAddressCount", 1):
            yield failed("subnets", f"{name} has no free address", "name another subnet")
            continue
        health = Health.FAILED if not route.reaches else Health.WARNING if route.todo else Health.OK
        yield HealthFinding("subnets", health, f"{name} {route.sentence}", route.todo)
    vpcs = sorted({each["VpcId"] for each in subnets})
    yield guarded("groups", lambda: _groups(settings, aws.ec2(), vpcs))


def _groups(settings: Settings, ec2: Any, vpcs: list[str]) -> HealthFinding:
    if not settings.security_groups:
        return _default_groups(ec2, vpcs)
    groups = ec2.describe_security_groups(GroupIds=list(settings.security_groups))["SecurityGroups"]
    foreign = [each["GroupId"] for each in groups if each.get("VpcId") not in vpcs]
    if foreign:
        said = f"{', '.join(foreign)} belongs to another VPC than the subnets"
        return failed("groups", said, "name groups of the subnets' VPC", configuration=True)
    closed = _closed(groups)
    if len(closed) == len(groups):
        said = f"{', '.join(closed)} blocks all outgoing traffic"
        return failed("groups", said, "allow outgoing TCP 443, and Kafka's port")
    return passed("groups", ", ".join(each["GroupId"] for each in groups))


def _default_groups(ec2: Any, vpcs: list[str]) -> HealthFinding:
    """Check whether the default security groups of these VPCs allow outgoing traffic, because hardened
    accounts block that traffic."""
    filters = [{"Name": "vpc-id", "Values": vpcs}, {"Name": "group-name", "Values": ["default"]}]
    closed = _closed(ec2.describe_security_groups(Filters=filters)["SecurityGroups"])
    if closed:
        return failed(
            "groups",
            f"no security group is configured, and the default group blocks outgoing traffic: {', '.join(closed)}",
            "configure `security_groups` with a group that allows outgoing TCP 443, and Kafka's port",
        )
    return passed("groups", "no security group is configured: the VPC's default group is used")


def _closed(groups: list[Any]) -> list[str]:
    """Return the ids of those `groups` that block all outgoing traffic."""
    return [each["GroupId"] for each in groups if not each.get("IpPermissionsEgress")]


def _brokers(settings: Settings) -> Iterator[HealthFinding]:
    for broker in settings.kafka.brokers if settings.kafka else ():
        host, _, port = broker.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_BROKER_TIMEOUT_S):
                said = f"{broker} answers this machine; whether it also answers the instances is unknown"
                yield passed("kafka", said)
        except OSError as error:
            said = f"{broker} does not answer this machine ({error.strerror or error})"
            yield warned("kafka", said, "ignore this warning if the broker is in the instances' VPC")


_PROBE = "jobs/.doctor/probe.json"
"""Key of a small object in the bucket. The object is never deleted, so every later put with If-None-Match must
fail."""


def bucket_findings(settings: Settings, aws: AwsSession, *, instances: str) -> Iterator[HealthFinding]:
    """Yield the findings about the configured bucket. instances: the region of the machines that will use the
    bucket."""
    if not settings.bucket:
        todo = f'write bucket = "…" into {config_file(os.environ)}'
        yield failed("bucket", "none is configured", todo, configuration=True)
        return
    bucket, s3 = settings.bucket, aws.s3()
    try:
        headers = s3.head_bucket(Bucket=bucket)["ResponseMetadata"]["HTTPHeaders"]
    except FAILURES as error:
        yield _unusable_bucket(bucket, aws.region, error)
        return
    there = headers.get("x-amz-bucket-region") or aws.region
    if there != aws.region:
        # S3 refuses requests that are signed for a region other than the bucket's, and jobs sign requests for
        # the configured region.
        yield failed(
            "bucket",
            f"{bucket} lies in {there}, but the configured region is {aws.region}",
            f'write region = "{there}" into the configuration, or use a bucket in the configured region; a descriptor\'s '
            "[aws.ec2] region may name another region for the instances",
        )
        return
    yield passed("bucket", f"{bucket} in {there}")
    if instances != aws.region:
        yield warned(
            "bucket",
            f"{bucket} lies in {there}, and the machines will be in {instances}: AWS charges for each GB between the regions, and a gateway "
            f"endpoint in {instances} does not lead to the bucket",
            f"use a bucket in {instances}, or launch the machines in {there}",
        )
    yield guarded("bucket list", lambda: _listable(s3, bucket))
    yield guarded("bucket write", lambda: _conditional(s3, bucket))
    denied = "these credentials may not read the bucket's settings (s3:GetBucketVersioning, s3:GetLifecycleConfiguration)"
    yield guarded("bucket versions", lambda: _versions(s3, bucket), denied=denied)


def _unusable_bucket(bucket: str, region: str, error: Failure) -> HealthFinding:
    """Return the finding about a bucket that could not be queried."""
    code = code_of(error) if isinstance(error, ClientError) else ""
    if code in ("404", "NoSuchBucket"):
        todo = f"create the bucket: aws s3 mb s3://{bucket} --region {region}"
        return failed("bucket", f"{bucket} does not exist", todo)
    if code in ("301", "PermanentRedirect"):
        said = f"{bucket} is in another region than {region}"
        return failed("bucket", said, "configure the bucket's region", configuration=True)
    if code in DENIED:
        todo = "the bucket belongs to another account, or the policy lacks s3:ListBucket"
        return failed("bucket", f"{bucket} cannot be used with these credentials", todo)
    return refused("bucket", error)


def _listable(s3: Any, bucket: str) -> HealthFinding:
    s3.list_objects_v2(Bucket=bucket, Prefix="jobs/", MaxKeys=1)
    return passed("bucket list", "jobs/ can be listed")


def _conditional(s3: Any, bucket: str) -> HealthFinding:
    """Put an object twice with If-None-Match, and check that the second put fails."""
    for _ in range(2):
        try:
            # A bucket with Object Lock refuses objects without a checksum.
            s3.put_object(
                Bucket=bucket, Key=_PROBE, Body=b"{}\n", IfNoneMatch="*", ChecksumAlgorithm="SHA256"
            )
        except ClientError as error:
            if code_of(error) not in ("PreconditionFailed", "412", "ConditionalRequestConflict"):
                raise
            return passed("bucket write", "objects can be written on the condition that they do not exist")
    said = "the server ignores If-None-Match, so a job could be launched twice"
    return failed("bucket write", said, "use Amazon S3, or a server that supports conditional writes")


def _versions(s3: Any, bucket: str) -> HealthFinding:
    """Check whether old versions of objects, which a versioned bucket keeps and charges for, are ever
    deleted."""
    if s3.get_bucket_versioning(Bucket=bucket).get("Status") != "Enabled":
        return passed("bucket versions", "none are kept")
    rules: list[Any] = []
    with tolerated("NoSuchLifecycleConfiguration"):
        rules = s3.get_bucket_lifecycle_configuration(Bucket=bucket).get("Rules", [])
    if any(each.get("Status") == "Enabled" and "NoncurrentVersionExpiration" in each for each in rules):
        return passed("bucket versions", "a lifecycle rule deletes old versions of objects")
    return warned(
        "bucket versions",
        "AWS keeps and charges all old versions, even of deleted objects, because no lifecycle rule deletes them",
        f"add a rule with NoncurrentVersionExpiration: aws s3api put-bucket-lifecycle-configuration --bucket {bucket}",
    )
