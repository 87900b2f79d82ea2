"""Terminates machines whose time is up and that have not gone by themselves: by their tags alone, nothing is remembered.

Anybody may do it, several at once, from a terminal, cron or a schedule: a machine that is terminated twice is terminated once.
Only what carries our tags is looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from bai_agent.errors import BaiError
from executor.backends.ec2.instances import (
    CLIENT_TAG,
    EXPIRES_TAG,
    JOB_TAG,
    Instance,
    described,
    terminate_one,
)
from executor.backends.ec2.job_store import bucket_store, is_bucket, open_bucket
from executor.backends.ec2.monitor.diagnosis import OVERDUE
from executor.backends.ec2.regions import named_regions
from executor.backends.ec2.session import aws_of
from executor.backends.ec2.tags import VALUE_LIMIT, clean_text
from executor.backends.ec2.timestamps import parse_moment

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef

    from bai_agent.job.store import JobStore
    from executor.config import Settings

_AT_ONCE = 8
"""Regions that are asked side by side."""
_STATES = ("pending", "running", "stopping", "stopped")
"""A machine in any other state is gone, or on its way."""


@dataclass(frozen=True)
class Reaped:
    """A machine whose time is up, and what became of it."""

    instance: Instance
    expires: datetime | None
    """None where its tag is no moment."""
    trouble: str = ""
    """Why it is still there; empty where it was terminated, or would be."""


def overdue(
    instances: Sequence[Instance], *, now: datetime, margin: timedelta = OVERDUE
) -> list[tuple[Instance, datetime | None]]:
    """Return those of our machines whose expiry was more than `margin` ago, and those whose expiry cannot be read."""
    found: list[tuple[Instance, datetime | None]] = []
    for each in instances:
        if each.state not in _STATES or not each.tags.get(JOB_TAG) or EXPIRES_TAG not in each.tags:
            continue
        expires = parse_moment(each.tags[EXPIRES_TAG])
        if expires is None or now > expires + margin:
            found.append((each, expires))
    return found


def reap(
    ec2: EC2Client,
    *,
    now: datetime,
    dry_run: bool = False,
    client_id: str | None = None,
    told: Callable[[Reaped], None] = lambda reaped: None,
) -> list[Reaped]:
    """Terminate what should not be there any more, and return it; `told` hears of each.

    Raises BaiError where EC2 cannot be asked. client_id: only that client's. A machine that cannot be terminated does not keep the others.
    """
    filters: list[FilterTypeDef] = [
        {"Name": "tag-key", "Values": [EXPIRES_TAG]},
        {"Name": "instance-state-name", "Values": list(_STATES)},
    ]
    if client_id is not None:
        filters.append({"Name": f"tag:{CLIENT_TAG}", "Values": [clean_text(client_id)[:VALUE_LIMIT]]})
    done = []
    for instance, expires in overdue(described(ec2, filters), now=now):
        reaped = Reaped(instance, expires, _end(ec2, instance, expires, dry_run=dry_run))
        told(reaped)
        done.append(reaped)
    return done


def reap_own(settings: Settings, *, store: str | None) -> None:
    """Terminate this client's machines whose time is up, in passing: what is in the way will be there the next time, too.

    In the configured region, and in all in which jobs of `store` (unset: of the configured one) were launched. Raises UsageError, DescriptorError where the
    configuration is wrong.
    """
    regions = {settings.region} if settings.region is not None else set()
    try:
        for bucket in _buckets(settings, store):
            regions.update(named_regions(bucket))
    except BaiError as error:
        log.info("the regions of other jobs are not known: %s", error)

    def reap_region(region: str) -> None:
        try:
            ec2 = aws_of(settings, region=region).quick_client()
            reap(ec2, now=datetime.now(timezone.utc), client_id=settings.client)
        except BaiError as error:
            log.info("nothing was reaped in %s: %s", region, error)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(reap_region, sorted(regions)))


def _buckets(settings: Settings, named: str | None) -> Iterator[JobStore]:
    """Yield the stores of jobs on EC2: the one that was named, else the configured one."""
    if named is not None and is_bucket(named):
        yield open_bucket(named, settings, quick=True)
    elif settings.store_url is not None:
        yield bucket_store(settings, quick=True)


def _end(ec2: EC2Client, instance: Instance, expires: datetime | None, *, dry_run: bool) -> str:
    if expires is None:
        return (
            f'its tag {EXPIRES_TAG} says "{instance.tags[EXPIRES_TAG]}", which is no moment; end it by hand'
        )
    if dry_run:
        return ""
    try:
        terminate_one(ec2, instance.id)
    except BaiError as error:
        return str(error)
    return ""
