"""What would be launched on EC2, as `bai plan` shows it."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from bai_agent.job.descriptor_file import job_table
from cloud_init.user_data import LIMIT, readable
from executor.backends.ec2.bundle.bundle import cache_folder
from executor.backends.ec2.launch.draft import LaunchPlan, draft, planned_job
from executor.backends.ec2.launch.resolve import region_of
from executor.backends.ec2.launch.volume import data_size
from executor.backends.ec2.session import AwsSession, CredentialsError
from executor.backends.ec2.staging_bucket import Upload
from executor.config import Settings
from executor.descriptor import Descriptor
from executor.errors import UsageError
from executor.planning.request import UNDRAWN_ID, JobRequest
from executor.planning.scripts_folder import ScriptsSurvey
from executor.quantities import size


@dataclass(frozen=True)
class Ec2Plan:
    """A launch with all that belongs to it."""

    launch: LaunchPlan
    uploads: Sequence[Upload]
    settings: Settings
    aws: AwsSession | None
    """None where AWS cannot be asked."""
    scripts: ScriptsSurvey | None
    said: Callable[[str], None]

    def table(self) -> dict[str, Any]:
        launch, cost = self.launch, self.launch.cost(self.settings, self.aws)
        boot = launch.user_data.boot
        return {
            "job": job_table(launch.job),
            "region": launch.resolved.region,
            "candidates": [{"subnet": each.subnet, "az": each.zone} for each in launch.resolved.candidates],
            "request": launch.request,
            "user_data": readable(boot),
            "user_data_bytes": len(launch.user_data.content),
            "user_data_limit": LIMIT,
            "expires": launch.expires,
            "bundle": {"url": boot.bundle.url, "bytes": boot.bundle.size},
            "uploads": [{"key": each.key, "bytes": each.size, "what": each.what} for each in self.uploads],
            "cost": {
                "instance_hours": cost.hours,
                "usd_an_hour": cost.hourly,
                "usd": cost.dollars,
                "origin": cost.origin,
            },
            "scripts": self.scripts.as_table() if self.scripts is not None else None,
        }

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines())

    def user_data(self) -> bytes:
        """Return it in base64, and say what a machine needs that is launched with it by hand."""
        launch = self.launch
        if launch.bundle is None:
            raise UsageError(
                "the user data names the agent's bundle, which needs a bucket, a region and AWS credentials"
            )
        self.said(
            f"for the job {launch.job.job.id}; an instance needs the instance profile, and IAM and storage as `bai plan` shows"
        )
        wanted = [f"agent for {launch.bundle.architecture}", *(each.what for each in self.uploads)]
        self.said(
            f"it reads from the bucket: {', '.join(wanted)}; `bai bundle --upload` brings the agent there"
        )
        return base64.b64encode(launch.user_data.content)

    def _lines(self) -> Iterator[str]:
        launch, cost = self.launch, self.launch.cost(self.settings, self.aws)
        places = ", then ".join(f"{each.subnet} ({each.zone})" for each in launch.resolved.candidates)
        yield f"# RunInstances in {launch.resolved.region}, in {places}:"
        yield json.dumps({**launch.request, "UserData": "<see below>"}, indent=2, ensure_ascii=False)
        yield ""
        yield "# Goes into the bucket, where it is not yet:"
        bundle = launch.user_data.boot.bundle
        yield f"#   {bundle.url}" + (f"  {size(bundle.size)}" if bundle.size else "")
        for each in self.uploads:
            yield f"#   {each.key}  {size(each.size)}  ({each.what})"
        for unknown in data_size(launch.job.sources).unknown:
            yield f"# The size of {unknown} is not known: [aws.ec2.volume] size makes sure that it fits."
        yield ""
        yield f"# User data: {len(launch.user_data.content):,} of {LIMIT:,} bytes; in clear:"
        yield readable(launch.user_data.boot)
        yield f"# Costs {cost.sentence()}."


@contextmanager
def planned_launch(
    job_request: JobRequest,
    descriptor: Descriptor,
    settings: Settings,
    *,
    job_id: str | None,
    said: Callable[[str], None],
) -> Iterator[tuple[LaunchPlan, Sequence[Upload], AwsSession | None]]:
    """Yield how `job_request` would be launched now, what would be uploaded, and AWS where it could be asked.

    Reads only; without credentials some of it is not known, which `said` hears. Raises as `planned_job` and `draft` do.
    """
    aws = _aws_if_there(descriptor, settings, said)
    with planned_job(job_request, descriptor, settings, job_id=job_id or UNDRAWN_ID) as (job, files):
        now, cache = datetime.now(timezone.utc), cache_folder(os.environ)
        yield draft(job, descriptor, settings, aws, cache=cache, now=now), files.uploads, aws


def _aws_if_there(
    descriptor: Descriptor, settings: Settings, said: Callable[[str], None]
) -> AwsSession | None:
    """Return AWS where a region and credentials are known; else say what is missing."""
    region = region_of(descriptor, settings)
    if region is None or settings.bucket is None:
        missing = "region" if region is None else "bucket"
        said(f"no {missing} is configured; what only AWS knows is left open")
        return None
    aws = AwsSession(region, settings.aws_profile)
    try:
        aws.credentials()
    except CredentialsError as error:
        said(f"{error}; what only AWS knows is left open")
        return None
    return aws
