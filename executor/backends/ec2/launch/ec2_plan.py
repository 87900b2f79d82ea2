"""Shows a planned launch on EC2 as text: in the output of `bai plan`, and in the notice to the user before
the launch is requested."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor_file import job_table
from bai_agent.light_dataclass import dataclass
from cloud_init.user_data import LIMIT, readable
from executor.backends.ec2.launch.cost import Cost, hang_warning, over_budget
from executor.backends.ec2.launch.draft import LaunchPlan, draft, planned_job, unknown_words
from executor.backends.ec2.launch.launch_record import candidate_table
from executor.backends.ec2.launch.launch_request import data_size, machines_in_words
from executor.backends.ec2.launch.resolve import Candidate, kind_name, launch_region, type_names
from executor.backends.ec2.launch.waiting import plan_sentence
from executor.backends.ec2.routes import ENDPOINT_ADVICE, cut_off_sentence, find_subnets, without_s3
from executor.backends.ec2.session import FAILURES, AwsSession
from executor.backends.ec2.staging_bucket import Upload
from executor.configuration.config import Settings
from executor.descriptor import Descriptor
from executor.errors import AwsCredentialsError, UsageError
from executor.owned_folders import cache_folder
from executor.planning.job_defaults import DefaultValue, notes_of
from executor.planning.request import UNDRAWN_ID, JobRequest
from executor.planning.scripts_folder import ScriptsSurvey
from executor.quantities import size


@dataclass(frozen=True)
class Ec2Plan:
    """A planned launch on EC2, with everything that `bai plan` shows."""

    launch: LaunchPlan
    uploads: Sequence[Upload]
    settings: Settings
    aws: AwsSession | None
    """Session of AWS; None if AWS cannot be queried."""
    survey: Callable[[], ScriptsSurvey | None]
    on_progress: Callable[[str], None]
    defaults: Sequence[DefaultValue] = ()
    """Values that the job takes from the configuration, because the descriptor does not set them."""

    @cached_property
    def scripts(self) -> ScriptsSurvey | None:
        """The scripts of the job."""
        return self.survey()

    @cached_property
    def cost(self) -> Cost:
        return self.launch.cost(self.settings, self.aws)

    def notes(self) -> list[str]:
        found = [f"scripts: {self.scripts.sentence()}"] if self.scripts is not None else []
        warned = [hang_warning(self.cost)] if self.launch.may_hang else []
        if self.launch.shortened is not None:
            warned.append(self.launch.shortened)
        found += mount_notes(self.launch.job)
        return [*found, *notes_of(self.defaults), *(f"warning: {each}" for each in warned)]

    def refusal(self) -> str | None:
        return over_budget(self.cost, self.launch.max_cost)

    def table(self) -> dict[str, Any]:
        launch, file, cost = self.launch, self.launch.file, self.cost
        boot = launch.user_data.boot
        return {
            "job": job_table(launch.job),
            "region": launch.resolved.region,
            "candidates": [candidate_table(each) for each in launch.resolved.candidates],
            "request": file.request,
            "server": file.server,
            "security_group": file.security_group,
            "user_data": readable(boot),
            "user_data_bytes": len(launch.user_data.content),
            "user_data_limit": LIMIT,
            "expires": file.expires,
            "wait_for_capacity": None if file.wait is None else file.wait.seconds,
            "vcpus": launch.vcpus,
            "bundle": {"url": boot.bundle.url, "bytes": boot.bundle.size},
            "uploads": [{"key": each.key, "bytes": each.size, "what": each.what} for each in self.uploads],
            "cost": {
                "instance_hours": cost.hours,
                "usd_an_hour": cost.hourly,
                "usd_an_hour_of_volumes": cost.volumes,
                "usd": cost.dollars,
                "origin": cost.origin,
                "max_usd": launch.max_cost,
            },
            "scripts": self.scripts.as_table() if self.scripts is not None else None,
            "defaults": {each.key: each.as_table() for each in self.defaults},
        }

    def text(self, *, show_user_data: bool = False) -> str:
        return "".join(f"{line}\n" for line in self._lines(show_user_data=show_user_data))

    def user_data(self) -> bytes:
        """Return the user data in base64. Also report to `on_progress` what a user must provide to launch a
        machine with this user data by hand."""
        launch = self.launch
        if launch.bundle is None:
            raise UsageError(
                "the user data names the agent's bundle, which needs a bucket, a region and AWS credentials"
            )
        self.on_progress(
            f"user data of the job {launch.job.job.id}; an instance needs the instance profile, image and storage that `bai plan` shows"
        )
        wanted = [f"agent for {launch.bundle.architecture}", *(each.what for each in self.uploads)]
        self.on_progress(
            f"an instance reads from the bucket: {', '.join(wanted)}; `bai bundle --upload` uploads the agent"
        )
        return base64.b64encode(launch.user_data.content)

    def _lines(self, *, show_user_data: bool) -> Iterator[str]:
        launch = self.launch
        yield from self._summary()
        yield ""
        if (group := launch.file.security_group) is not None:
            yield f'# CreateSecurityGroup "{group["GroupName"]}" in {group["VpcId"]}: all traffic from itself'
        yield from self._asked_in_turn()
        yield json.dumps({**launch.file.request, "UserData": "<see below>"}, indent=2, ensure_ascii=False)
        yield ""
        if (server := launch.file.server) is not None:
            yield (
                f"# Then RunInstances for the server in the same subnet, with InstanceType {server['InstanceType']}; both or none "
                "are launched."
            )
        yield "# Uploads, unless the bucket already has the object:"
        bundle = launch.user_data.boot.bundle
        yield f"#   {bundle.url}" + (f"  {size(bundle.size)}" if bundle.size else "")
        for each in self.uploads:
            yield f"#   {each.key}  {size(each.size)}  ({each.what})"
        for unknown in data_size(launch.job.sources).unknown:
            yield f"# The size of {unknown} is not known: set [aws.ec2.volume] size so that the data fits."
        yield ""
        used = f"# User data: {len(launch.user_data.content):,} of {LIMIT:,} bytes"
        if show_user_data:
            yield f"{used}; in plain text:"
            yield readable(launch.user_data.boot)
        else:
            yield f"{used}; `--show-user-data` prints the user data in plain text."

    def _summary(self) -> Iterator[str]:
        """Yield the plan's first lines: the machines, their cost, and the number of vCPUs of the account's
        quota that the machines use."""
        launch, file, cost = self.launch, self.launch.file, self.cost
        first = launch.resolved.candidates[0]
        image = file.request.get("ImageId", "")
        yield f"# Launches {launch.machines(first.type)} in {launch.resolved.region} from the image {image}."
        yield f"# Costs {cost.sentence()}."
        if (vcpus := launch.vcpus) is not None:
            nodes, each = launch.job.desired_nodes, launch.resolved.kind.vcpus or 0
            shares = f"{nodes:,} × {each}" if file.server is None else f"{each} + {vcpus - each}"
            yield f"# Takes {vcpus:,} vCPUs of the account's quota ({shares}); `bai doctor FILE` compares them."
        if file.wait is not None:
            yield f"# {plan_sentence(file.wait)}."

    def _asked_in_turn(self) -> Iterator[str]:
        """Yield one line per instance type and market, in the order in which bai requests them from EC2."""
        resolved = self.launch.resolved
        machines = "1" if self.launch.file.server is not None else machines_in_words(self.launch.job)
        groups: dict[tuple[str, str], list[Candidate]] = {}
        for each in resolved.candidates:
            groups.setdefault(each.kind, []).append(each)
        begin = "# RunInstances"
        for number, candidates in enumerate(groups.values(), 1):
            what = kind_name(candidates[0], resolved.candidates) or candidates[0].type
            what = what if what.startswith(candidates[0].type) else f"{candidates[0].type} {what}"
            places = ", then ".join(f"{each.subnet} ({each.zone})" for each in candidates)
            yield f"{begin}: {machines} × {what} in {resolved.region}, in {places}{':' if number == len(groups) else ','}"
            begin = "#   then"


def mount_notes(job: Job) -> list[str]:
    """Return a note for each of `[[mounts]]` about requirements that cannot be checked before the launch."""
    return [
        f"mounts: {each.src} at {each.target}; the image needs {each.type.package}, and the file system's security group must "
        "allow TCP port 2049 from the machines"
        for each in job.mounts
    ]


@dataclass(frozen=True)
class Notice:
    """The `LaunchNotice` of EC2."""

    launch: LaunchPlan
    settings: Settings
    aws: AwsSession

    def sentence(self, *, cost: bool) -> str:
        launch = self.launch
        kinds = type_names(launch.resolved.candidates)
        what = f"{launch.machines(kinds)} in {launch.resolved.region}"
        price = f": {self.all_costs.sentence()}" if cost else ""
        return f"launching {what}{price}"

    def cost(self) -> float | None:
        return self.all_costs.dollars

    def hourly(self) -> float | None:
        costs = self.all_costs
        return None if costs.hourly is None else costs.instances * (costs.hourly + costs.volumes)

    def warnings(self) -> list[str]:
        found = [hang_warning(self.all_costs)] if self.launch.may_hang else []
        bucket, machines = self.settings.region, self.launch.resolved.region
        if bucket is not None and bucket != machines:
            found.append(
                f"the machines are in {machines} and the bucket is in {bucket}: AWS charges for each GB between the regions, and an S3 "
                f"endpoint in {machines} does not lead to the bucket; `bai doctor FILE` checks the routes to the bucket"
            )
        if self.launch.shortened is not None:
            found.append(self.launch.shortened)
        return [*found, *self._interface_warnings()]

    def _interface_warnings(self) -> list[str]:
        """Return warnings if machines with several network interfaces may not reach S3, because EC2 gives
        such machines no public address."""
        interfaces = len(self.launch.file.request.get("NetworkInterfaces", ()))
        if interfaces < 2:
            return []
        ids = list(dict.fromkeys(each.subnet for each in self.launch.resolved.candidates))
        try:
            subnets = find_subnets(self.aws, ids)
            cut_off = without_s3(self.aws, subnets, bucket_region=self.settings.region or self.aws.region)
        except FAILURES:
            return [
                f"a machine with {interfaces} network interfaces gets no public address, and these credentials could not look up the routes "
                "to S3: the subnets need a gateway endpoint for S3, or a NAT gateway"
            ]
        return [f"{cut_off_sentence(cut_off, interfaces=interfaces)}; {ENDPOINT_ADVICE}"] if cut_off else []

    @cached_property
    def all_costs(self) -> Cost:
        return self.launch.cost(self.settings, self.aws)


@contextmanager
def planned_launch(
    job_request: JobRequest,
    descriptor: Descriptor,
    settings: Settings,
    *,
    job_id: str | None,
    on_progress: Callable[[str], None],
) -> Iterator[tuple[LaunchPlan, Sequence[Upload], AwsSession | None]]:
    """Yield the plan of the launch and its uploads as of now.

    The function changes nothing. Without credentials some values are unknown; unknown values are reported to
    `on_progress`. Raises the errors of `planned_job` and `draft`.
    """
    aws = _aws_if_there(descriptor, settings, on_progress)
    if aws is None:
        # No warning is added if AWS can be queried, because AWS's own message is better.
        for warning in unknown_words(descriptor, settings):
            on_progress(warning)
    with planned_job(job_request, descriptor, settings, job_id=job_id or UNDRAWN_ID) as (job, files):
        now, cache = datetime.now(timezone.utc), cache_folder(os.environ)
        yield draft(job, descriptor, settings, aws, cache=cache, now=now), files.uploads, aws


def _aws_if_there(
    descriptor: Descriptor, settings: Settings, on_progress: Callable[[str], None]
) -> AwsSession | None:
    """Return the session of AWS if a region and credentials are known; otherwise None, after reporting what
    is missing."""
    region = launch_region(descriptor, settings)
    if region is None or settings.bucket is None:
        missing = "region" if region is None else "bucket"
        on_progress(f"no {missing} is configured; values that only AWS knows remain unresolved")
        return None
    aws = AwsSession(region, settings.aws_profile)
    try:
        aws.credentials()
    except AwsCredentialsError as error:
        on_progress(f"{error}; values that only AWS knows remain unresolved")
        return None
    return aws
