"""Terminates expired machines that did not power off, and machines that no job needs any more. Expired
machines are found only by their tags.

A machine that no job needs either hangs after its job's end, or never ran its user data. The reaper finds an
unneeded machine long before the machine's deadline. The reaper also deletes security groups that jobs of several
machines leave behind.

Several reapers may run at once, started from a terminal, by cron or by a schedule, because machines can be
terminated twice without harm. Only machines with bai's tags are checked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from bai_agent.errors import BaiError
from bai_agent.job.record import JobRecord
from bai_agent.job.store import JobStore, is_s3
from bai_agent.light_dataclass import dataclass
from executor.backends.ec2.bucket_store import bucket_store, named_regions, open_bucket
from executor.backends.ec2.instances import Instance, described, find_instances, terminate_one
from executor.backends.ec2.monitor.boot_failure import BOOT_ENDED
from executor.backends.ec2.monitor.ended_job import end_leftovers
from executor.backends.ec2.monitor.job_observation import OVERDUE, POWER_OFF
from executor.backends.ec2.monitor.monitor import JobMonitor
from executor.backends.ec2.security_group import delete_groups, find_groups
from executor.backends.ec2.session import AwsSession, aws_sessions
from executor.backends.ec2.tags import (
    CLIENT_TAG,
    EXPIRES_TAG,
    JOB_TAG,
    STORE_TAG,
    attempt_tags,
    parse_timestamp,
    tag_value,
)
from executor.records.reading import result_of

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef

    from executor.configuration.config import Settings

_AT_ONCE = 8
"""Number of regions that are processed in parallel."""
_JOBS_AT_ONCE = 8
"""Maximum number of jobs that are checked at the same time."""
_STATES = ("pending", "running", "stopping", "stopped")
"""States of machines that can be terminated. In any other state, a machine is already terminated or shutting
down."""
STILL_ON = "the job has ended, but the machine did not power itself off"


@dataclass(frozen=True)
class Reaped:
    """A machine that must be terminated, and whether the reaper could terminate it."""

    instance: Instance
    trouble: str = ""
    """Reason why the machine still exists; empty if the machine was terminated, or would be terminated
    without the dry run."""
    reason: str = ""
    """Reason why the machine must be terminated, if its deadline has not passed."""

    @property
    def expires(self) -> datetime | None:
        """Deadline in the machine's tag; None if the tag is not a time."""
        return self.instance.expires

    @property
    def why(self) -> str:
        """Return the reason why the machine must be terminated, as text."""
        since = f"{self.expires:%Y-%m-%d %H:%M} UTC" if self.expires else "?"
        return self.reason or f"the deadline passed at {since}"


def overdue(instances: Sequence[Instance], *, now: datetime) -> list[Instance]:
    """Return the machines with bai's tags whose deadline passed more than `OVERDUE` ago, or cannot be
    read."""
    ours = (each for each in instances if each.state in _STATES and each.job_id and EXPIRES_TAG in each.tags)
    return [each for each in ours if each.expires is None or now > each.expires + OVERDUE]


def reap(
    ec2: EC2Client,
    *,
    now: datetime,
    dry_run: bool = False,
    client_id: str | None = None,
    jobs: UnattendedJobs | None = None,
    on_reaped: Callable[[Reaped], None] = lambda reaped: None,
) -> list[Reaped]:
    """Terminate overdue machines, and machines that `jobs` no longer need. Return the overdue and unneeded
    machines; `on_reaped` is called for each machine. Raises BaiError if EC2 cannot be queried. client_id: if set,
    only this client's machines are terminated. If one machine cannot be terminated, the other machines are still
    terminated.
    """
    filters: list[FilterTypeDef] = [
        {"Name": "tag-key", "Values": [EXPIRES_TAG]},
        {"Name": "instance-state-name", "Values": list(_STATES)},
        *_of_client(client_id),
    ]
    machines = described(ec2, filters)
    late = overdue(machines, now=now)
    done = []
    for each in late:
        reaped = Reaped(each, _end(ec2, each, dry_run=dry_run))
        on_reaped(reaped)
        done.append(reaped)
    others = [each for each in machines if each not in late]
    for reaped in jobs.end_unneeded(others, dry_run=dry_run) if jobs is not None else ():
        on_reaped(reaped)
        done.append(reaped)
    if not dry_run:
        _delete_groups(ec2, now=now, client_id=client_id)
    return done


def _delete_groups(ec2: EC2Client, *, now: datetime, client_id: str | None) -> None:
    """Delete the security groups of jobs whose machines are all terminated, or must have been gone since
    their deadline."""
    try:
        groups = find_groups(ec2, _of_client(client_id))
        machines = find_instances(ec2, {tags[JOB_TAG] for tags in groups.values()})
    except BaiError as error:
        log.info("security groups are not looked for: %s", error)
        return
    delete_groups(ec2, [group for group, tags in groups.items() if _is_left(tags, machines, now=now)])


def _is_left(tags: Mapping[str, str], machines: Sequence[Instance], *, now: datetime) -> bool:
    """Return whether no machine will use the group with these tags any more."""
    mine = [each for each in machines if attempt_tags(each.tags) == attempt_tags(tags)]
    expires = parse_timestamp(tags.get(EXPIRES_TAG))
    late = expires is not None and now > expires + OVERDUE
    return late or (bool(mine) and all(each.state == "terminated" for each in mine))


def _of_client(client_id: str | None) -> list[FilterTypeDef]:
    if client_id is None:
        return []
    return [{"Name": f"tag:{CLIENT_TAG}", "Values": [tag_value(client_id)]}]


def reap_own(settings: Settings, *, store: str | None) -> None:
    """Terminate this client's overdue and unneeded machines. Failures are ignored, because the next command
    tries again. Machines are searched in the configured region, and in all regions in which jobs of the store
    were launched. The store is `store` if that is a bucket, otherwise the configured bucket. Raises
    UsageError, DescriptorError if the configuration is wrong.
    """
    regions = {settings.region} if settings.region is not None else set()
    jobs, aws = None, aws_sessions(settings)
    try:
        for bucket in _buckets(settings, store):
            regions.update(named_regions(bucket))
            jobs = UnattendedJobs(store=bucket, aws=aws)
    except BaiError as error:
        log.info("the regions of other jobs are not known: %s", error)

    def reap_region(region: str) -> None:
        try:
            ec2 = aws(region).quick_client()
            reap(ec2, now=datetime.now(timezone.utc), client_id=settings.client, jobs=jobs)
        except BaiError as error:
            log.info("nothing was reaped in %s: %s", region, error)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(reap_region, sorted(regions)))


def _buckets(settings: Settings, named: str | None) -> Iterator[JobStore]:
    """Yield the store of jobs on EC2: the named bucket, otherwise the configured bucket."""
    if named is not None and is_s3(named):
        yield open_bucket(named, settings, quick=True)
    elif settings.store_url is not None:
        yield bucket_store(settings, quick=True)


def _end(ec2: EC2Client, instance: Instance, *, dry_run: bool) -> str:
    """Terminate an overdue machine; return an empty text, or the reason why the machine cannot be
    terminated."""
    if instance.expires is None:
        return f'its tag {EXPIRES_TAG} says "{instance.tags[EXPIRES_TAG]}", which is not a time; terminate the machine by hand'
    if dry_run:
        return ""
    try:
        terminate_one(ec2, instance.id)
    except BaiError as error:
        return str(error)
    return ""


@dataclass(frozen=True, kw_only=True)
class UnattendedJobs:
    """The jobs of one store, by the tags of their machines."""

    store: JobStore
    aws: Callable[[str | None], AwsSession]
    attended: Collection[str] = ()
    """Ids of jobs that another part of this process monitors anyway."""

    def end_unneeded(self, machines: Sequence[Instance], *, dry_run: bool = False) -> list[Reaped]:
        """Terminate the `machines` that their jobs no longer need, and return the terminated machines. An
        error with one job does not prevent the checks of the other jobs."""
        tag = tag_value(self.store.url)
        jobs: dict[str, list[Instance]] = {}
        for each in machines:
            named = each.job_id if each.tags.get(STORE_TAG) == tag else None
            # Younger machines are skipped, because such a machine cannot be late with its power-off, and
            # cannot be known to have failed its boot.
            old = each.age is None or each.age > POWER_OFF
            if named and each.living and old and named not in self.attended:
                jobs.setdefault(named, []).append(each)
        with ThreadPoolExecutor(_JOBS_AT_ONCE) as pool:
            found = pool.map(lambda item: self._of_job(*item, dry_run=dry_run), jobs.items())
            return [each for unneeded in found for each in unneeded]

    def _of_job(self, job_id: str, machines: Sequence[Instance], *, dry_run: bool) -> list[Reaped]:
        due: Sequence[Instance] = ()
        reason, trouble = "its job could not be checked", ""
        try:
            monitor = JobMonitor(JobRecord(self.store, job_id), self.aws)
            if (result := result_of(monitor.record)) is not None:
                reason = STILL_ON
                due = end_leftovers(monitor, result, dry_run=dry_run).due
            elif _has_failed_boot(monitor, machines):
                # `reconcile` also does everything else that is due for the machine's job.
                found = monitor.observe() if dry_run else monitor.reconcile()
                due, reason, trouble = found.terminate, found.sentence.removesuffix("."), found.trouble
        except BaiError as error:
            return [Reaped(machines[0], str(error), reason)]
        return [Reaped(each, trouble, reason) for each in due]


def _has_failed_boot(monitor: JobMonitor, machines: Sequence[Instance]) -> bool:
    """Return whether a machine is old enough to have booted, but has never written a heartbeat."""
    return any((each.age or BOOT_ENDED) > BOOT_ENDED and not _reported(monitor, each) for each in machines)


def _reported(monitor: JobMonitor, machine: Instance) -> bool:
    node = monitor.record.node(machine.index, attempt=monitor.attempt)
    return bool(monitor.record.store.find(node.key("heartbeat.json")))
