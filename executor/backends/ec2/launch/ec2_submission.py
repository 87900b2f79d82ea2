"""Submits a job to EC2, once per job id: uploads the job's files, records the job, and launches its
machines."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from enum import Enum, auto

from bai_agent.errors import RecordError, StoreError
from bai_agent.job.descriptor import Job
from bai_agent.job.record import JobRecord
from bai_agent.light_dataclass import dataclass
from executor.backends.backend import SubmitListener
from executor.backends.ec2.bucket_store import bucket_store, name_region
from executor.backends.ec2.launch.capacity_block import as_bounded
from executor.backends.ec2.launch.cost import over_budget
from executor.backends.ec2.launch.draft import LaunchPlan, bundle_upload, draft, planned_job
from executor.backends.ec2.launch.ec2_plan import Notice
from executor.backends.ec2.launch.launch import launch
from executor.backends.ec2.launch.launch_decision import adopt, decided_before, find_refusal
from executor.backends.ec2.launch.launch_record import (
    LaunchFile,
    read_latest_round,
    read_launch,
    write_launch,
)
from executor.backends.ec2.launch.launch_request import deadman
from executor.backends.ec2.launch.repeat import (
    check_job_bytes,
    problem_with,
    problem_with_round,
    redraw,
)
from executor.backends.ec2.launch.resolve import ec2_table, launch_region
from executor.backends.ec2.launch.waiting import NoCapacityError, next_round
from executor.backends.ec2.session import AwsSession, aws_session
from executor.backends.ec2.staging_bucket import Upload, check_region, staging_bucket, upload
from executor.backends.ec2.watched_jobs import watch_job
from executor.configuration.config import Settings
from executor.descriptor import Descriptor
from executor.errors import UsageError
from executor.owned_folders import cache_folder
from executor.planning.job_toml import job_toml
from executor.planning.request import JobRequest, Submitted, check_id
from executor.planning.requested_job import find_archive, find_scripts, new_job_id, same_job
from executor.planning.rerun_record import keep_request
from executor.quantities import size

log = logging.getLogger(__name__)

_LOOK_S = 5.0
"""Time between two checks for a cancellation while a job waits for capacity (seconds)."""


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
    """Launch the job of `job_request`, or find the launch of an earlier call with the same job id. A job is
    launched only once, even if the call is repeated with the job's id after any failure.

    If EC2 has no capacity and the job is configured to wait for capacity, this function waits, unless the
    listener's `on_wait` raises an error. A repeated call continues the same wait. Raises LaunchError after a final
    refusal of EC2 (the job then has a result). Raises UndecidedError if it is unknown whether the job was launched.
    Raises UsageError if the store has another job or another launch with this id.
    """
    listener = listener or SubmitListener()
    if job_id is not None:
        check_id(job_id)
    _check_configured(job_request, settings)
    drawn = job_id or new_job_id(job_request, descriptor)
    check_region(settings)
    aws = aws_session(settings, region=launch_region(descriptor, settings))
    # The job id is reported only now, because the id would be useless if the submission had failed before
    # this step.
    aws.credentials()
    listener.on_submit(drawn)
    record = JobRecord(bucket_store(settings), drawn)
    with planned_job(job_request, descriptor, settings, job_id=drawn) as (job, files):
        submission = _Submission(
            record=record,
            job=job,
            job_request=job_request,
            descriptor=descriptor,
            settings=settings,
            aws=aws,
            listener=listener,
            now=now,
        )
        stage = submission.look()
        if stage is _Stage.UNLAUNCHED:
            stage = submission.write_down(files.uploads)
        if stage is _Stage.BEGUN:
            stage = submission.check_begun()
        if stage is _Stage.LAUNCHED:
            return Submitted(record, record.exact_job(), new=False)
    submission.launch_in_rounds(begun_before=stage is _Stage.BEGUN, sleep=sleep)
    return Submitted(record, record.exact_job(), new=submission.new)


class _Stage(Enum):
    """Stage of the submission of a job id, which this or another process has reached."""

    UNLAUNCHED = auto()
    """No launch is recorded."""
    WRITTEN = auto()
    """This submission has recorded the launch."""
    BEGUN = auto()
    """Another submission has recorded the launch, and may have requested it from EC2."""
    LAUNCHED = auto()
    """The job was launched or has ended, so nothing is left to do."""


@dataclass(kw_only=True)
class _Submission:
    """The submission of a job. An earlier or concurrent submission of the same job id may have done part of
    the work."""

    record: JobRecord
    job: Job
    """The job descriptor that was made from the request."""
    job_request: JobRequest
    descriptor: Descriptor
    settings: Settings
    aws: AwsSession
    listener: SubmitListener
    now: Callable[[], datetime]
    there: Job | None = None
    """The submitted job as recorded in the store."""
    file: LaunchFile | None = None
    """The launch of the job as recorded in the store."""
    new: bool = False
    """Whether this submission has written the job."""

    def look(self) -> _Stage:
        """Read the job's stage from the store. Raises LaunchError, RecordError, and UsageError if the store has
        another job of this id."""
        if self.record.exists():
            self.there = self.record.exact_job()
            if self._is_decided(self.there):
                return _Stage.LAUNCHED
        try:
            self.file = read_launch(self.record)
        except RecordError:
            # Another version of `bai` may write the record differently, but gives the instances the same
            # tags.
            if not self._is_adopted(self.aws):
                raise
            return _Stage.LAUNCHED
        if self.file is None:
            return _Stage.UNLAUNCHED
        if self.there is None and self.record.exists():
            # A concurrent submission has written the job and then the launch, both after this submission's
            # first read.
            self.there = self.record.exact_job()
            self._check_same(self.there)
        return _Stage.BEGUN

    def write_down(self, uploads: Sequence[Upload]) -> _Stage:
        """Upload the job's files, and record the job and its launch. Raises UsageError, AwsError,
        StoreError."""
        drawing = draft(
            self.there or self.job,
            self.descriptor,
            self.settings,
            self.aws,
            cache=cache_folder(os.environ),
            now=self.now(),
            exists=self.there is not None,
        )
        notice = Notice(drawing, self.settings, self.aws)
        self.listener.on_plan(notice)
        if drawing.max_cost is not None and (why := over_budget(notice.all_costs, drawing.max_cost)):
            raise UsageError(why)
        agent = [bundle_upload(drawing.bundle)] if drawing.bundle is not None else []
        upload(
            staging_bucket(self.settings),
            [*agent, *uploads],
            on_upload=lambda each: self.listener.on_progress(f"uploading {each.what} ({size(each.size)})"),
        )
        self.new = _write_job(self.record, drawing, self.job_request)
        if self.new:
            scripts = find_scripts(self.job_request, self.descriptor)
            keep_request(
                self.record,
                self.job_request,
                scripts or find_archive(self.job_request, self.descriptor),
            )
        self.there, ours = drawing.job, drawing.file
        self.file = write_launch(self.record, ours)
        return _Stage.WRITTEN if self.file == ours else _Stage.BEGUN

    def check_begun(self) -> _Stage:
        """Raise UsageError unless the stored launch is a launch of this job. Any user of the bucket may have
        written the stored launch."""
        file = self._begun
        problem = problem_with(
            self.record,
            file,
            self.there,
            lambda: (
                redraw(
                    file,
                    self.there or self.job,
                    self.descriptor,
                    self.settings,
                    self.aws,
                    cache=cache_folder(os.environ),
                ).file
            ),
            region=self.aws.region,
            now=self.now(),
        )
        if problem is None:
            return _Stage.BEGUN
        if not self._is_adopted(AwsSession(file.region, self.settings.aws_profile)):
            raise UsageError(problem)
        return _Stage.LAUNCHED

    def launch_in_rounds(self, *, begun_before: bool, sleep: Callable[[float], None]) -> None:
        """Launch the job, or continue an interrupted launch. While there is no capacity, repeat the launch in
        rounds until the wait ends.

        begun_before: whether an earlier process may have sent the request. Raises the errors of `launch` and
        of the listener's `on_wait`.
        """
        longest = deadman(self.there or self.job)
        if self.job_request.service is None:
            # The mark that asks reapers and the watcher to check the job is written before any machine can
            # run. Jobs of the benchmark service get no mark, because the service checks its own jobs.
            watch_job(self.record.store, self.record.job_id, token=self._begun.token)
        file = read_latest_round(self.record, self._begun)
        if file is not self.file:
            begun_before = True
            self._check_round(file, longest)
        while True:
            self.listener.on_launch(self.record.job_id)
            try:
                launch(
                    self.record,
                    file,
                    self.aws,
                    deadman=longest,
                    begun_before=begun_before,
                    on_progress=self.listener.on_progress,
                    sleep=sleep,
                    now=self.now,
                )
            except NoCapacityError as full:
                wait = full.wait
            else:
                return
            self.listener.on_wait(wait)
            if not _wait_until(wait.again, self.record, sleep, self.now):
                continue
            ours = next_round(file, now=self.now(), deadman=longest)
            file = write_launch(self.record, ours)
            begun_before = file != ours
            if begun_before:
                self._check_round(file, longest)

    @property
    def _begun(self) -> LaunchFile:
        assert self.file is not None
        return self.file

    def _check_same(self, there: Job) -> None:
        """Raise UsageError unless the stored job `there` is the job that the request makes."""
        same_job(there, as_bounded(self.job, there, ec2_table(self.descriptor)), self.job_request)

    def _is_decided(self, there: Job) -> bool:
        """Return whether the stored job has ended or has been launched. Raises LaunchError, and UsageError if
        the stored job differs from the job of the request."""
        try:
            self._check_same(there)
        except UsageError:
            # The benchmark service stays responsible for a job that it launched, even if the service's
            # configuration has changed since the launch.
            if not (_is_of_same_request(there, self.job, self.job_request) and self._is_launched()):
                raise
            return True
        ended = self.record.result() is not None
        if ended and (refusal := find_refusal(self.record)) is not None:
            raise refusal
        return ended or decided_before(self.record) is not None

    def _is_launched(self) -> bool:
        """Return whether the job has been launched. A job descriptor in the store alone does not prove a
        launch, because any machine can write a descriptor there. Raises LaunchError."""
        if decided_before(self.record) is not None:
            return True
        return read_launch(self.record) is not None and self._is_adopted(self.aws)

    def _is_adopted(self, aws: AwsSession) -> bool:
        return self.there is not None and adopt(self.record, aws) is not None

    def _check_round(self, file: LaunchFile, longest: timedelta) -> None:
        """Raise UsageError unless the stored launch `file` is a later round of the job's first launch."""
        problem = problem_with_round(self.record, self._begun, file, deadman=longest, now=self.now())
        if problem is not None:
            raise UsageError(problem)


def _wait_until(
    time: datetime, record: JobRecord, sleep: Callable[[float], None], now: Callable[[], datetime]
) -> bool:
    """Wait until `time` and return True; return False as soon as the job is cancelled or has ended."""
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
        raise UsageError(f"{error}; `--on local` runs the benchmark on this machine") from error


def _is_of_same_request(there: Job, job: Job, job_request: JobRequest) -> bool:
    """Return whether both jobs were made for the same request of the benchmark service."""
    requests = {(each.job.client_id, each.job.action_id) for each in (there, job)}
    return job_request.service is not None and len(requests) == 1


def _write_job(record: JobRecord, drawing: LaunchPlan, job_request: JobRequest) -> bool:
    """Write the job unless it exists; return whether the job is new. Raises UsageError if the store has a
    different job of this id."""
    content = job_toml(drawing.job).encode()
    new = record.store.put(record.key("job.toml"), content, if_absent=True)
    if not new:
        same_job(record.exact_job(), drawing.job, job_request)
        check_job_bytes(record, drawing.job)
    # The region is recorded before the launch, because reapers need the region even if this process dies.
    name_region(record.store, drawing.resolved.region)
    return new
