"""The status of jobs on EC2, for `bai status` and `bai list`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import cache

from bai_agent.errors import BaiError, DescriptorError
from bai_agent.job.descriptor import Power
from bai_agent.job.outcome import ExitCode, Status
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import JobResult
from bai_agent.job.store import RecordError
from executor.backends.ec2.instances import Instance, instances_by_id, instances_of
from executor.backends.ec2.launch.cost import price
from executor.backends.ec2.monitor.diagnosis import Diagnosis, JobStage
from executor.backends.ec2.monitor.ended_job import end_leftovers_or_say
from executor.backends.ec2.monitor.monitor import JobMonitor
from executor.backends.ec2.session import AwsSession, aws_of
from executor.config import Settings
from executor.errors import NextStep
from executor.records.follower import events_of
from executor.records.job_status import (
    ENDING,
    SILENT,
    UNKNOWN,
    UNLAUNCHED,
    JobStatus,
    created,
    ended_status,
    unreadable_status,
)
from executor.records.reading import result_of
from executor.records.run_state import RunState

_AT_ONCE = 16
"""Jobs that are read side by side: each takes several small requests."""


def monitor_of(record: JobRecord, settings: Settings) -> JobMonitor:
    """Return the monitor of this job."""

    @cache
    def aws(region: str | None) -> AwsSession:
        return aws_of(settings, region=region)

    return JobMonitor(record, aws)


def status_on_ec2(record: JobRecord, settings: Settings) -> JobStatus:
    """Do what is due for a job and return its status. Raises BaiError."""
    result = result_of(record)
    if result is not None:
        left = end_leftovers_or_say(monitor_of(record, settings), result)
        kept, next_step = kept_machines(record, result, settings) if left is None else (None, None)
        machine = left or kept
        return replace(ended_status(record, result, where="ec2"), machine=machine, next_step=next_step)
    monitor = monitor_of(record, settings)
    found = monitor.reconcile()
    result = result_of(record)
    if result is not None:
        return replace(ended_status(record, result, where="ec2"), machine=found.sentence)
    return _standing(record, found)


def _is_are(machines: Sequence[Instance]) -> str:
    return "is" if len(machines) == 1 else "are"


def statuses_on_ec2(records: Sequence[JobRecord], settings: Settings) -> list[JobStatus]:
    """Return the statuses of jobs without changing anything, with one or two EC2 requests per region. Raises StoreError."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = list(pool.map(_result_or_why, records))
        open_ = [record for record, result in zip(records, results, strict=True) if result is None]
        lookouts = [monitor_of(record, settings) for record in open_]
        regions = list(pool.map(_region, lookouts))
        launched = list(pool.map(_launched_ids, lookouts))
        known: dict[str, list[Instance] | None] = {}
        for region in dict.fromkeys(regions):
            jobs = {
                monitor.record.job_id: ids
                for monitor, its, ids in zip(lookouts, regions, launched, strict=True)
                if its == region
            }
            known.update(instances_of_jobs(lookouts[0].aws, region, jobs))
        found = dict(
            zip(
                [record.job_id for record in open_],
                pool.map(lambda each: _looked(each, known[each.record.job_id]), lookouts),
                strict=True,
            )
        )
    return [
        found[record.job_id]
        if result is None
        else unreadable_status(record, result, where="ec2")
        if isinstance(result, RecordError)
        else ended_status(record, result, where="ec2")
        for record, result in zip(records, results, strict=True)
    ]


def _result_or_why(record: JobRecord) -> JobResult | RecordError | None:
    try:
        return result_of(record)
    except RecordError as error:
        return error


def instances_of_jobs(
    aws: Callable[[str | None], AwsSession], region: str | None, jobs: Mapping[str, Sequence[str]]
) -> dict[str, list[Instance] | None]:
    """Return the instances of these jobs, by job; None for each where EC2 cannot be asked. jobs: the ids of their launches."""
    try:
        ec2 = aws(region).ec2()
        tagged = instances_of(ec2, jobs)
        seen = {each.id for each in tagged}
        untagged = instances_by_id(ec2, [each for ids in jobs.values() for each in ids if each not in seen])
    except BaiError:
        return dict.fromkeys(jobs)
    owners = {each: job_id for job_id, ids in jobs.items() for each in ids}
    found: dict[str, list[Instance] | None] = {each: [] for each in jobs}
    for instance in (*tagged, *untagged):
        mine = found.get(instance.job_id or owners.get(instance.id, ""))
        if mine is not None:
            mine.append(instance)
    return found


def _looked(monitor: JobMonitor, known: list[Instance] | None) -> JobStatus:
    try:
        return _standing(monitor.record, monitor.observe(known=known, ask=False))
    except (DescriptorError, RecordError) as error:
        return unreadable_status(monitor.record, error, where="ec2")


def _launched_ids(monitor: JobMonitor) -> list[str]:
    try:
        return monitor.launched_ids
    except (DescriptorError, RecordError):
        return []


def _region(monitor: JobMonitor) -> str | None:
    try:
        return monitor.region
    except (DescriptorError, RecordError):
        return None


def _standing(record: JobRecord, found: Diagnosis) -> JobStatus:
    state = RunState()
    for event in events_of(record.node()):
        state.apply(event)
    inferred = found.inferred
    return JobStatus(
        job_id=record.job_id,
        status=_status(found, state),
        phase=state.phase or found.stage.value,
        since=state.since,
        started=state.started if state.started is not None else created(record),
        outcome=inferred.outcome.value if inferred else None,
        exit_code=int(inferred.outcome.exit_code) if inferred else None,
        sentence=inferred.sentence if inferred else None,
        agent_alive=found.stage is JobStage.RUNNING if state.agents else None,
        cancelling=record.cancelled(),
        warnings=state.cautions,
        where="ec2",
        machine=found.sentence,
    )


def _status(found: Diagnosis, state: RunState) -> str:
    if found.inferred is not None:
        return found.inferred.outcome.status.value
    if found.stage is JobStage.RUNNING:
        # Its agent lives, and the first events are on their way.
        return state.status.value if state.phase is not None else Status.INITIALIZING.value
    words = {
        JobStage.SILENT: SILENT,
        JobStage.ENDING: ENDING,
        JobStage.ABANDONED: UNLAUNCHED,
        JobStage.UNKNOWN: UNKNOWN,
    }
    return words.get(found.stage, Status.PENDING.value)


def kept_machines(
    record: JobRecord, result: JobResult, settings: Settings
) -> tuple[str | None, NextStep | None]:
    """Return what is still there of a job that ended with `result` and may keep its machines, until when, and what it costs.

    Also what can be done about it. None where nothing is there, or EC2 cannot be asked. Raises StoreError, DescriptorError.
    """
    monitor = monitor_of(record, settings)
    end = monitor.job.end
    failed = result.exit_code not in (ExitCode.SUCCEEDED, ExitCode.CANCELLED)
    if end.power is not Power.STAY and (end.keep_on_failure is None or not failed):
        return None, None
    try:
        there = [each for each in monitor.instances() if each.living]
    except BaiError:
        return None, None
    if not there:
        return None, None
    which = f"{', '.join(each.id for each in there)} {_is_are(there)}"
    first, aws = there[0], monitor.aws(monitor.region)
    hourly, _ = price(first.type, settings.prices, aws, operation=first.operation, tenancy=first.tenancy)
    cost = f", at about {len(there) * hourly:,.4f} USD an hour" if hourly is not None else ""
    if end.keep_on_failure is None:
        return f'{which} still there, as [end] power = "stay" has it{cost}', None
    release = NextStep(("release", record.job_id), f"lets {'it' if len(there) == 1 else 'them'} go")
    return f"{which} kept to look into{_until(monitor, result, end.keep_on_failure)}{cost}", release


def _until(monitor: JobMonitor, result: JobResult, kept: timedelta) -> str:
    """Return until when a machine is kept: its time begins at the job's end, and no machine outlives its deadline."""
    ends = [monitor.expires] if monitor.expires is not None else []
    if result.ended is not None:
        ends.append(datetime.fromtimestamp(result.ended / 1000, tz=timezone.utc) + kept)
    return f" until {min(ends):%Y-%m-%d %H:%M} UTC" if ends else ""
