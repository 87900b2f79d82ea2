"""Submits a job to EC2: uploads its files, records it, launches it. Once per job id."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

from bai_agent.errors import StoreError
from bai_agent.job.descriptor import Job
from bai_agent.job.record import JobRecord
from bai_agent.job.store import RecordError
from executor.backends.backend import SubmitListener
from executor.backends.ec2.bundle.bundle import cache_folder
from executor.backends.ec2.job_store import bucket_store, name_region
from executor.backends.ec2.launch.capacity_block import as_bounded
from executor.backends.ec2.launch.cost import over_budget
from executor.backends.ec2.launch.draft import LaunchPlan, bundle_upload, draft, planned_job
from executor.backends.ec2.launch.launch import adopt, decided_before, launch, refusal_of
from executor.backends.ec2.launch.launch_record import (
    LaunchFile,
    read_latest_round,
    read_launch,
    write_launch,
)
from executor.backends.ec2.launch.notice import Notice
from executor.backends.ec2.launch.repeat import (
    check_job_bytes,
    problem_with,
    problem_with_round,
    redrawn,
)
from executor.backends.ec2.launch.request import deadman
from executor.backends.ec2.launch.resolve import ec2_table, region_of
from executor.backends.ec2.launch.waiting import NoCapacityError, next_round
from executor.backends.ec2.session import AwsSession, aws_of
from executor.backends.ec2.staging_bucket import check_region, staging_bucket, upload
from executor.config import Settings
from executor.descriptor import Descriptor
from executor.errors import UsageError
from executor.planning.job_toml import job_toml
from executor.planning.repetition import keep_request
from executor.planning.request import (
    JobRequest,
    Submitted,
    archive_of_request,
    check_id,
    new_job_id,
    same_job,
    scripts_of_request,
)
from executor.quantities import size

log = logging.getLogger(__name__)

_LOOK_S = 5.0
"""Between two looks, of who waits for capacity, at whether the job is still wanted."""


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
    """Launch the job of `job_request`, or find it launched. Repeated with the same id, after any failure, it is launched once.

    Where the job waits for capacity this waits here, unless the listener's `on_wait` raises: whoever repeats it keeps the job's place.
    Raises LaunchError where EC2 refuses for good (the job's result says so), UndecidedError where it may or may not run,
    UsageError where the store holds another job or another launch under this id than `job_request` makes.
    """
    listener = listener or SubmitListener()
    if job_id is not None:
        check_id(job_id)
    _check_configured(job_request, settings)
    drawn = job_id or new_job_id(job_request, descriptor)
    check_region(settings)
    aws = aws_of(settings, region=region_of(descriptor, settings))
    # An id is of use to nobody if the submission ends here.
    aws.credentials()
    listener.on_submit(drawn)
    record = JobRecord(bucket_store(settings), drawn)
    cache = cache_folder(os.environ)
    with planned_job(job_request, descriptor, settings, job_id=drawn) as (job, files):
        there = record.exact_job() if record.exists() else None
        if there is not None:
            try:
                same_job(there, as_bounded(job, there, ec2_table(descriptor)), job_request)
            except UsageError:
                # The service answers for what it has launched, whatever its configuration says since.
                if not (_is_of_same_request(there, job, job_request) and _is_launched(record, aws)):
                    raise
                return Submitted(record, there, new=False)
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
        if file is not None and there is None and record.exists():
            # A submission beside us has written both since we looked, the job first.
            there = record.exact_job()
            same_job(there, as_bounded(job, there, ec2_table(descriptor)), job_request)
        new, ours = False, None
        if file is None:
            drawing = draft(
                there or job, descriptor, settings, aws, cache=cache, now=now(), exists=there is not None
            )
            notice = Notice(drawing, settings, aws)
            listener.on_plan(notice)
            if drawing.max_cost is not None and (why := over_budget(notice.all_costs, drawing.max_cost)):
                raise UsageError(why)
            agent = [bundle_upload(drawing.bundle)] if drawing.bundle is not None else []
            upload(
                staging_bucket(settings),
                [*agent, *files.uploads],
                on_upload=lambda each: listener.on_progress(f"uploading {each.what} ({size(each.size)})"),
            )
            new = _write_job(record, drawing, job_request)
            if new:
                scripts = scripts_of_request(job_request, descriptor)
                keep_request(record, job_request, scripts or archive_of_request(job_request, descriptor))
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
    _launch_in_rounds(record, file, aws, deadman(there or job), file != ours, listener, sleep, now)
    return Submitted(record, record.exact_job(), new=new)


def _launch_in_rounds(
    record: JobRecord,
    begun: LaunchFile,
    aws: AwsSession,
    longest: timedelta,
    begun_before: bool,
    listener: SubmitListener,
    sleep: Callable[[float], None],
    now: Callable[[], datetime],
) -> None:
    """Launch what `begun` says, or go on where somebody else stopped; while there is no room, in as many rounds as the job waits for.

    longest: how long a machine of the job may be on. begun_before: somebody may have asked EC2 for it already.
    Raises as `launch` does, and what the listener's `on_wait` does.
    """
    file = read_latest_round(record, begun)
    if file is not begun:
        begun_before = True
        _check_round(record, begun, file, longest, now())
    while True:
        listener.on_launch(record.job_id)
        try:
            launch(
                record,
                file,
                aws,
                deadman=longest,
                begun_before=begun_before,
                on_progress=listener.on_progress,
                sleep=sleep,
                now=now,
            )
        except NoCapacityError as full:
            wait = full.wait
        else:
            return
        listener.on_wait(wait)
        if not _wait_until(wait.again, record, sleep, now):
            continue
        ours = next_round(file, now=now(), deadman=longest)
        file = write_launch(record, ours)
        begun_before = file != ours
        if begun_before:
            _check_round(record, begun, file, longest, now())


def _check_round(
    record: JobRecord, begun: LaunchFile, file: LaunchFile, longest: timedelta, now: datetime
) -> None:
    """Raise UsageError unless `file`, which the store holds, is a round of the launch that began with `begun`."""
    if (problem := problem_with_round(record, begun, file, deadman=longest, now=now)) is not None:
        raise UsageError(problem)


def _wait_until(
    time: datetime, record: JobRecord, sleep: Callable[[float], None], now: Callable[[], datetime]
) -> bool:
    """Return True at `time`, or False as soon as the job is cancelled or has ended."""
    while (left := (time - now()).total_seconds()) > 0:
        sleep(min(left, _LOOK_S))
        try:
            if record.cancelled() or record.result() is not None:
                return False
        except StoreError as error:
            log.info("whether %s was cancelled is not known: %s", record.job_id, error)
    return True


def _check_configured(job_request: JobRequest, settings: Settings) -> None:
    try:
        settings.need_bucket()
    except UsageError as error:
        if job_request.on is not None:
            raise
        raise UsageError(f"{error}; `--on local` runs it on this machine") from error


def _is_of_same_request(there: Job, job: Job, job_request: JobRequest) -> bool:
    """Return whether both jobs were made for one request of the benchmark service."""
    requests = {(each.job.client_id, each.job.action_id) for each in (there, job)}
    return job_request.service is not None and len(requests) == 1


def _is_launched(record: JobRecord, aws: AwsSession) -> bool:
    """Return whether a job has been launched. A descriptor alone says nothing: any machine may write one. Raises LaunchError."""
    if decided_before(record) is not None:
        return True
    return read_launch(record) is not None and adopt(record, aws) is not None


def _write_job(record: JobRecord, drawing: LaunchPlan, job_request: JobRequest) -> bool:
    """Write the job, unless somebody has; return whether it is new. Raises UsageError where another one is there."""
    content = job_toml(drawing.job).encode()
    new = record.store.put(record.key("job.toml"), content, if_absent=True)
    if not new:
        same_job(record.exact_job(), drawing.job, job_request)
        check_job_bytes(record, drawing.job)
    # Before the launch, which may outlive us: whoever reaps has to know where to look.
    name_region(record.store, drawing.resolved.region)
    return new
