"""Submits a job to EC2: uploads what it takes along, writes it down, launches it. Once for a job id."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from bai_agent.job.record import JobRecord
from bai_agent.job.store import RecordError
from executor.backends.backend import SubmitListener
from executor.backends.ec2.bundle.bundle import cache_folder
from executor.backends.ec2.job_store import bucket_store
from executor.backends.ec2.launch.draft import LaunchPlan, bundle_upload, draft, planned_job
from executor.backends.ec2.launch.launch import (
    adopt,
    decided_before,
    launch,
    read_launch,
    refusal_of,
    write_launch,
)
from executor.backends.ec2.launch.repeat import check_job_bytes, problem_with, redrawn
from executor.backends.ec2.launch.resolve import region_of
from executor.backends.ec2.launch.user_data import deadman
from executor.backends.ec2.regions import name_region
from executor.backends.ec2.session import AwsSession, aws_of
from executor.backends.ec2.staging_bucket import check_region, staging_bucket, upload
from executor.config import Settings
from executor.descriptor import Descriptor
from executor.errors import UsageError
from executor.planning.job_toml import job_toml
from executor.planning.request import JobRequest, Submitted, check_id, new_job_id, same_job
from executor.quantities import size


def submit(
    job_request: JobRequest,
    descriptor: Descriptor,
    settings: Settings,
    *,
    job_id: str | None = None,
    listener: SubmitListener | None = None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
) -> Submitted:
    """Launch the job of `job_request`, or find it launched. Repeated with its id after whatever happened, it is launched once.

    Raises LaunchError where EC2 refuses for good (the job's result says so), UndecidedError where it may or may not run,
    UsageError where the store holds another job or another launch under this id than `job_request` makes.
    """
    listener = listener or SubmitListener()
    if job_id is not None:
        check_id(job_id)
    _check_configured(job_request, settings)
    drawn = job_id or new_job_id(job_request, descriptor)
    listener.on_submit(drawn)
    check_region(settings)
    aws = aws_of(settings, region=region_of(descriptor, settings))
    record = JobRecord(bucket_store(settings), drawn)
    cache = cache_folder(os.environ)
    with planned_job(job_request, descriptor, settings, job_id=drawn) as (job, files):
        there = record.job() if record.exists() else None
        if there is not None:
            same_job(there, job, job_request)
            if record.result() is not None and (refusal := refusal_of(record)) is not None:
                raise refusal
            if record.result() is not None or decided_before(record) is not None:
                return Submitted(record, there, new=False)
        try:
            file = read_launch(record)
        except RecordError:
            # Another version of `bai` may write it in another way; its tags are the same.
            if there is None or adopt(record, aws) is None:
                raise
            return Submitted(record, there, new=False)
        new, ours = False, None
        if file is None:
            drawing = draft(there or job, descriptor, settings, aws, cache=cache, now=now())
            listener.on_plan(_Notice(drawing, settings, aws))
            agent = [bundle_upload(drawing.bundle)] if drawing.bundle is not None else []
            upload(
                staging_bucket(settings),
                [*agent, *files.uploads],
                on_upload=lambda each: listener.on_progress(f"uploading {each.what} ({size(each.size)})"),
            )
            new = _write_job(record, drawing, job_request)
            there, ours = drawing.job, drawing.launch_file()
            file = write_launch(record, ours)
        if file != ours:
            # Somebody else has written it: an earlier submission, one beside us, or who should not have.
            problem = problem_with(
                record,
                file,
                there,
                lambda: redrawn(file, there or job, descriptor, settings, aws, cache=cache),
                region=aws.region,
                now=now(),
            )
            if problem is not None:
                if there is None or adopt(record, AwsSession(file.region, settings.aws_profile)) is None:
                    raise UsageError(problem)
                return Submitted(record, there, new=False)
    listener.on_launch(drawn)
    launch(record, file, aws, deadman=deadman(job.limits), told=listener.on_progress, sleep=sleep, now=now)
    return Submitted(record, record.job(), new=new)


@dataclass(frozen=True)
class _Notice:
    """A `LaunchNotice`."""

    launch: LaunchPlan
    settings: Settings
    aws: AwsSession

    def sentence(self, *, cost: bool) -> str:
        launch = self.launch
        what = f"{launch.job.strategy.nodes} × {launch.resolved.kind.name} in {launch.resolved.region}"
        price = f": {launch.cost(self.settings, self.aws).sentence()}" if cost else ""
        return f"launching {what}{price}"


def _check_configured(job_request: JobRequest, settings: Settings) -> None:
    try:
        settings.need_bucket()
    except UsageError as error:
        if job_request.on is not None:
            raise
        raise UsageError(f"{error}; `--on local` runs it on this machine") from error


def _write_job(record: JobRecord, drawing: LaunchPlan, job_request: JobRequest) -> bool:
    """Write the job, unless somebody has; return whether it is new. Raises UsageError where another one is there."""
    content = job_toml(drawing.job).encode()
    new = record.store.put(record.key("job.toml"), content, if_absent=True)
    if not new:
        same_job(record.job(), drawing.job, job_request)
        check_job_bytes(record, drawing.job)
    # Before the launch, which may outlive us: whoever reaps has to know where to look.
    name_region(record.store, drawing.resolved.region)
    return new
