"""Finds the current generation of an elastic job, and the number of nodes that the job should have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from bai_agent.errors import RecordError
from bai_agent.job.attempt import AttemptRecord, Control, Version
from bai_agent.job.descriptor import Job
from bai_agent.job.generation_records import Change, DecisionKind, Hints, NextGeneration, ScaleRequest
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import now_ms
from bai_agent.light_dataclass import dataclass, field
from executor.errors import UsageError
from executor.quantities import counted
from executor.records.reading import result_of

_LEFT = {
    Change.LOST: "lost",
    Change.BROKE: "lost the benchmark",
    Change.NOT_STOPPED: "did not stop",
    Change.NOT_RESTORED: "did not restore",
    Change.LEFT: "left",
    Change.SCALED: "no longer wanted",
}
"""Reason for a new generation → what happened to the nodes that caused it."""


@dataclass(frozen=True, kw_only=True)
class GenerationStatus:
    """The newest generation of an elastic job. Times are ms UTC, by the store's clock."""

    number: int
    members: tuple[int, ...]
    """Numbers of the generation's nodes, in the order of their ranks; if the job is parked, the numbers of
    the remaining nodes."""
    since: int | None
    """Time at which the generation began or, before this time, at which the generation was decided."""
    has_begun: bool = True
    is_parked: bool = False
    until: int | None = None
    """Time at which a parked job ends. None if the job is not parked."""
    why: str = ""
    """Reason for the generation, for example "node 1 sent no heartbeat"; empty for the first
    generation."""
    desired: int
    least: int
    most: int
    restarts: int = 0
    max_restarts: int = 0
    left: Mapping[int, str] = field(default_factory=dict)
    """Number of each node that is no longer a member → what happened to this node, for example "lost in
    generation 1"."""

    @property
    def leader(self) -> int:
        """Number of the node that decides for the job; None if unknown."""
        return self.members[0] if self.members else 0

    def rank(self, node: int) -> int | None:
        """Return the rank of a node in this generation; None if the node is not a member."""
        return self.members.index(node) if node in self.members and not self.is_parked else None

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {
            **self.__dict__,
            "members": list(self.members),
            "left": {str(k): v for k, v in self.left.items()},
        }


@dataclass(frozen=True, kw_only=True)
class SizeStatus:
    """The latest request and the latest proposal for the number of nodes, for a job whose benchmark may
    change the number by hints."""

    requested: int | None
    """Number of nodes that the latest `bai scale` requested; None if there was no request. After a user's
    request, the benchmark's hints have no effect."""
    proposed: int | None
    """Number of nodes that the benchmark proposed last; None if the benchmark proposed no number."""
    proposed_at: int | None
    """Time of the latest proposal (ms UTC, the store's clock)."""


def desired_nodes(attempt: AttemptRecord, job: Job) -> int:
    """Return how many nodes an elastic job should have. The number is from the latest request within the
    job's range. Without such a request, the number is from the benchmark's latest proposal within the range.
    Raises StoreError."""
    for asked in (_requests(attempt, job), _proposals(attempt, job)):
        if asked:
            return asked[-1][1]
    return job.desired_nodes


def proposed_nodes(attempt: AttemptRecord, job: Job) -> int | None:
    """Return the number of nodes that the benchmark proposed last. None if the benchmark proposed no number,
    if a user has requested a number, or if the end of the job is decided. Raises StoreError."""
    proposals = _proposals(attempt, job)
    if not proposals or _requests(attempt, job) or is_ending(attempt):
        return None
    return proposals[-1][1]


def is_ending(attempt: AttemptRecord) -> bool:
    """Return whether the nodes have decided that the job ends. Raises StoreError."""
    control = attempt.control()
    number = control.newest
    return number is not None and attempt.decision(number, control).kind is DecisionKind.END


def _requests(attempt: AttemptRecord, job: Job) -> list[tuple[int, int]]:
    """Return time and number of nodes of each request within the job's range, the oldest first. Raises
    StoreError."""
    return _allowed(job, attempt.scale_requests(), attempt.scale_request)


def _proposals(attempt: AttemptRecord, job: Job) -> list[tuple[int, int]]:
    """Return time and number of nodes of each proposal in the benchmark's hints, the oldest first. Empty if
    the job ignores hints. Raises StoreError."""
    if not job.takes_proposals:
        return []
    return _allowed(job, attempt.signs_seen().proposals, attempt.size_proposal)


def _allowed(
    job: Job, found: Mapping[int, Version], read: Callable[[int], ScaleRequest]
) -> list[tuple[int, int]]:
    asked: list[tuple[int, int]] = []
    for number, (put, _) in sorted(found.items()):
        with suppress(RecordError):
            if is_allowed(job, wanted := read(number).desired):
                asked.append((put, wanted))
    return asked


def requested_nodes(attempt: AttemptRecord, job: Job) -> list[int]:
    """Return the numbers of nodes that were proposed or requested and that the range allows, in their order. Raises StoreError.

    A request for fewer nodes may be replaced by a later request before all superfluous nodes have left. For
    such a request, the number of members at the time of the later request is returned instead.
    """
    # All requests are listed after all proposals, because proposals that follow a request do not count.
    asked = [*_proposals(attempt, job), *_requests(attempt, job)]
    found: list[int] = []
    before = job.desired_nodes
    for index, (_, wanted) in enumerate(asked):
        if wanted < before and index + 1 < len(asked):
            wanted = max(wanted, min(before, _members_at(attempt, asked[index + 1][0], none=before)))
        found.append(wanted)
        before = wanted
    return found


def _members_at(attempt: AttemptRecord, time: int, *, none: int) -> int:
    """Return how many members the job had at a time (ms UTC, the store's clock). none: the number before the first decision. Raises StoreError."""
    control = attempt.control()
    put = [each for each in control.decided if control.generations[each][0] <= time]
    return len(attempt.decision(put[-1], control).members) if put else none


def is_allowed(job: Job, nodes: int) -> bool:
    """Return whether this number of nodes is within the range of an elastic job."""
    return (job.strategy.min_nodes or 1) <= nodes <= job.strategy.nodes


def check_scale(record: JobRecord, nodes: int) -> None:
    """Raise UsageError unless this number of nodes may be requested for a running job. Raises StoreError."""
    if (result := result_of(record)) is not None:
        raise UsageError(f"{record.job_id} has ended: {result.sentence}")
    job = record.job()
    if not job.is_elastic:
        raise UsageError(
            f"{record.job_id} is not elastic: it always runs on {counted(job.strategy.nodes, 'node')}; a job whose descriptor says for example "
            'num_instances = "2:4" can be scaled'
        )
    if not is_allowed(job, nodes):
        raise UsageError(
            f"{counted(nodes, 'node')}: {record.job_id} runs on {job.strategy.min_nodes} to {counted(job.strategy.nodes, 'node')}; its descriptor says "
            "so in hardware.distributed.num_instances"
        )
    if record.cancelled():
        raise UsageError(f"{record.job_id} is being cancelled")


def request_scale(record: JobRecord, nodes: int) -> None:
    """Request a new number of nodes for an elastic job. Raises StoreError."""
    AttemptRecord(record).request_scale(ScaleRequest(desired=nodes, by="bai scale", time=now_ms()))


def generation_status(record: JobRecord, job: Job) -> GenerationStatus | None:
    """Return the newest generation of an elastic job; None for a fixed job, or before the first generation.
    Raises StoreError, RecordError."""
    if not job.is_elastic:
        return None
    attempt = AttemptRecord(record, job.job.attempt)
    control = attempt.control()
    number = control.newest
    if number is None:
        return None
    decision = attempt.decision(number, control)
    if decision.kind is DecisionKind.END and number:
        number -= 1
        decision = attempt.decision(number, control)
    return _status(attempt, job, control, number, decision)


def last_hints(record: JobRecord, job: Job) -> Hints | None:
    """Return the latest hints of a benchmark; None if there are no readable hints. Raises StoreError."""
    if not job.strategy.is_supervised:
        return None
    with suppress(RecordError):
        return AttemptRecord(record, job.job.attempt).hints()
    return None


def size_status(record: JobRecord, job: Job) -> SizeStatus | None:
    """Return the latest request and proposal for the number of nodes. None if the job's benchmark cannot
    change this number by hints. Raises StoreError."""
    if not job.takes_proposals:
        return None
    attempt = AttemptRecord(record, job.job.attempt)
    requests, proposals = _requests(attempt, job), _proposals(attempt, job)
    put, proposed = proposals[-1] if proposals else (None, None)
    return SizeStatus(requested=requests[-1][1] if requests else None, proposed=proposed, proposed_at=put)


def _status(
    attempt: AttemptRecord, job: Job, control: Control, number: int, decision: NextGeneration
) -> GenerationStatus:
    is_parked = decision.kind is DecisionKind.PARK
    begun = control.begun.get(number)
    since = (begun or control.generations[number])[0] or None
    waits = decision.ledger.waiting_since or since
    wait_ms = round(job.elastic.wait.total_seconds() * 1000)
    return GenerationStatus(
        number=number,
        members=tuple(decision.members),
        since=since,
        has_begun=begun is not None,
        is_parked=is_parked,
        until=waits + wait_ms if is_parked and waits is not None else None,
        why=reason_for(decision) if number else "",
        desired=desired_nodes(attempt, job),
        least=job.strategy.min_nodes or 1,
        most=job.strategy.nodes,
        restarts=decision.ledger.restarts,
        max_restarts=job.restart_policy.max_restarts,
        left=_left(attempt, control, number, decision),
    )


def reason_for(decision: NextGeneration) -> str:
    """Return the reason for a new generation as text, for example "node 1 sent no heartbeat"."""
    with suppress(ValueError):  # A newer version of `bai` may write a reason that this version does not know.
        return Change(decision.why).sentence(decision.nodes)
    return decision.sentence


def _left(attempt: AttemptRecord, control: Control, number: int, decision: NextGeneration) -> dict[int, str]:
    """Return what happened to each node that was a member of an earlier generation. Raises StoreError."""
    found: dict[int, str] = {}
    now = set(decision.members)
    while number > 0:
        number -= 1
        before = attempt.decision(number, control)
        for node in set(before.members) - now:
            if node not in found and node not in decision.members:
                found[node] = f"{_left_word(decision, node)} in generation {number}"
        decision = before
    return found


def _left_word(decision: NextGeneration, node: int) -> str:
    with suppress(ValueError):
        if node in decision.nodes:
            return _LEFT.get(Change(decision.why), "left")
    return "left"
