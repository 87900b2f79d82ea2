"""Terminates expired machines that did not power off, which are found by their tags alone, and machines that
no job needs.

The latter hang after their job's end, or never ran their user data; they are found long before their time is up. Also deletes
security groups that jobs of several machines leave.

It may run several times at once, from a terminal, cron or a schedule, because machines can be terminated twice without harm.
Only machines with our tags are checked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import cache
from typing import TYPE_CHECKING

from bai_agent.errors import BaiError
from bai_agent.job.record import JobRecord
from bai_agent.job.store import JobStore, is_s3
from bai_agent.light_dataclass import dataclass
from executor.backends.ec2.bucket_store import bucket_store, named_regions, open_bucket
from executor.backends.ec2.clock import store_now
from executor.backends.ec2.instances import (
    ATTEMPT_TAG,
    CLIENT_TAG,
    EXPIRES_TAG,
    JOB_TAG,
    STORE_TAG,
    Instance,
    described,
    find_instances,
    terminate_one,
)
from executor.backends.ec2.monitor.boot_failure import BOOT_ENDED
from executor.backends.ec2.monitor.ended_job import end_leftovers
from executor.backends.ec2.monitor.job_observation import OVERDUE, POWER_OFF
from executor.backends.ec2.monitor.monitor import JobMonitor
from executor.backends.ec2.security_group import delete_groups, find_groups
from executor.backends.ec2.session import AwsSession, aws_session
from executor.backends.ec2.tags import VALUE_LIMIT, clean_text, parse_timestamp
from executor.records.reading import result_of

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef

    from bai_agent.job.store import JobStore
    from executor.configuration.config import Settings

_AT_ONCE = 8
"""Number of regions that are processed in parallel."""
_STATES = ("pending", "running", "stopping", "stopped")
"""States of machines that can be terminated. Other instances are gone, or shutting down."""


@dataclass(frozen=True)
class Reaped:
    """A machine whose time is over, and what happened to it."""

    instance: Instance
    expires: datetime | None
    """Time of its tag; None if the tag is not a time."""
    trouble: str = ""
    """Reason why it still exists; empty if it was terminated, or would be."""
    reason: str = ""
    """Why it must go, if its time is not over."""

    @property
    def why(self) -> str:
        """Return why it must go, in words."""
        since = f"{self.expires:%Y-%m-%d %H:%M} UTC" if self.expires else "?"
        return self.reason or f"time was up at {since}"


def overdue(instances: Sequence[Instance], *, now: datetime) -> list[tuple[Instance, datetime | None]]:
    """Return those of our machines whose expiry was more than `OVERDUE` ago, and those whose expiry cannot be read."""
    found: list[tuple[Instance, datetime | None]] = []
    for each in instances:
        if each.state not in _STATES or not each.tags.get(JOB_TAG) or EXPIRES_TAG not in each.tags:
            continue
        expires = parse_timestamp(each.tags[EXPIRES_TAG])
        if expires is None or now > expires + OVERDUE:
            found.append((each, expires))
    return found


def reap(
    ec2: EC2Client,
    *,
    now: datetime,
    dry_run: bool = False,
    client_id: str | None = None,
    jobs: UnattendedJobs | None = None,
    on_reaped: Callable[[Reaped], None] = lambda reaped: None,
) -> list[Reaped]:
    """Terminate overdue machines, and those that `jobs` no longer need, and return them; `on_reaped` is called for each.

    Raises BaiError if EC2 cannot be asked. client_id: only this client's machines. A machine that cannot be terminated does not stop the others.
    """
    filters: list[FilterTypeDef] = [
        {"Name": "tag-key", "Values": [EXPIRES_TAG]},
        {"Name": "instance-state-name", "Values": list(_STATES)},
        *_of_client(client_id),
    ]
    machines = described(ec2, filters)
    late = overdue(machines, now=now)
    done = []
    for instance, expires in late:
        reaped = Reaped(instance, expires, _end(ec2, instance, expires, dry_run=dry_run))
        on_reaped(reaped)
        done.append(reaped)
    seen = {instance.id for instance, _ in late}
    others = [each for each in machines if each.id not in seen]
    for each in jobs.end_unneeded(others, dry_run=dry_run) if jobs is not None else ():
        expires = parse_timestamp(each.instance.tags.get(EXPIRES_TAG))
        reaped = Reaped(each.instance, expires, each.trouble, each.reason)
        on_reaped(reaped)
        done.append(reaped)
    if not dry_run:
        _delete_groups(ec2, now=now, client_id=client_id)
    return done


def _delete_groups(ec2: EC2Client, *, now: datetime, client_id: str | None) -> None:
    """Delete the security groups of jobs whose machines are gone: visibly terminated, or expired long ago."""
    try:
        groups = find_groups(ec2, _of_client(client_id))
        machines = find_instances(ec2, {tags[JOB_TAG] for tags in groups.values()})
    except BaiError as error:
        log.info("security groups are not looked for: %s", error)
        return
    delete_groups(ec2, [group for group, tags in groups.items() if _is_left(tags, machines, now=now)])


def _is_left(tags: Mapping[str, str], machines: Sequence[Instance], *, now: datetime) -> bool:
    """Return whether nothing will use the group with these tags any more."""
    owner = [tags.get(key) for key in (JOB_TAG, ATTEMPT_TAG, STORE_TAG)]
    mine = [
        each
        for each in machines
        if [each.tags.get(key) for key in (JOB_TAG, ATTEMPT_TAG, STORE_TAG)] == owner
    ]
    expires = parse_timestamp(tags.get(EXPIRES_TAG))
    late = expires is not None and now > expires + OVERDUE
    return late or (bool(mine) and all(each.state == "terminated" for each in mine))


def _of_client(client_id: str | None) -> list[FilterTypeDef]:
    if client_id is None:
        return []
    return [{"Name": f"tag:{CLIENT_TAG}", "Values": [clean_text(client_id)[:VALUE_LIMIT]]}]


def reap_own(settings: Settings, *, store: str | None) -> None:
    """Terminate this client's overdue and unneeded machines; failures are ignored, because the next command
    tries again.

    This covers the configured region, and all regions with launches of the store: `store` if it is a bucket, else the configured one.
    Raises UsageError, DescriptorError if the configuration is wrong.
    """
    regions = {settings.region} if settings.region is not None else set()
    jobs = None
    try:
        for bucket in _buckets(settings, store):
            regions.update(named_regions(bucket))
            jobs = unattended_jobs(bucket, settings)
    except BaiError as error:
        log.info("the regions of other jobs are not known: %s", error)

    def reap_region(region: str) -> None:
        try:
            ec2 = aws_session(settings, region=region).quick_client()
            reap(ec2, now=datetime.now(timezone.utc), client_id=settings.client, jobs=jobs)
        except BaiError as error:
            log.info("nothing was reaped in %s: %s", region, error)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(reap_region, sorted(regions)))


def unattended_jobs(store: JobStore, settings: Settings, *, attended: Collection[str] = ()) -> UnattendedJobs:
    """Return the jobs of `store` except those `attended`; their machines are described with the credentials
    of `settings`."""

    @cache
    def aws(region: str | None) -> AwsSession:
        return aws_session(settings, region=region)

    return UnattendedJobs(store=store, aws=aws, attended=attended)


def _buckets(settings: Settings, named: str | None) -> Iterator[JobStore]:
    """Yield the stores of jobs on EC2: the named one, else the configured one."""
    if named is not None and is_s3(named):
        yield open_bucket(named, settings, quick=True)
    elif settings.store_url is not None:
        yield bucket_store(settings, quick=True)


def _end(ec2: EC2Client, instance: Instance, expires: datetime | None, *, dry_run: bool) -> str:
    if expires is None:
        return (
            f'its tag {EXPIRES_TAG} says "{instance.tags[EXPIRES_TAG]}", which is not a time; end it by hand'
        )
    if dry_run:
        return ""
    try:
        terminate_one(ec2, instance.id)
    except BaiError as error:
        return str(error)
    return ""


STILL_ON = "its job has ended, and it did not power itself off"
_JOBS_AT_ONCE = 8
"""Most jobs that are checked at the same time."""


@dataclass(frozen=True, kw_only=True)
class Unneeded:
    """A machine that its job no longer needs, or whose job cannot be checked."""

    instance: Instance
    reason: str
    trouble: str = ""
    """Reason why it still exists; empty if it was terminated, or would be."""


@dataclass(frozen=True, kw_only=True)
class UnattendedJobs:
    """The jobs of one store, by the tags of their machines."""

    store: JobStore
    aws: Callable[[str | None], AwsSession]
    attended: Collection[str] = ()
    """Ids of jobs that are monitored anyway."""
    clock: Callable[[str], int] = store_now

    def end_unneeded(self, machines: Sequence[Instance], *, dry_run: bool = False) -> list[Unneeded]:
        """Terminate the `machines` that their jobs no longer need, and return them. An error of one job does not stop the others."""
        tag = clean_text(self.store.url)[:VALUE_LIMIT]
        jobs: dict[str, list[Instance]] = {}
        for each in machines:
            named = each.job_id if each.tags.get(STORE_TAG) == tag else None
            # A younger machine is neither late with its power-off nor known to have failed its boot.
            old = each.age is None or each.age > POWER_OFF
            if named and each.living and old and named not in self.attended:
                jobs.setdefault(named, []).append(each)
        with ThreadPoolExecutor(_JOBS_AT_ONCE) as pool:
            found = pool.map(lambda item: self._of_job(*item, dry_run=dry_run), jobs.items())
            return [each for unneeded in found for each in unneeded]

    def _of_job(self, job_id: str, machines: Sequence[Instance], *, dry_run: bool) -> list[Unneeded]:
        due: Sequence[Instance] = ()
        reason, trouble = "its job could not be looked at", ""
        try:
            monitor = JobMonitor(JobRecord(self.store, job_id), self.aws, self.clock)
            if (result := result_of(monitor.record)) is not None:
                reason = STILL_ON
                due = end_leftovers(monitor, result, dry_run=dry_run).due
            elif _has_failed_boot(monitor, machines):
                # Everything else that is due for such a job is also done.
                found = monitor.observe() if dry_run else monitor.reconcile()
                due, reason, trouble = found.terminate, found.sentence.removesuffix("."), found.trouble
        except BaiError as error:
            return [Unneeded(instance=machines[0], reason=reason, trouble=str(error))]
        return [Unneeded(instance=each, reason=reason, trouble=trouble) for each in due]


def _has_failed_boot(monitor: JobMonitor, machines: Sequence[Instance]) -> bool:
    """Return whether a machine is old enough to have booted, and has never reported."""
    return any((each.age or BOOT_ENDED) > BOOT_ENDED and not _reported(monitor, each) for each in machines)


def _reported(monitor: JobMonitor, machine: Instance) -> bool:
    node = monitor.record.node(machine.index, attempt=monitor.attempt)
    return bool(monitor.record.store.find(node.key("heartbeat.json")))
