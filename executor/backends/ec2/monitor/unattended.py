"""Machines of jobs that nobody looks at: those that hang after their job's end, and those that never ran their user data.

`bai reap`, the service and every command in passing look at them, long before their time is up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bai_agent.errors import BaiError
from bai_agent.job.record import JobRecord
from bai_agent.job.store import JobStore
from executor.backends.ec2.clock import store_now
from executor.backends.ec2.instances import STORE_TAG, Instance
from executor.backends.ec2.monitor.boot_failure import BOOT_ENDED
from executor.backends.ec2.monitor.ended_job import POWER_OFF, end_leftovers
from executor.backends.ec2.monitor.monitor import JobMonitor
from executor.backends.ec2.session import AwsSession
from executor.backends.ec2.tags import VALUE_LIMIT, clean_text
from executor.records.reading import result_of

_AT_ONCE = 8
"""Jobs that are looked at side by side."""


@dataclass(frozen=True, kw_only=True)
class Unneeded:
    """A machine that its job no longer needs, or one whose job cannot be looked at."""

    instance: Instance
    reason: str
    trouble: str = ""
    """Why it is still there; empty if it was terminated, or would be."""


@dataclass(frozen=True, kw_only=True)
class UnattendedJobs:
    """The jobs of one store, as far as their machines say that they belong to it."""

    store: JobStore
    aws: Callable[[str | None], AwsSession]
    attended: Collection[str] = ()
    """Ids of jobs that somebody looks after anyway."""
    clock: Callable[[str], int] = store_now

    def end_unneeded(self, machines: Sequence[Instance], *, dry_run: bool = False) -> list[Unneeded]:
        """Terminate those of `machines` that their jobs no longer need, and return them. An error about one job does not keep the others."""
        tag = clean_text(self.store.url)[:VALUE_LIMIT]
        jobs: dict[str, list[Instance]] = {}
        for each in machines:
            named = each.job_id if each.tags.get(STORE_TAG) == tag else None
            # A younger machine is neither off too late nor known not to have booted.
            old = each.age is None or each.age > POWER_OFF
            if named and each.living and old and named not in self.attended:
                jobs.setdefault(named, []).append(each)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = pool.map(lambda item: self._of_job(*item, dry_run=dry_run), jobs.items())
            return [each for unneeded in found for each in unneeded]

    def _of_job(self, job_id: str, machines: Sequence[Instance], *, dry_run: bool) -> list[Unneeded]:
        due: Sequence[Instance] = ()
        reason = "its job could not be looked at"
        try:
            monitor = JobMonitor(JobRecord(self.store, job_id), self.aws, self.clock)
            if (result := result_of(monitor.record)) is not None:
                reason = "its job has ended, and it did not power itself off"
                due = end_leftovers(monitor, result, dry_run=dry_run).due
            elif any(
                (each.age or BOOT_ENDED) > BOOT_ENDED and not _reported(monitor, each) for each in machines
            ):
                # Whatever else is due for such a job is done as well.
                found = monitor.observe() if dry_run else monitor.reconcile()
                due, reason = found.terminate, found.sentence.removesuffix(".")
        except BaiError as error:
            return [
                Unneeded(instance=each, reason=reason, trouble=str(error)) for each in due or machines[:1]
            ]
        return [Unneeded(instance=each, reason=reason) for each in due]


def _reported(monitor: JobMonitor, machine: Instance) -> bool:
    node = monitor.record.node(machine.index, attempt=monitor.attempt)
    return bool(monitor.record.store.find(node.key("heartbeat.json")))
