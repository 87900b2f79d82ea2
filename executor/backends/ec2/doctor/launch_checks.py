"""Checks for `bai doctor` what a launch needs: the agent's bundle and, if a descriptor is given, its image,
its price, and a dry run of the launch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from botocore.exceptions import ClientError

from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.strategy_tables import Server, StrategyTable
from bai_agent.light_dataclass import replace
from executor.backends.ec2.bundle.bundle import build, linux_architecture
from executor.backends.ec2.bundle.wheels import ARCHITECTURES
from executor.backends.ec2.doctor.doctor_findings import (
    HealthFinding,
    failed,
    guarded,
    passed,
    unknown,
    unusable,
    warned,
)
from executor.backends.ec2.doctor.node_checks import node_findings
from executor.backends.ec2.launch.cost import price, read_tenancy
from executor.backends.ec2.launch.draft import bundle_upload, own_group
from executor.backends.ec2.launch.error_classes import classify_error
from executor.backends.ec2.launch.launch_request import for_candidate, launch_request, server_request
from executor.backends.ec2.launch.resolve import Resolved, ec2_table, launch_region, resolve, type_names
from executor.backends.ec2.session import AwsSession, aws_session, code_of
from executor.backends.ec2.staging_bucket import missing, staging_bucket
from executor.backends.ec2.tags import tag_time
from executor.configuration.config import Settings
from executor.descriptor import Descriptor
from executor.errors import WheelError
from executor.owned_folders import cache_folder
from executor.planning.job_defaults import with_defaults
from executor.planning.request import JobRequest, read_request

_USER_DATA = b"#cloud-config\n"
_UNCHECKED = "name a descriptor to check its image and its launch: bai doctor FILE"


def launch_findings(
    settings: Settings, aws: AwsSession, job_request: JobRequest | None
) -> Iterator[HealthFinding]:
    """Yield the findings. Raises no errors, because a check that is not possible is also a finding."""
    if job_request is None:
        for architecture in ARCHITECTURES:
            yield _bundle(settings, architecture)
        yield unknown("launch", "not tried", _UNCHECKED)
        return
    try:
        descriptor = with_defaults(read_request(job_request)[0], settings)
    except BaiError as error:
        yield failed("descriptor", str(error), configuration=True)
        return
    try:
        there = aws_session(settings, region=launch_region(descriptor, settings))
        resolved = resolve(descriptor, settings, there)
    except BaiError as error:
        yield unusable("image", error)
        return
    zones = ", ".join(dict.fromkeys(each.zone for each in resolved.candidates))
    image, types = resolved.image, type_names(resolved.candidates)
    yield passed("image", f"{image.id} ({image.architecture}) for {types} in {zones}")
    yield _bundle(settings, linux_architecture(image.architecture))
    tenancy = read_tenancy(ec2_table(descriptor).run_instances)
    for kind in resolved.kinds_of_image:
        yield _price(settings, there, kind.name, operation=image.operation, tenancy=tenancy)
    yield from request_findings(descriptor, resolved, there, bucket_region=aws.region)


def request_findings(
    descriptor: Descriptor, resolved: Resolved, aws: AwsSession, *, bucket_region: str
) -> Iterator[HealthFinding]:
    """Yield the findings about the needs of the launch's machines, such as quotas, and about EC2's answer to
    a dry run of the launch. Raises no errors."""
    job = Job(
        job=Identity(id="doctor", client_id="doctor"),
        benchmark=Benchmark(argv=("true",)),
        strategy=StrategyTable(name=descriptor.hardware.strategy, nodes=descriptor.hardware.nodes),
        server=Server(ports=(80,), argv=("true",)) if resolved.server is not None else None,
    )
    expires = tag_time(datetime.now(timezone.utc) + timedelta(hours=1))
    try:
        request = launch_request(job, resolved, ec2_table(descriptor), user_data=_USER_DATA, expires=expires)
        group = own_group(job, resolved, request, expires=expires)
    except BaiError as error:
        yield unusable("launch", error)
        return
    if (block := resolved.block) is not None:
        finding = passed if block.end is not None else unknown
        yield finding("capacity block", block.sentence())
    yield from node_findings(aws, resolved, request, group, bucket_region=bucket_region)
    yield guarded("launch", lambda: _dry_run(request, resolved, aws))
    if resolved.server is not None:
        server = server_request(request, resolved.server, user_data=_USER_DATA)
        yield guarded("launch", lambda: _dry_run(request, resolved, aws, server=server))


def _bundle(settings: Settings, architecture: str) -> HealthFinding:
    todo = "`bai bundle --upload` or the first submission builds the bundle"
    check = f"agent {architecture}"
    try:
        built = build(architecture, cache=cache_folder(os.environ), download=False)
        absent = missing(staging_bucket(settings), [bundle_upload(built)])
    except WheelError:
        return warned(check, "the agent's bundle was not built on this machine yet", todo)
    except BaiError as error:
        return unusable(check, error)
    if absent:
        return warned(check, f"the agent's bundle is not in the bucket ({built.key})", todo)
    return passed(check, f"{built.key} is in the bucket")


def _price(settings: Settings, aws: AwsSession, name: str, *, operation: str, tenancy: str) -> HealthFinding:
    hourly, origin = price(name, settings.prices, aws, operation=operation, tenancy=tenancy)
    if hourly is None:
        todo = f'write the price under [prices] in the configuration: "{name}" = 1.23'
        return warned("price", f"the price of {name} is unknown: {origin}", todo)
    return passed("price", f"{name}: {hourly:,.4f} USD an hour, {origin}")


def _dry_run(
    request: Mapping[str, Any],
    resolved: Resolved,
    aws: AwsSession,
    *,
    server: Mapping[str, Any] | None = None,
) -> HealthFinding:
    """Ask EC2 in a dry run whether these credentials may launch the job's machines. server: parameters of the
    request for the job's server; None to check the request for the other machines.

    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html
    """
    candidate, nodes, of_server = resolved.candidates[0], request["MaxCount"], ""
    if server is not None:
        kind = str(server["InstanceType"])
        request, candidate, of_server = (
            {**request, **server},
            replace(candidate, type=kind),
            f" (the server, {kind})",
        )
    try:
        aws.no_retry_client().run_instances(**for_candidate(request, candidate, "doctor"), DryRun=True)
    except ClientError as error:
        if code_of(error) != "DryRunOperation":
            return failed("launch", f"{classify_error(error).sentence}{of_server}")
        what = "one machine" if nodes == 1 else f"{nodes:,} machines"
        return passed("launch", f"a dry run of {what} in {candidate.zone} was accepted{of_server}")
    return unknown("launch", "the server's answer does not say whether a launch is allowed")
