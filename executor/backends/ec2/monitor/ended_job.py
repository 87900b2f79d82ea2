"""The machines that a job with a result still has: terminated where they hang, whoever looks.

A machine powers itself off once its agent has ended. One whose shutdown hangs would be paid for until its `bai:expires`, a day on.
The result alone is no reason to end a machine: each instance may write into the bucket, another job's result too. So a machine
goes only after minutes in which nothing came from it; one that still gives signs of life is a warning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from bai_agent.errors import BaiError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import Power
from bai_agent.job.outcome import ExitCode
from bai_agent.job.record_types import JobResult
from executor.backends.ec2.instances import Instance, terminate
from executor.backends.ec2.monitor.boot_failure import span
from executor.backends.ec2.monitor.diagnosis import OVERDUE, STALE
from executor.backends.ec2.monitor.monitor import JobMonitor

POWER_OFF = timedelta(minutes=5)
"""A machine from which nothing has come for so long, after its job's result, hangs in its shutdown: services get 90 s each as a rule."""
RETURNED = timedelta(seconds=15)
"""A node that was given up and whose last sign of life, of one each 5 s, is no older, is there again."""


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """Machines that are still there after their job's end."""

    lost: tuple[Instance, ...] = ()
    """Of nodes that were given up, and are silent."""
    hung: tuple[Instance, ...] = ()
    """Those that did not power themselves off."""
    working: tuple[Instance, ...] = ()
    """Those that give signs of life beside the result."""
    job_id: str = ""
    since: timedelta = timedelta()
    """How long the job's result is there."""
    expires: datetime | None = None

    @property
    def due(self) -> tuple[Instance, ...]:
        """The machines to be terminated."""
        return (*self.lost, *self.hung)

    def sentence(self) -> str | None:
        """Return it for a person, as after `end_leftovers`; None if there is nothing to say."""
        said = []
        if self.lost:
            which = ", ".join(f"{each.id} (node {each.index})" for each in self.lost)
            said.append(f"{which} gave no sign of life any more and {_is_are(self.lost)} being terminated")
        if self.hung:
            said.append(
                f"{_ids(self.hung)} {_is_are(self.hung)} still on, {span(self.since)} after the job's end, and "
                f"{_is_are(self.hung)} being terminated: the power-off hangs"
            )
        if self.working:
            until = "" if self.expires is None else f"; the deadline is {self.expires:%Y-%m-%d %H:%M} UTC"
            said.append(
                f"{_ids(self.working)} still {'gives' if len(self.working) == 1 else 'give'} signs of life {span(self.since)} "
                f"after the job's result was written, which another machine may have done; nothing is terminated{until}, and "
                f"`bai cancel {self.job_id} --now` ends it before"
            )
        return "; ".join(said) or None


def find_leftovers(monitor: JobMonitor, result: JobResult) -> Leftovers:
    """Return what the job that ended with `result` has left. Asks EC2 only if something may be. Raises BaiError."""
    job, expires = monitor.job, monitor.expires
    now_ms = monitor.clock(monitor.record.store.url)
    now = datetime.fromtimestamp(now_ms / 1000, tz=timezone.utc)
    since = monitor.age(monitor.record.key("result.json"), now_ms) or timedelta()
    nothing = Leftovers(job_id=monitor.record.job_id, since=since, expires=expires)
    if job.end.power is Power.STAY or expires is None or now > expires + OVERDUE:
        # What is left later is `bai reap`'s, and every command's.
        return nothing
    if since <= POWER_OFF and not result.lost:
        return nothing
    there = [each for each in monitor.instances() if each.living]
    if not there:
        return nothing
    failed = result.exit_code not in (ExitCode.SUCCEEDED, ExitCode.CANCELLED)
    keep = (job.end.keep_on_failure if failed else None) or timedelta()
    lost = () if keep else _given_up(monitor, result, there, now)
    rest = [each for each in there if each not in lost]
    silence = {each.index: _silence(monitor, each.index, now_ms) for each in rest}
    released = monitor.age(monitor.record.key("release.json"), now_ms)
    return Leftovers(
        lost=tuple(lost),
        hung=tuple(
            each
            for each in rest
            if _hangs(each, silence, since=since, keep=keep, released=released, boot_limit=monitor.boot_limit)
        ),
        working=tuple(
            each for each in rest if since > monitor.patience + POWER_OFF and _is_fresh(silence[each.index])
        ),
        job_id=monitor.record.job_id,
        since=since,
        expires=expires,
    )


def end_leftovers(monitor: JobMonitor, result: JobResult, *, dry_run: bool = False) -> Leftovers:
    """Terminate what `find_leftovers` finds due, and return it. Raises BaiError."""
    found = find_leftovers(monitor, result)
    if found.due and not dry_run:
        terminate(monitor.aws(monitor.region).ec2(), found.due, job_id=monitor.record.job_id)
    return found


def end_leftovers_or_say(monitor: JobMonitor, result: JobResult) -> str | None:
    """Do as `end_leftovers`; return a sentence about it, or about why it is not known what is left. None if there is nothing to say."""
    try:
        return end_leftovers(monitor, result).sentence()
    except BaiError as error:
        return f"whether machines of this job still run is not known: {error}"


def _given_up(
    monitor: JobMonitor, result: JobResult, there: Sequence[Instance], now: datetime
) -> tuple[Instance, ...]:
    """Return the machines of nodes that the job ended without. Such a machine hangs, or is cut off."""
    if not result.lost:
        return ()
    signs = AttemptRecord(monitor.record, monitor.attempt).signs_of_all()
    latest = (now - RETURNED).timestamp() * 1000
    silent = {rank for rank in result.lost if rank not in signs or signs[rank][0] < latest}
    return tuple(each for each in there if each.index in silent)


def _silence(monitor: JobMonitor, rank: int, now_ms: int) -> timedelta | None:
    """Return since when nothing came from a node: no sign of life, and no upload; None if nothing ever did."""
    record, node = monitor.record, monitor.record.node(rank, attempt=monitor.attempt)
    names = [node.key(""), record.key("artifacts/")]
    sign = AttemptRecord(record, monitor.attempt).signs_of_all().get(rank)
    ages = [monitor.age(name, now_ms) for name in names]
    if ages[0] is None and sign is None:
        # Artifacts may be other nodes'.
        return None
    if sign is not None:
        ages.append(timedelta(milliseconds=max(0, now_ms - sign[0])))
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
    """Return whether a machine should have powered itself off. keep: for how long it is kept, if nobody releases it."""
    quiet = silence[machine.index]
    if quiet is None:
        # It may still boot, and its job was ended meanwhile.
        return boot_limit is not None and machine.age is not None and min(machine.age, since) > boot_limit
    if released is not None:
        return min(quiet, since, released) > POWER_OFF
    return min(quiet, since) > keep + POWER_OFF


def _ids(machines: Sequence[Instance]) -> str:
    return ", ".join(each.id for each in machines)


def _is_are(machines: Sequence[Instance]) -> str:
    return "is" if len(machines) == 1 else "are"
