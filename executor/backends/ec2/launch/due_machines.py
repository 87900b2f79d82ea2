"""Decides how many machines a running job lacks that may be launched now: a pure function of its observation."""

from __future__ import annotations

from datetime import timedelta

from bai_agent.light_dataclass import dataclass

FIRST_PAUSE, LONGEST_PAUSE = timedelta(minutes=5), timedelta(minutes=30)
"""Time after a failed launch until the next one. It doubles with each further consecutive failure."""
LEAST_TIME = timedelta(minutes=10)
"""Time for which a machine can run at least, apart from the job's grace and drain: else it is not launched."""
MOST_REFUSALS = 3
"""Refusals in a row that only a person can change, such as terms of the Marketplace to be accepted, until nothing is asked any more."""

_USED_UP = "all replacements are used"
_TOO_LATE = "too little time is left"


@dataclass(frozen=True, kw_only=True)
class MachinesSeen:
    """The known facts about a job's machines."""

    desired: int
    """Number of nodes that the job should have now."""
    living: int
    """Machines that exist, or that EC2 has just accepted, in whatever state their nodes are."""
    coming: int = 0
    """Machines of launches without an answer."""
    launched: int
    """Machines that EC2 ever accepted for the job, and those of launches without an answer."""
    wanted: int
    """Machines that are not replacements: those of the first launch, and those by which the job was enlarged
    since."""
    replacements: int = 0
    """Machines that may be launched in place of lost ones."""
    is_over: bool = False
    """Whether the job has ended, or is about to, or is cancelled."""
    left: timedelta
    """Time until all machines of the job must be gone."""
    needed: timedelta = timedelta()
    """Time that the job's agents need to end it."""
    failures: int = 0
    """Consecutive launches, up to now, that EC2 refused, or whose machine never became a node."""
    since_failure: timedelta = timedelta()
    """Time since the last of these launches."""
    refusal: str = ""
    """Reason why EC2 would refuse any other launch; empty if it may accept one."""


@dataclass(frozen=True, kw_only=True)
class DueMachines:
    """What follows."""

    count: int = 0
    """Machines that are to be launched now."""
    wait: timedelta | None = None
    """Time until they are requested. Time until the next launch; None if none is due, or if it is due now."""
    why: str = ""
    """Reason why none are launched although nodes are missing; empty if the job has no replacements at all."""

    @property
    def any(self) -> bool:
        """Whether a machine is launched now or later."""
        return self.count > 0 or self.wait is not None


def machines_due(seen: MachinesSeen) -> DueMachines:
    """Return how many machines are to be launched."""
    missing = seen.desired - seen.living - seen.coming
    allowed = seen.wanted + seen.replacements - seen.launched
    count = max(0, min(missing, allowed))
    if missing <= 0 or seen.is_over:
        return DueMachines()
    if count == 0:
        return DueMachines(why=_USED_UP if seen.replacements else "")
    if seen.refusal:
        return DueMachines(why=seen.refusal)
    wait = pause(seen.failures) - seen.since_failure if seen.failures else timedelta()
    if seen.left - max(wait, timedelta()) < seen.needed + LEAST_TIME:
        return DueMachines(why=_TOO_LATE)
    return DueMachines(wait=wait) if wait > timedelta() else DueMachines(count=count)


def pause(failures: int) -> timedelta:
    """Return the time between the last of this number of failed launches and the next one."""
    return min(FIRST_PAUSE * float(2 ** min(failures - 1, 10)), LONGEST_PAUSE)


def enlarged_by(first: int, requested: list[int]) -> int:
    """Return by how many machines a job of `first` ones was enlarged by these requests, in their order."""
    found, before = 0, first
    for desired in requested:
        found += max(0, desired - before)
        before = desired
    return found
