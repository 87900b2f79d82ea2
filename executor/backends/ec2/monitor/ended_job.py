"""Finds the machines that still exist after a job's result, and terminates machines that hang.

A machine powers itself off after its agent has ended. If the shutdown hangs, the machine costs money until
the time in its `bai:expires` tag, up to a day later. The result alone is no reason to terminate a machine,
because any instance may write into the bucket, even another job's result. So a machine of an ended job is
terminated only after minutes without a heartbeat. If the machine still writes heartbeats, the user is warned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from bai_agent.errors import BaiError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor.limit_tables import Power
from bai_agent.job.record_types import JobResult
from bai_agent.light_dataclass import dataclass, replace
from executor.backends.ec2.clock import elapsed, moment, span
from executor.backends.ec2.instances import Instance, terminate
from executor.backends.ec2.monitor.job_observation import OVERDUE, POWER_OFF, STALE, is_are
from executor.backends.ec2.monitor.monitor import JobMonitor

RETURNED = timedelta(seconds=15)
"""Maximum age of a lost node's last heartbeat at which the node counts as returned. The nodes of a job write
heartbeats for each other every 5 s."""


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """Machines that still exist after their job's end."""

    lost: tuple[Instance, ...] = ()
    """Silent machines of nodes that the job gave up."""
    hung: tuple[Instance, ...] = ()
    """Machines that did not power themselves off."""
    working: tuple[Instance, ...] = ()
    """Machines that still write heartbeats although the job has a result."""
    job_id: str = ""
    since: timedelta = timedelta()
    """Age of the job's result."""
    expires: datetime | None = None

    @property
    def due(self) -> tuple[Instance, ...]:
        """Machines that are to be terminated."""
        return (*self.lost, *self.hung)

    def sentence(self) -> str | None:
        """Return the sentence for the user after `end_leftovers`; None if there are no leftovers."""
        said = []
        if self.lost:
            which = ", ".join(f"{each.id} (node {each.index})" for each in self.lost)
            said.append(f"{which} stopped sending heartbeats and {is_are(self.lost)} being terminated")
        if self.hung:
            said.append(
                f"{_ids(self.hung)} {is_are(self.hung)} still on, {span(self.since)} after the job's end, and "
                f"{is_are(self.hung)} being terminated: the power-off hangs"
            )
        if self.working:
            until = "" if self.expires is None else f"; the deadline is {self.expires:%Y-%m-%d %H:%M} UTC"
            said.append(
                f"{_ids(self.working)} still {'sends' if len(self.working) == 1 else 'send'} heartbeats {span(self.since)} "
                f"after the job's result was written, possibly by another machine; nothing is terminated{until}, and "
                f"`bai cancel {self.job_id} --now` terminates the job's machines earlier"
            )
        return "; ".join(said) or None


def find_leftovers(monitor: JobMonitor, result: JobResult) -> Leftovers:
    """Return the remaining machines of the job that ended with `result`. EC2 is queried only if machines may
    remain. Raises BaiError."""
    now_ms = monitor.clock(monitor.record.store.url)
    since = monitor.age(monitor.record.key("result.json"), now_ms) or timedelta()
    found = Leftovers(job_id=monitor.record.job_id, since=since, expires=monitor.expires)
    may_hang = since > POWER_OFF or result.lost
    if not may_hang or not _is_watched(monitor, moment(now_ms)):
        return found
    there = [each for each in monitor.instances() if each.living]
    if not there:
        return found
    return _sort(found, monitor, result, there, now_ms)


def _sort(
    found: Leftovers, monitor: JobMonitor, result: JobResult, there: Sequence[Instance], now_ms: int
) -> Leftovers:
    """Return `found` with the existing machines `there` sorted into the categories of `Leftovers`."""
    keep = _keep_time(monitor, result)
    lost = _given_up(monitor, result, there, now_ms) if not keep else ()
    rest = [each for each in there if each not in lost]
    silence = {each.index: _silence(monitor, each.index, now_ms) for each in rest}
    hangs = partial(
        _hangs,
        silence=silence,
        since=found.since,
        keep=keep,
        released=monitor.age(monitor.record.key("release.json"), now_ms),
        boot_limit=monitor.boot_limit,
    )
    is_late = found.since > monitor.patience + POWER_OFF
    working = (each for each in rest if is_late and _is_fresh(silence[each.index]))
    return replace(found, lost=lost, hung=tuple(filter(hangs, rest)), working=tuple(working))


def _keep_time(monitor: JobMonitor, result: JobResult) -> timedelta:
    """Return the time for which the job's machines stay on for inspection after the job's end."""
    return monitor.job.end.keep_time(result.exit_code)


def _is_watched(monitor: JobMonitor, now: datetime) -> bool:
    """Return whether this module must check the job's machines. `bai reap` and every other command terminate
    machines after their deadline anyway."""
    expires = monitor.expires
    is_due = expires is not None and now <= expires + OVERDUE
    return is_due and monitor.job.end.power is not Power.STAY


def end_leftovers(monitor: JobMonitor, result: JobResult, *, dry_run: bool = False) -> Leftovers:
    """Terminate the due machines of `find_leftovers`, and return all machines that `find_leftovers` found.
    Raises BaiError."""
    found = find_leftovers(monitor, result)
    if found.due and not dry_run:
        terminate(monitor.aws(monitor.region).ec2(), found.due, job_id=monitor.record.job_id)
    return found


def end_leftovers_or_say(monitor: JobMonitor, result: JobResult) -> str | None:
    """Terminate machines that remain after a job; return a sentence about the machines, or about the error; None if
    no machine remains."""
    try:
        return end_leftovers(monitor, result).sentence()
    except BaiError as error:
        return f"whether machines of this job still run is not known: {error}"


def _given_up(
    monitor: JobMonitor, result: JobResult, there: Sequence[Instance], now_ms: int
) -> tuple[Instance, ...]:
    """Return the silent machines of nodes that the job gave up. Such a machine hangs, or has lost its network."""
    if not result.lost:
        return ()
    signs = AttemptRecord(monitor.record, monitor.attempt).signs_of_all()
    latest = now_ms - RETURNED.total_seconds() * 1000
    silent = {rank for rank in result.lost if rank not in signs or signs[rank][0] < latest}
    return tuple(each for each in there if each.index in silent)


def _silence(monitor: JobMonitor, rank: int, now_ms: int) -> timedelta | None:
    """Return the time since a node's last heartbeat or upload; None if the node has written nothing."""
    record, node = monitor.record, monitor.record.node(rank, attempt=monitor.attempt)
    names = [node.key(""), record.key("artifacts/")]
    sign = AttemptRecord(record, monitor.attempt).signs_of_all().get(rank)
    ages = [monitor.age(name, now_ms) for name in names]
    if ages[0] is None and sign is None:
        # Other nodes may have written the artifacts, so the artifacts prove nothing about this node.
        return None
    if sign is not None:
        ages.append(elapsed(sign[0], now_ms))
    return min(age for age in ages if age is not None)


def _is_fresh(silence: timedelta | None) -> bool:
    return silence is not None and silence <= STALE


def _hangs(
    machine: Instance,
    silence: Mapping[int, timedelta | None],
    *,
    since: timedelta,
    keep: timedelta,
    released: timedelta | None,
    boot_limit: timedelta | None,
) -> bool:
    """Return whether a machine should have powered itself off by now. keep: time for which the machine stays
    on for inspection, unless the user releases the job."""
    quiet = silence[machine.index]
    if quiet is None:
        # The machine may still be booting, although its job has ended.
        return boot_limit is not None and machine.age is not None and min(machine.age, since) > boot_limit
    if released is not None:
        return min(quiet, since, released) > POWER_OFF
    return min(quiet, since) > keep + POWER_OFF


def _ids(machines: Sequence[Instance]) -> str:
    return ", ".join(each.id for each in machines)
