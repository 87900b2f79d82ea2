"""The status of a job, wherever it runs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from bai_agent.errors import BaiError
from bai_agent.job.outcome import Outcome, Status
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import JobResult
from bai_agent.job.run_directory import now_ms
from bai_agent.light_dataclass import dataclass
from executor.errors import NextStep

if TYPE_CHECKING:
    # The completion of job ids, which a user waits for, does not need this import.
    from executor.records.generation_status import GenerationStatus


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """The status of one of several nodes. Times are ms UTC."""

    rank: int
    """The node's number."""
    group_rank: int | None = None
    """The rank in the newest generation of an elastic job. None if it is not a member of that generation."""
    left: str | None = None
    """What happened to a node of an elastic job that is no longer a member: "lost in generation 1"."""
    instance_id: str | None = None
    """None until it has joined, and on this machine."""
    address: str | None = None
    """Its address for the other nodes; None until it has joined."""
    phase: str | None = None
    """None until its agent has started, and after its part has ended."""
    since: int | None = None
    """When the phase began."""
    last_sign: int | None = None
    """Time of its last sign of life, by the store's clock."""
    ended: int | None = None
    outcome: str | None = None
    """The value of an `Outcome`, once its part has ended."""
    sentence: str | None = None
    transports: dict[str, list[str]] | None = None
    """Transports by library ("NCCL"), as reported; None if none was reported."""
    trouble: str | None = None
    """Reason why some of these facts are unknown: the mistake in its record."""

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values; keys of elastic jobs are left out if unknown."""
        return {
            key: value
            for key, value in self.__dict__.items()
            if value is not None or key not in ("group_rank", "left")
        }


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """How a job stands. Times are ms UTC."""

    job_id: str
    status: str
    """A `Status`, or one of the texts below."""
    phase: str | None = None
    since: int | None = None
    """Beginning of the phase, or of the state after the last phase."""
    started: int | None = None
    ended: int | None = None
    took: float | None = None
    """Run time of an ended job (seconds)."""
    outcome: str | None = None
    exit_code: int | None = None
    sentence: str | None = None
    agent_alive: bool | None = None
    """None if it cannot be observed from here."""
    last_words: str | None = None
    """The end of a dead agent's log."""
    benchmark_alive: bool | None = None
    """Whether any process of a dead agent's benchmark still runs."""
    benchmark_watched: bool | None = None
    """Whether the shim of that benchmark still runs."""
    cancelling: bool = False
    where: str
    """The name of the backend that it runs on: "local" is this machine."""
    warnings: tuple[str, ...] = ()
    """Warnings of its agent, while there is no result."""
    restarts: str | None = None
    """Number of restarts, and the reason of the last one, while there is no result. None if it was not."""
    machine: str | None = None
    """A sentence about its machines."""
    next_step: NextStep | None = None
    """Possible actions on them."""
    nodes: tuple[NodeStatus, ...] = ()
    """Status of each of several nodes, by rank, if requested; empty for a job of one."""
    generation: GenerationStatus | None = None
    """The newest generation of an elastic job, if requested."""

    @property
    def may_run(self) -> bool:
        """Whether the benchmark may still run, or may start, as far as is known from here."""
        is_gone = (self.status, self.benchmark_alive) == (DIED, False)
        return self.outcome is None and self.status != UNLAUNCHED and not is_gone

    @property
    def seconds(self) -> float | None:
        """Duration of the job, up to now if it runs."""
        if self.took is not None or self.started is None:
            return self.took
        return max(0, (self.ended or now_ms()) - self.started) / 1000

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values; `nodes` only if there are several."""
        step = dataclasses.asdict(self.next_step) if self.next_step is not None else None
        table = {**self.__dict__, "next_step": step, "seconds": self.seconds}
        del table["nodes"], table["took"], table["generation"]
        if self.generation is not None:
            table["generation"] = self.generation.as_table()
        return {**table, "nodes": [each.as_table() for each in self.nodes]} if self.nodes else table


DIED = "DIED"
"""The agent of a job on this machine is gone, and there is no result."""
SILENT = "SILENT"
"""The machine of a job on EC2 runs, but its agent gives no sign of life."""
PARKED = "PARKED"
"""No benchmark of an elastic job runs: it waits for nodes, because fewer than its least number are left."""
UNREADABLE = "UNREADABLE"
"""The job's descriptor, or another record of it, is broken, or of another version."""
UNLAUNCHED = "UNLAUNCHED"
"""The submission of a job on EC2 was interrupted: no machine runs, or will run, unless it is submitted
again."""
UNKNOWN = "UNKNOWN"
"""The time of a job on EC2 is over and its agent is silent; EC2 cannot be asked whether its machines are
gone."""
NO_RESULT = (UNLAUNCHED, UNKNOWN)
"""Statuses of a job on EC2 that will not get a result, so that waiting is useless."""
ENDING = "ENDING"
"""The machines of a job on EC2 shut down, and there is no result yet."""
GOES_ON = frozenset(
    {Status.PENDING.value, Status.INITIALIZING.value, Status.RUNNING.value, SILENT, ENDING, PARKED}
)
"""Statuses in which waiting for the job makes sense."""
NODES_END = "The job is being ended: {}"
"""Phase that is shown after the coordinator of several nodes has told them to end."""
ENDED = frozenset({Status.SUCCEEDED.value, Status.FAILED.value, Status.ERROR.value, Status.CANCELED.value})


def listed_words() -> frozenset[str]:
    """Return the statuses and outcomes that `--status` accepts, in lower case."""
    statuses = (*GOES_ON, *ENDED, DIED, UNREADABLE, *NO_RESULT)
    return frozenset(each.lower() for each in (*statuses, *(outcome.value for outcome in Outcome)))


def unknown_status(job_status: JobStatus) -> str | None:
    """Return a sentence if this version does not know the status in a job's record; else None."""
    if job_status.status in (*GOES_ON, *ENDED, DIED, UNREADABLE, *NO_RESULT):
        return None
    return (
        f'the record of {job_status.job_id} has the status "{job_status.status}", which this version of bai does not know; '
        "use the version that the job was started with, or a newer one"
    )


def unreadable_status(record: JobRecord, why: BaiError, *, where: str) -> JobStatus:
    """Return the status of a job with an unreadable record."""
    return JobStatus(
        job_id=record.job_id,
        status=UNREADABLE,
        started=created(record),
        where=where,
        machine=str(why),
    )


def created(record: JobRecord) -> int | None:
    """Return the time when a job was recorded (ms UTC), for a job without events."""
    return record.put_time("job.toml")


def ended_status(record: JobRecord, result: JobResult, *, where: str) -> JobStatus:
    """Return the status of a job that ended with `result`."""
    return JobStatus(
        job_id=record.job_id,
        status=result.status,
        since=result.ended,
        started=result.started,
        ended=result.ended,
        took=result.duration,
        outcome=result.outcome,
        exit_code=result.exit_code,
        sentence=result.sentence,
        where=where,
    )


def is_over(job_status: JobStatus) -> bool:
    """Return whether a job has ended, with a result."""
    return job_status.status in ENDED
