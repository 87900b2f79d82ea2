"""Plans the launch of a job on EC2 as of now. `bai plan` shows the planned launch, and `bai submit` requests
it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.sink_tables import Store
from bai_agent.job.descriptor.strategy_tables import SERVER_NODE
from bai_agent.light_dataclass import dataclass, replace
from cloud_init.user_data import Boot, Bundle
from executor.backends.ec2.bundle.bundle import BuiltBundle, build, linux_architecture
from executor.backends.ec2.bundle.wheels import ARCHITECTURES
from executor.backends.ec2.launch.capacity_block import within_block
from executor.backends.ec2.launch.cost import (
    Cost,
    dearest,
    is_bound,
    mean,
    not_included,
    price,
    read_tenancy,
    volume_cost,
)
from executor.backends.ec2.launch.images import InstanceType, placeholder, unknown_names
from executor.backends.ec2.launch.launch_record import LAUNCH_WINDOW, LaunchFile, Wait, expires_at
from executor.backends.ec2.launch.launch_request import (
    UserData,
    boot_limit,
    check_run_instances,
    deadman,
    launch_request,
    machines_in_words,
    make_user_data,
    server_request,
)
from executor.backends.ec2.launch.network import names_groups
from executor.backends.ec2.launch.resolve import (
    Resolved,
    ec2_table,
    instance_types,
    launch_region,
    resolve,
    server_type,
    unresolved,
)
from executor.backends.ec2.security_group import group_request
from executor.backends.ec2.session import AwsSession
from executor.backends.ec2.staging_bucket import LocalFiles, Upload, local_files
from executor.backends.ec2.tags import job_tags, tag_time
from executor.configuration.config import Settings
from executor.descriptor import Descriptor, Finding, Severity
from executor.descriptor.ec2_table import Ec2
from executor.errors import UsageError, WheelError
from executor.planning.plan import plan
from executor.planning.request import UNDRAWN_ID, JobRequest
from executor.planning.requested_job import arm_files, find_scripts, plan_inputs


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """A job with everything that the job's launch needs."""

    job: Job
    resolved: Resolved
    bundle: BuiltBundle | None
    """Bundle of the agent; None if the bundle is built only at submission."""
    user_data: UserData
    file: LaunchFile
    """Content of `launch.json`, which will record the launch."""
    max_cost: float | None = None
    """Maximum cost of the job (USD); None if there is no bound."""
    shortened: str | None = None
    """Reason why the job gets less run time than its descriptor sets; None if the job gets the whole run
    time."""
    may_hang: bool = False
    """Whether the job has several GPU machines, but no limit of the run time or of the time without
    output."""

    def cost(self, settings: Settings, aws: AwsSession | None) -> Cost:
        """Return the job's cost with the most expensive of its types. Queries AWS's price list if the
        configuration has no price."""
        image, request = self.resolved.image, self.file.request
        longest = deadman(self.job)
        if self.job.is_elastic:
            # A replacement for a lost machine may run until the `expires` of the whole job, which includes
            # LAUNCH_WINDOW.
            longest += LAUNCH_WINDOW
        server = self.resolved.server

        def cost(kind: InstanceType) -> Cost:
            name = kind.name
            excluded = not_included(name, request, vcpus=kind.vcpus)
            hourly, origin = price(
                name, settings.prices, aws, operation=image.operation, tenancy=read_tenancy(request)
            )
            return Cost(
                # The cost is computed for the maximum number of nodes, because `bai scale` may enlarge the
                # job.
                instances=self.job.strategy.nodes if server is None else 1,
                longest=longest,
                replacements=self.job.elastic.replacements,
                hourly=hourly,
                volumes=volume_cost(request).hourly,
                origin=f"{name}: {origin}" if self.resolved.other_kinds or server is not None else origin,
                bound=name not in settings.prices and is_bound(image, excluded),
                excluded=excluded,
            )

        own = dearest([cost(kind) for kind in self.resolved.kinds])
        return own if server is None else mean([own, cost(server)])

    def machines(self, kinds: str) -> str:
        """Return the machines as text for the user. kinds: the names of the machines' types, without the
        server's type."""
        server = self.resolved.server
        more = "" if server is None else f" and 1 × {server.name} as its server"
        number = machines_in_words(self.job) if server is None else "1"
        return f"{number} × {kinds}{more}"

    @property
    def vcpus(self) -> int | None:
        """Number of vCPUs of all machines; None if the machines' types were not looked up."""
        own, server = self.resolved.kind.vcpus, self.resolved.server
        if own is None or server is None:
            return None if own is None else own * self.job.desired_nodes
        return None if server.vcpus is None else own + server.vcpus


@contextmanager
def planned_job(
    job_request: JobRequest, descriptor: Descriptor, settings: Settings, *, job_id: str
) -> Iterator[tuple[Job, LocalFiles]]:
    """Yield the job descriptor of `job_request` with its local files. Packed files exist until the end of the
    `with` block. Queries git and reads local files, but does not use the network. Raises PlanError,
    ScriptsError, UsageError.
    """
    if job_request.data_root is not None:
        raise UsageError("--data-root is for runs on this machine; instances use their own data path")
    service = job_request.service
    bucket = settings.bucket or placeholder("the bucket")
    store = Store(url=f"s3://{bucket}/jobs", region=settings.region, endpoint=settings.s3_endpoint)
    scripts = find_scripts(job_request, descriptor)
    inputs = plan_inputs(job_request, settings, job_id=job_id, store=store, scripts=scripts)
    with local_files(descriptor, inputs.folder, scripts, bucket=bucket, region=settings.region) as files:
        arms = arm_files(descriptor)
        job = plan(descriptor, replace(inputs, where="ec2", uploads=files.sources, arms=arms))
        yield (job if service is None else service.complete(job)), files


def draft(
    job: Job,
    descriptor: Descriptor,
    settings: Settings,
    aws: AwsSession | None,
    *,
    cache: Path,
    now: datetime,
    resolved: Resolved | None = None,
    exists: bool = False,
) -> LaunchPlan:
    """Return the plan of a launch of `job` as of `now`. Without `aws`, unknown values are placeholders.
    resolved: results of earlier look-ups. exists: whether the store already has the job, so that its limits
    must not change. Raises UsageError, AwsError, WheelError.
    """
    ec2 = ec2_table(descriptor)
    region = launch_region(descriptor, settings)
    if resolved is None:
        resolved = (
            resolve(descriptor, settings, aws)
            if aws is not None
            else unresolved(descriptor, settings, region)
        )
    if job.strategy.processes_per_node == "gpus":
        job = replace(job, strategy=replace(job.strategy, gpus=resolved.kind.gpus))
    shortened: str | None = None
    if resolved.block is not None and not exists:
        job, shortened = within_block(job, resolved.block, now + LAUNCH_WINDOW)
    bundle = _bundle(resolved, cache=cache, download=aws is not None)
    user_data = make_user_data(
        job, ec2, bundle=_bundle_object(job, bundle), region=settings.region or resolved.region
    )
    expires = expires_at(now, deadman(job))
    if resolved.block is not None and resolved.block.last is not None:
        expires = min(expires, tag_time(resolved.block.last))
    request = launch_request(job, resolved, ec2, user_data=user_data.content, expires=expires)
    file = LaunchFile(
        job_id=job.job.id,
        attempt=job.job.attempt,
        region=resolved.region,
        candidates=resolved.candidates,
        request=request,
        server=_server_request(job, resolved, ec2, request, user_data.boot),
        security_group=own_group(job, resolved, request, expires=expires),
        expires=expires,
        created=tag_time(now),
        boot_limit=round(boot_limit(ec2).total_seconds()),
        wait=wait_for_capacity(descriptor, settings, since=tag_time(now)),
    )
    return LaunchPlan(
        job=job,
        resolved=resolved,
        bundle=bundle,
        user_data=user_data,
        file=file.sealed(),
        max_cost=descriptor.limits.max_cost or settings.limits.max_cost,
        shortened=shortened,
        may_hang=_may_hang(job, descriptor, settings, resolved),
    )


def _server_request(
    job: Job, resolved: Resolved, ec2: Ec2, request: Mapping[str, Any], boot: Boot
) -> dict[str, Any] | None:
    if resolved.server is None:
        return None
    own = make_user_data(job, ec2, bundle=boot.bundle, region=boot.region, first_node=SERVER_NODE)
    return server_request(request, resolved.server, user_data=own.content)


def _may_hang(job: Job, descriptor: Descriptor, settings: Settings, resolved: Resolved) -> bool:
    limits = (descriptor.limits, settings.limits)
    bounded = any(each.max_runtime or each.no_output for each in limits)
    return job.strategy.nodes > 1 and not bounded and any(each.gpus for each in resolved.kinds)


def wait_for_capacity(descriptor: Descriptor, settings: Settings, *, since: str) -> Wait | None:
    """Return the wait for capacity of a job that is submitted at `since`; None if the job does not wait for
    capacity."""
    duration = descriptor.limits.wait_for_capacity or settings.limits.wait_for_capacity
    return None if duration is None else Wait(seconds=math.ceil(duration.total_seconds()), since=since)


def own_group(
    job: Job, resolved: Resolved, request: Mapping[str, Any], *, expires: str
) -> dict[str, Any] | None:
    """Return the parameters of the security group to create for a job of several machines; None if the
    request already names a group, or if no group is needed. Raises UsageError."""
    if job.strategy.nodes == 1 or names_groups(request):
        return None
    if len(resolved.vpcs) != 1:
        raise UsageError(
            f"the subnets are in several VPCs ({', '.join(resolved.vpcs)}), but the security group of a job of several "
            "machines is in one VPC; name subnets of one VPC, or configure security_groups"
        )
    tags = job_tags(job, expires=expires)
    return group_request(job.job.id, job.job.attempt, resolved.vpcs[0], tags)


def bundle_upload(bundle: BuiltBundle) -> Upload:
    """Return the upload of a bundle into the staging bucket."""
    return Upload(
        key=bundle.key, path=bundle.path, size=bundle.size, what=f"the agent for {bundle.architecture}"
    )


def unknown_words(descriptor: Descriptor, settings: Settings) -> list[str]:
    """Return a warning for each instance type and region of `descriptor` that boto3 does not know. Raises UsageError."""
    types = {**server_type(descriptor), **instance_types(descriptor)}
    return unknown_names(types, launch_region(descriptor, settings))


def preflight(
    job_request: JobRequest, descriptor: Descriptor, settings: Settings, *, cache: Path, now: datetime
) -> list[Finding]:
    """Return the problems that a launch of `job_request` would have, with its strategy, scripts, local data,
    launch parameters and size of user data.

    Reads local files and packs the scripts, as a submission does, but does not use the network.
    """

    def draw() -> None:
        with planned_job(job_request, descriptor, settings, job_id=UNDRAWN_ID) as (job, _):
            draft(job, descriptor, settings, None, cache=cache, now=now)

    found: list[Finding] = []

    def attempt(check: Callable[[], object]) -> None:
        try:
            check()
        except BaiError as error:
            problem = str(error)
            # An invalid key is found by both checks, but is reported only once.
            if problem not in (each.problem for each in found):
                found.append(Finding(file=str(job_request.file), problem=problem, fix=""))

    attempt(lambda: check_run_instances(ec2_table(descriptor).run_instances))
    attempt(draw)
    if not found:
        file = str(job_request.file)
        unknown = unknown_words(descriptor, settings)
        found += [Finding(file=file, problem=each, fix="", severity=Severity.WARNING) for each in unknown]
    return found


def _bundle(resolved: Resolved, *, cache: Path, download: bool) -> BuiltBundle | None:
    architecture = linux_architecture(resolved.image.architecture)
    if architecture not in ARCHITECTURES:
        if download:
            raise UsageError(
                f"the image {resolved.image.id} is for {architecture}; the agent runs on x86_64 and arm64"
            )
        return None
    try:
        return build(architecture, cache=cache, download=download)
    except WheelError:
        if download:
            raise
        return None


def _bundle_object(job: Job, bundle: BuiltBundle | None) -> Bundle:
    root = job.store.url.removesuffix("/jobs") if job.store else ""
    if bundle is None:
        unknown = placeholder("the agent's bundle")
        return Bundle(url=f"{root}/agent/{unknown}.tar.gz", sha256=unknown, size=0)
    return Bundle(url=f"{root}/{bundle.key}", sha256=bundle.sha256, size=bundle.size)
