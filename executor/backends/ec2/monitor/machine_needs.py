"""Finds which machines a running job lacks, and how many machines may be launched now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from bai_agent.errors import RecordError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import Job
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.light_dataclass import dataclass, field, replace
from executor.backends.ec2.instances import Instance
from executor.backends.ec2.monitor.job_launches import JobLaunches, KnownLaunch
from executor.records.generation_status import is_ending, requested_nodes

FIRST_PAUSE, LONGEST_PAUSE = timedelta(minutes=5), timedelta(minutes=30)
"""Pause after the first failed launch, and the longest pause. The pause doubles with each consecutive failed
launch."""
LEAST_TIME = timedelta(minutes=10)
"""Minimum run time that a machine must have to be launched, in addition to the job's grace and drain
times."""
MOST_REFUSALS = 3
"""Number of consecutive refusals after which no further request is sent. Only refusals that a user must resolve
count, such as terms of the Marketplace."""

_USED_UP = "all replacements are used"
_TOO_LATE = "too little time is left"
_OF_CALLER = "UnauthorizedOperation"
"""Code of a refusal that applies only to the credentials of the process that sent the request. Another
process, such as the watcher, may be allowed to launch."""


@dataclass(frozen=True, kw_only=True)
class MachinesSeen:
    """The known facts about a job's machines."""

    desired: int
    """Number of nodes that the job should have now."""
    living: int
    """Number of machines that exist, or whose launch EC2 has just accepted, whatever the state of their
    nodes."""
    coming: int = 0
    """Number of machines whose launch EC2 has not answered yet."""
    launched: int
    """Number of all machines of the job whose launch EC2 has ever accepted or has not answered yet."""
    wanted: int
    """Number of machines that are not replacements: the machines of the first launch, and the machines by
    which the job was enlarged later."""
    replacements: int = 0
    """Number of machines that may be launched to replace lost machines."""
    is_over: bool = False
    """Whether the job has ended, is about to end, or is cancelled."""
    left: timedelta
    """Time until all machines of the job must be gone."""
    needed: timedelta = timedelta()
    """Time that the job's agents need to end the job."""
    failures: int = 0
    """Number of consecutive failures up to the latest launch: EC2 refused the launch, or its machine never
    became a node."""
    since_failure: timedelta = timedelta()
    """Time since the latest failed launch."""
    refusal: str = ""
    """Reason why EC2 would refuse any further launch; empty if EC2 may accept a further launch."""


@dataclass(frozen=True, kw_only=True)
class DueMachines:
    """The machines to launch now, or the reason for launching none."""

    count: int = 0
    """Number of machines to launch now."""
    wait: timedelta | None = None
    """Time until the next launch; None if no launch is due, or if a launch is due now."""
    why: str = ""
    """Reason why no machines are launched although nodes are missing; empty if the job has no replacements at
    all."""

    @property
    def any(self) -> bool:
        """Whether any machine is to be launched, now or later."""
        return self.count > 0 or self.wait is not None


def machines_due(seen: MachinesSeen) -> DueMachines:
    """Return how many machines are to be launched, and when they are to be launched."""
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
    """Return the time between the latest failed launch and the next launch. failures: number of consecutive
    failed launches."""
    return min(FIRST_PAUSE * float(2 ** min(failures - 1, 10)), LONGEST_PAUSE)


def enlarged_by(first: int, requested: list[int]) -> int:
    """Return the total number of machines by which a job of `first` machines was enlarged. requested: the
    requested numbers of nodes, in the order of the requests."""
    found, before = 0, first
    for desired in requested:
        found += max(0, desired - before)
        before = desired
    return found


@dataclass(frozen=True, kw_only=True)
class MachineNeeds:
    """The machines of a running job, and the machines to launch."""

    launches: JobLaunches
    desired: int
    members: int = 0
    """Number of living machines whose nodes have written a heartbeat."""
    starting: tuple[Instance, ...] = ()
    """Living machines of later launches whose nodes have not written a heartbeat yet."""
    lost: tuple[int, ...] = ()
    """Nodes whose machine is gone and was not replaced; empty if no machines are to be launched."""
    failed: tuple[KnownLaunch, ...] = ()
    """The latest consecutive launches that failed."""
    due: DueMachines = field(default_factory=DueMachines)
    replaces: bool = False
    """Whether bai would launch machines if the job had no machine left."""

    @property
    def awaits(self) -> bool:
        """Whether the job is known to get another machine."""
        return self.due.any or bool(self.launches.open_numbers)

    def sentence(self) -> str:
        """Return a sentence for the user about the launches; empty if no machine is launched, refused or
        withheld."""
        withheld = f"no other machine is launched: {self.due.why}" if self.due.why else ""
        return "; ".join(filter(None, (self._booting(), self._refused(), withheld)))

    def _booting(self) -> str:
        if not self.starting:
            return ""
        which = "; ".join(f"{each.id}{self._place(each)}" for each in self.starting)
        members = f"{self.members} member{'' if self.members == 1 else 's'}"
        return f"desired {self.desired}: {members}, {len(self.starting)} booting ({which})"

    def _refused(self) -> str:
        refused = [each for each in self.failed if each.refusal and each.decided is not None]
        if not refused or not self.due.any:
            return ""
        first, last = (each.decided or each.begun for each in (refused[0], refused[-1]))
        again, latest = last + pause(len(self.failed)), refused[-1]
        since = f"node {latest.node} since {first:%H:%M} UTC"
        what = (
            f"EC2 refuses {since}: {latest.lasting}"
            if latest.lasting
            else f"no room for {since} ({latest.refusal})"
        )
        return f"{what}; asked again at {again:%H:%M} UTC"

    def _place(self, machine: Instance) -> str:
        replaces = next((each.replaces for each in self.launches.later if each.node == machine.index), ())
        return "".join(f", replaces node {node}" for node in replaces)


def machine_needs(
    record: JobRecord,
    job: Job,
    launches: JobLaunches,
    instances: Sequence[Instance],
    *,
    signs: Collection[int],
    done: Collection[int],
    now: datetime,
    expires: datetime | None,
    is_cancelled: bool,
) -> MachineNeeds:
    """Return the machines that a job without a result needs. instances: the job's machines. done: nodes whose
    part has ended. Raises StoreError."""
    attempt = AttemptRecord(record, job.job.attempt)
    requested = requested_nodes(attempt, job)
    living = [each for each in instances if each.living]
    unseen = launches.shown_late(now) - {each.id for each in instances}
    there = {each.index for each in living} | {launches.nodes[each] for each in unseen}
    failed = _failed(attempt, launches, there)
    first, coming = len(launches.first), len(launches.open_numbers)
    seen = MachinesSeen(
        desired=[job.desired_nodes, *requested][-1],
        living=len(living) + len(unseen),
        coming=coming,
        launched=len(launches.nodes) + coming,
        wanted=first + enlarged_by(first, requested),
        replacements=job.elastic.replacements,
        is_over=is_cancelled or not first,
        left=(expires or now) - now,
        needed=job.limits.grace + job.limits.drain,
        failures=len(failed),
        since_failure=now - (failed[-1].decided or now) if failed else timedelta(),
        refusal=_lasting_refusal(failed),
    )
    due, without = machines_due(seen), machines_due(replace(seen, living=0))
    if without.any and is_ending(attempt):
        due = without = DueMachines()
    return MachineNeeds(
        launches=launches,
        desired=seen.desired,
        members=len({each.index for each in living} & set(signs) - set(done)),
        starting=_starting(launches, living, signs),
        lost=_lost(attempt, launches, there) if due.count else (),
        failed=failed,
        due=due,
        replaces=without.any,
    )


def _starting(
    launches: JobLaunches, living: Sequence[Instance], signs: Collection[int]
) -> tuple[Instance, ...]:
    later = {each.node for each in launches.later}
    return tuple(each for each in living if each.index in later and each.index not in signs)


def _lost(attempt: AttemptRecord, launches: JobLaunches, there: Collection[int]) -> tuple[int, ...]:
    """Return the nodes whose machine is gone and has no replacement. Raises StoreError, RecordError."""
    gone = [each for each in launches.nodes.values() if each not in there and each not in launches.replaced]
    ended = attempt.ended()
    return tuple(each for each in sorted(gone) if each not in ended or not _has_succeeded(attempt, each))


def _has_succeeded(attempt: AttemptRecord, node: int) -> bool:
    """Return whether a node's part of the job has succeeded. A node that left because the job was scaled down
    also counts as succeeded. Raises StoreError."""
    try:
        return attempt.node_outcome(node).outcome == Outcome.SUCCEEDED.value
    except RecordError:
        return False  # Any program on the node's instance can write this file, so its content may be invalid.


def _failed(
    attempt: AttemptRecord, launches: JobLaunches, living: Collection[int]
) -> tuple[KnownLaunch, ...]:
    """Return the latest launches that failed one after the other. A launch has failed if EC2 refused it, or if its
    machine is gone and never joined the job. Raises StoreError."""
    found: list[KnownLaunch] = []
    joined: Collection[int] | None = None
    for each in reversed([each for each in launches.later if not each.is_open]):
        if not each.refusal:
            if each.node in living:
                break
            joined = attempt.joined() if joined is None else joined
            if each.node in joined:
                break
        found.append(each)
    return tuple(reversed(found))


def _lasting_refusal(failed: Sequence[KnownLaunch]) -> str:
    """Return EC2's reason for refusing the latest launches if no further attempt follows; empty if another
    attempt follows."""
    last = failed[-MOST_REFUSALS:]
    if len(last) < MOST_REFUSALS or not all(each.lasting and each.refusal != _OF_CALLER for each in last):
        return ""
    return f"EC2 has refused the launch {MOST_REFUSALS} times ({last[-1].lasting})"
