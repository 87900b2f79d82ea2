"""What `bai doctor` tries of a launch: the agent's bundle; for a descriptor its image, its price, and a dry run of the launch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

from botocore.exceptions import ClientError

from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Benchmark, Identity, Job
from executor.backends.ec2.bundle.bundle import build, cache_folder, linux_architecture
from executor.backends.ec2.bundle.wheels import ARCHITECTURES, WheelError
from executor.backends.ec2.doctor.findings import Health, HealthFinding, refused, unusable
from executor.backends.ec2.launch.cost import price
from executor.backends.ec2.launch.errors import classify_error
from executor.backends.ec2.launch.request import for_candidate, launch_request
from executor.backends.ec2.launch.resolve import Resolved, ec2_table, region_of, resolve
from executor.backends.ec2.session import FAILURES, AwsSession, aws_of, code_of
from executor.backends.ec2.staging_bucket import Upload, missing, staging_bucket
from executor.backends.ec2.tags import tag_time
from executor.config import Settings
from executor.descriptor import Descriptor, load, render_findings

_UNCHECKED = "name a descriptor to have its image and its launch tried: bai doctor FILE"


def launch_findings(settings: Settings, aws: AwsSession, file: Path | None) -> Iterator[HealthFinding]:
    """Yield what was found. Raises nothing: what cannot be looked at is a finding."""
    descriptor, findings = load(file) if file is not None else (None, [])
    if file is not None and descriptor is None:
        yield HealthFinding(
            "descriptor", Health.FAILED, render_findings(findings).strip(), configuration=True
        )
    if descriptor is None:
        for architecture in ARCHITECTURES:
            yield _bundle(settings, architecture)
        yield HealthFinding("launch", Health.UNKNOWN, "not tried", _UNCHECKED)
        return
    try:
        there = aws_of(settings, region=region_of(descriptor, settings))
        resolved = resolve(descriptor, settings, there)
    except BaiError as error:
        yield unusable("image", error)
        return
    zones = ", ".join(each.zone for each in resolved.candidates)
    yield HealthFinding(
        "image",
        Health.OK,
        f"{resolved.image.id} ({resolved.image.architecture}) for {resolved.kind.name} in {zones}",
    )
    yield _bundle(settings, linux_architecture(resolved.image.architecture))
    placement = ec2_table(descriptor).run_instances.get("Placement", {})
    yield _price(settings, there, resolved, tenancy=str(placement.get("Tenancy", "default")))
    yield _dry_run(descriptor, resolved, there)


def _bundle(settings: Settings, architecture: str) -> HealthFinding:
    todo = "`bai bundle --upload` builds it; so does the first submission"
    check = f"agent {architecture}"
    try:
        built = build(architecture, cache=cache_folder(os.environ), download=False)
        absent = missing(
            staging_bucket(settings),
            [Upload(key=built.key, path=built.path, size=built.size, what="the agent")],
        )
    except WheelError:
        return HealthFinding(check, Health.WARNING, "its bundle was not built on this machine yet", todo)
    except BaiError as error:
        return unusable(check, error)
    if absent:
        return HealthFinding(check, Health.WARNING, f"its bundle is not in the bucket ({built.key})", todo)
    return HealthFinding(check, Health.OK, f"{built.key} is in the bucket")


def _price(settings: Settings, aws: AwsSession, resolved: Resolved, *, tenancy: str) -> HealthFinding:
    hourly, origin = price(
        resolved.kind.name, settings.prices, aws, operation=resolved.image.operation, tenancy=tenancy
    )
    if hourly is None:
        return HealthFinding(
            "price",
            Health.WARNING,
            f"that of {resolved.kind.name} is unknown: {origin}",
            f'write it under [prices] in the configuration: "{resolved.kind.name}" = 1.23',
        )
    return HealthFinding("price", Health.OK, f"{resolved.kind.name}: {hourly:,.4f} USD an hour, {origin}")


def _dry_run(descriptor: Descriptor, resolved: Resolved, aws: AwsSession) -> HealthFinding:
    """Ask EC2 whether these credentials may launch this.

    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html
    """
    job = Job(job=Identity(id="doctor", client_id="doctor"), benchmark=Benchmark(argv=("true",)))
    try:
        request = launch_request(
            job,
            resolved,
            ec2_table(descriptor),
            user_data=b"#cloud-config\n",
            expires=tag_time(datetime.now(timezone.utc) + timedelta(hours=1)),
        )
        aws.no_retry_client().run_instances(
            **for_candidate(request, resolved.candidates[0], "doctor"), DryRun=True
        )
    except ClientError as error:
        if code_of(error) == "DryRunOperation":
            return HealthFinding(
                "launch", Health.OK, f"a dry run of it in {resolved.candidates[0].zone} was accepted"
            )
        return HealthFinding("launch", Health.FAILED, classify_error(error).sentence)
    except FAILURES as error:
        return refused("launch", error)
    except BaiError as error:
        return unusable("launch", error)
    return HealthFinding("launch", Health.UNKNOWN, "the server does not say whether it would have launched")
