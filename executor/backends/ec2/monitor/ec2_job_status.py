"""Finds the status of jobs on EC2, for `bai status` and `bai list`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

from bai_agent.errors import BaiError, DescriptorError, RecordError
from bai_agent.job.descriptor.limit_tables import Power
from bai_agent.job.outcome import Status
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import JobResult
from executor.backends.ec2.clock import moment
from executor.backends.ec2.instances import Instance, find_job_instances
from executor.backends.ec2.launch.cost import price
from executor.backends.ec2.monitor.ended_job import end_leftovers_or_say
from executor.backends.ec2.monitor.job_observation import Diagnosis, JobStage, is_are
from executor.backends.ec2.monitor.monitor import JobMonitor
from executor.backends.ec2.monitor.replacer import kept_replacer
from executor.backends.ec2.session import aws_sessions
from executor.configuration.config import Settings
from executor.errors import NextStep
from executor.records.generation_status import GenerationStatus, generation_status
from executor.records.job_status import (
    ENDING,
    PARKED,
    SILENT,
    UNKNOWN,
    UNLAUNCHED,
    JobStatus,
    created,
    ended_status,
    unreadable_status,
)
from executor.records.reading import events_of, result_of
from executor.records.run_state import RunState

_AT_ONCE = 16
"""Maximum number of jobs that are read at the same time. Each job needs several small requests."""


def make_monitor(record: JobRecord, settings: Settings) -> JobMonitor:
    """Return the monitor of this job."""
    return JobMonitor(record, aws_sessions(settings), replacer=kept_replacer(record, settings))


def status_on_ec2(record: JobRecord, settings: Settings) -> JobStatus:
    """Do everything that is due for a job and return its status. Raises BaiError."""
    monitor = make_monitor(record, settings)
    if (result := result_of(record)) is not None:
        left = end_leftovers_or_say(monitor, result)
        kept, next_step = kept_machines(monitor, result, settings) if left is None else (None, None)
        machine = left or kept
        return replace(ended_status(record, result, where="ec2"), machine=machine, next_step=next_step)
    found = monitor.reconcile()
    if (result := result_of(record)) is not None:
        return replace(ended_status(record, result, where="ec2"), machine=found.sentence)
    return _standing(monitor, found)


def statuses_on_ec2(records: Sequence[JobRecord], settings: Settings) -> list[JobStatus]:
    """Return the statuses of jobs without changing anything, with one or two EC2 requests per region. Raises StoreError."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = list(pool.map(_result_or_error, records))
        pairs = list(zip(records, results, strict=True))
        monitors = [make_monitor(record, settings) for record, result in pairs if result is None]
        known = _machines_of_jobs(monitors, pool)
        found = pool.map(lambda each: _looked(each, known[each.record.job_id]), monitors)
        statuses = {each.record.job_id: status for each, status in zip(monitors, found, strict=True)}
    return [_ended(record, result) if result else statuses[record.job_id] for record, result in pairs]


def _machines_of_jobs(
    monitors: Sequence[JobMonitor], pool: ThreadPoolExecutor
) -> dict[str, list[Instance] | None]:
    """Return the machines of jobs, by job id; None for each job whose region cannot be queried."""
    regions, launched = list(pool.map(_region, monitors)), list(pool.map(_launched_ids, monitors))
    known: dict[str, list[Instance] | None] = {}
    for region in dict.fromkeys(regions):
        each = zip(monitors, regions, launched, strict=True)
        jobs = {monitor.record.job_id: ids for monitor, its, ids in each if its == region}
        known.update(find_job_instances(monitors[0].aws, region, jobs))
    return known


def _result_or_error(record: JobRecord) -> JobResult | RecordError | None:
    try:
        return result_of(record)
    except RecordError as error:
        return error


def _ended(record: JobRecord, result: JobResult | RecordError) -> JobStatus:
    if isinstance(result, RecordError):
        return unreadable_status(record, result, where="ec2")
    return ended_status(record, result, where="ec2")


def _looked(monitor: JobMonitor, known: list[Instance] | None) -> JobStatus:
    try:
        return _standing(monitor, monitor.observe(known=known, ask=False))
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


def _standing(monitor: JobMonitor, found: Diagnosis) -> JobStatus:
    record, state, inferred = monitor.record, RunState(), found.inferred
    generation = generation_status(record, monitor.job)
    state.apply_all(events_of(record.node(generation.leader if generation is not None else 0)))
    return JobStatus(
        job_id=record.job_id,
        status=_status(found, state, generation),
        phase=state.phase or found.stage.value,
        since=state.since,
        started=state.started if state.started is not None else created(record),
        outcome=inferred.outcome.value if inferred else None,
        exit_code=int(inferred.outcome.exit_code) if inferred else None,
        sentence=inferred.sentence if inferred else None,
        agent_alive=found.stage is JobStage.RUNNING if state.agents else None,
        cancelling=record.cancelled(),
        warnings=state.cautions,
        restarts=state.restarts,
        generation=generation,
        where="ec2",
        machine=found.sentence,
    )


def _status(found: Diagnosis, state: RunState, generation: GenerationStatus | None) -> str:
    if found.inferred is not None:
        return found.inferred.outcome.status.value
    if found.stage is JobStage.RUNNING and generation is not None:
        return PARKED if generation.is_parked else Status.RUNNING.value
    if found.stage is JobStage.RUNNING:
        # The agent has written a heartbeat, and its first events will arrive in the store soon.
        return state.status.value if state.phase is not None else Status.INITIALIZING.value
    words = {
        JobStage.SILENT: SILENT,
        JobStage.ENDING: ENDING,
        JobStage.ABANDONED: UNLAUNCHED,
        JobStage.UNKNOWN: UNKNOWN,
        JobStage.PARKED: PARKED,
    }
    return words.get(found.stage, Status.PENDING.value)


def kept_machines(
    monitor: JobMonitor, result: JobResult, settings: Settings
) -> tuple[str | None, NextStep | None]:
    """Return a sentence about those machines of an ended job that stay on for inspection. The sentence says
    until when the machines stay on, what they cost, and which command releases them. Returns None if no machine
    stays on, or if EC2 cannot be queried. Raises StoreError, DescriptorError.
    """
    there = _kept(monitor, result)
    if not there:
        return None, None
    kept = monitor.job.end.keep_time(result.exit_code)
    which = f"{', '.join(each.id for each in there)} {is_are(there)}"
    first, aws = there[0], monitor.aws(monitor.region)
    hourly, _ = price(first.type, settings.prices, aws, operation=first.operation, tenancy=first.tenancy)
    cost = f", at about {len(there) * hourly:,.4f} USD an hour" if hourly is not None else ""
    if not kept:
        return f'{which} still on, because of [end] power = "stay"{cost}', None
    release = NextStep(
        ("release", monitor.record.job_id),
        f"releases the {'machine' if len(there) == 1 else 'machines'} from inspection",
    )
    return f"{which} kept for inspection{_until(monitor, result, kept)}{cost}", release


def _kept(monitor: JobMonitor, result: JobResult) -> list[Instance]:
    """Return the job's machines that stay on for inspection; empty if EC2 cannot be queried."""
    end = monitor.job.end
    if end.power is not Power.STAY and not end.keep_time(result.exit_code):
        return []
    try:
        return [each for each in monitor.instances() if each.living]
    except BaiError:
        return []


def _until(monitor: JobMonitor, result: JobResult, kept: timedelta) -> str:
    """Return the time until which machines stay on for inspection. Machines stay on after the job's end, but
    not after their deadline."""
    ends = [monitor.expires] if monitor.expires is not None else []
    if result.ended is not None:
        ends.append(moment(result.ended) + kept)
    return f" until {min(ends):%Y-%m-%d %H:%M} UTC" if ends else ""
