"""The machines of a running job: those that it lacks, those that are being launched, and those that are
due."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from bai_agent.errors import RecordError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import Job
from bai_agent.job.launches import LaunchSeen, launches_seen
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from bai_agent.light_dataclass import dataclass, field, replace
from executor.backends.ec2.instances import Instance
from executor.backends.ec2.launch.due_machines import (
    MOST_REFUSALS,
    DueMachines,
    MachinesSeen,
    enlarged_by,
    machines_due,
    pause,
)
from executor.backends.ec2.launch.launch_record import EXPIRED, read_decision, read_launch_table
from executor.backends.ec2.monitor.job_observation import CONSISTENT
from executor.records.generation_status import is_ending, requested_nodes

_OF_CALLER = "UnauthorizedOperation"
"""Code of a refusal for the process that tried; another one, such as the watcher, may launch."""


@dataclass(frozen=True, kw_only=True)
class KnownLaunch:
    """A launch after the first one, as it is recorded."""

    number: int
    node: int
    replaces: tuple[int, ...] = ()
    """The lost node in whose place it is; empty if the job was enlarged."""
    begun: datetime
    decided: datetime | None = None
    """None if it has no answer yet."""
    instance: str | None = None
    """Its machine. None if there is none, or none yet."""
    refusal: str = ""
    """Code of EC2's refusal; empty if there is none."""
    lasting: str = ""
    """Reason of a refusal that only a person can change, in a sentence without its dot; empty for others, such as no room."""

    @property
    def is_open(self) -> bool:
        return self.decided is None


@dataclass(frozen=True, kw_only=True)
class JobLaunches:
    """All launches of a job."""

    first: tuple[str, ...] = ()
    """Ids of the first launch's machines, by node."""
    first_nodes: int = 0
    """Nodes that the first one asked for: their numbers are taken."""
    first_decided: datetime | None = None
    later: tuple[KnownLaunch, ...] = ()

    @property
    def nodes(self) -> dict[str, int]:
        """The node of each machine."""
        later = {each.instance: each.node for each in self.later if each.instance is not None}
        return {**{instance: node for node, instance in enumerate(self.first)}, **later}

    @property
    def open_numbers(self) -> Collection[int]:
        return [each.number for each in self.later if each.is_open]

    @property
    def decided_numbers(self) -> Collection[int]:
        """Launches whose machines are known, if the first one's are."""
        return [0, *(each.number for each in self.later if not each.is_open)]

    @property
    def next_node(self) -> int:
        return max((self.first_nodes, *(each.node + 1 for each in self.later)))

    @property
    def next_number(self) -> int:
        return max((1, *(each.number + 1 for each in self.later)))

    @property
    def replaced(self) -> set[int]:
        """Lost nodes with a launched or requested replacement."""
        return {node for each in self.later if not each.refusal for node in each.replaces}

    def shown_late(self, now: datetime) -> set[str]:
        """Return the machines that EC2 accepted so recently that it may not show them yet."""
        found = {each.instance for each in self.later if each.decided and now - each.decided < CONSISTENT}
        if self.first_decided is not None and now - self.first_decided < CONSISTENT:
            found.update(self.first)
        return {each for each in found if each is not None}


class LaunchReader:
    """Reads the launches of one job repeatedly; decided ones are read only once."""

    def __init__(self, record: JobRecord, attempt: int) -> None:
        self._record, self._attempt = record, attempt
        self._known: dict[int, KnownLaunch] = {}
        self._first: JobLaunches | None = None

    def read(self) -> JobLaunches:
        """Return all launches. Raises StoreError, RecordError."""
        seen = {each.number: each for each in launches_seen(self._record, self._attempt)}
        if self._first is None:
            self._first = self._read_first(seen.pop(0, None))
        seen.pop(0, None)
        for number, each in seen.items():
            if number not in self._known or self._known[number].is_open:
                self._known[number] = self._read_later(each)
        first = self._first
        if not first.first:
            self._first = None
        return JobLaunches(
            first=first.first,
            first_nodes=first.first_nodes,
            first_decided=first.first_decided,
            later=tuple(self._known[number] for number in sorted(seen)),
        )

    def _read_first(self, seen: LaunchSeen | None) -> JobLaunches:
        if seen is None or seen.decided is None:
            return JobLaunches()
        decision = read_decision(self._record, attempt=self._attempt) or {}
        table = read_launch_table(self._record, attempt=self._attempt) or {}
        return JobLaunches(
            first=tuple(decision.get("instances", ())),
            first_nodes=int(table.get("request", {}).get("MaxCount", 0)),
            first_decided=_time(seen.decided),
        )

    def _read_later(self, seen: LaunchSeen) -> KnownLaunch:
        record, attempt, number = self._record, self._attempt, seen.number
        table: Mapping[str, Any] = read_launch_table(record, attempt=attempt, launch=number) or {}
        begun = KnownLaunch(
            number=number,
            node=table.get("first_node", 0),
            replaces=tuple(table.get("replaces", ())),
            begun=_time(seen.begun),
        )
        decision = read_decision(record, attempt=attempt, launch=number) if seen.is_decided else None
        if decision is None or seen.decided is None:
            return begun
        if instances := decision["instances"]:
            return replace(begun, decided=_time(seen.decided), instance=instances[0])
        error = decision.get("error") or {}
        code = str(error.get("code") or "refused")
        is_lasting = decision["outcome"] == Outcome.LAUNCH_FAILED.value and code != EXPIRED
        lasting = str(error.get("message") or decision["sentence"]).removesuffix(".") if is_lasting else ""
        return replace(begun, decided=_time(seen.decided), refusal=code, lasting=lasting)


@dataclass(frozen=True, kw_only=True)
class MachineNeeds:
    """The machines of a running job, and those that are due."""

    launches: JobLaunches
    desired: int
    members: int = 0
    """Living machines whose nodes have given a sign of life."""
    starting: tuple[Instance, ...] = ()
    """Living machines of later launches that have not given one."""
    lost: tuple[int, ...] = ()
    """Nodes whose machine is gone and was not replaced, if machines are due."""
    failed: tuple[KnownLaunch, ...] = ()
    """The last consecutive launches that failed."""
    due: DueMachines = field(default_factory=DueMachines)
    replaces: bool = False
    """Whether machines would be launched if none were left."""

    @property
    def awaits(self) -> bool:
        """Whether the job is known to get another machine."""
        return self.due.any or bool(self.launches.open_numbers)

    def sentence(self) -> str:
        """Return it in words; empty if nothing is launched, refused or withheld."""
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
    """Return the machines that a job without a result needs. instances: its machines. done: nodes whose part
    has ended. Raises StoreError."""
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
    """Return the nodes whose machine is gone and was not replaced. Raises StoreError, RecordError."""
    gone = [each for each in launches.nodes.values() if each not in there and each not in launches.replaced]
    ended = attempt.ended()
    return tuple(each for each in sorted(gone) if each not in ended or not _has_succeeded(attempt, each))


def _has_succeeded(attempt: AttemptRecord, node: int) -> bool:
    """Return whether the part of a node has succeeded, as it does if the job was scaled down. Raises StoreError."""
    try:
        return attempt.node_outcome(node).outcome == Outcome.SUCCEEDED.value
    except RecordError:
        return False  # its instance may write it, whatever program runs there


def _failed(
    attempt: AttemptRecord, launches: JobLaunches, living: Collection[int]
) -> tuple[KnownLaunch, ...]:
    """Return the last consecutive launches that EC2 refused, or whose machine is gone and never joined.
    Raises StoreError."""
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
    """Return EC2's reason for refusing the last launches if no further attempt follows; else an empty
    text."""
    last = failed[-MOST_REFUSALS:]
    if len(last) < MOST_REFUSALS or not all(each.lasting and each.refusal != _OF_CALLER for each in last):
        return ""
    return f"EC2 has refused it {MOST_REFUSALS} times ({last[-1].lasting})"


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, tz=timezone.utc)
