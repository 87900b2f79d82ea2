"""How a job stands, wherever it runs."""

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
    # The completion of job ids, which a person waits for, needs none of it.
    from executor.records.generation_status import GenerationStatus


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """How one of several nodes stands. Times are ms UTC."""

    rank: int
    """The node's number."""
    group_rank: int | None = None
    """The rank in the newest generation of an elastic job. None if it is no member of that."""
    left: str | None = None
    """What became of a node of an elastic job that is no member any more: "lost in generation 1"."""
    instance_id: str | None = None
    """None until it has joined, and on this machine."""
    address: str | None = None
    """Where the others reach it; None until it has joined."""
    phase: str | None = None
    """None until its agent has started, and once its part has ended."""
    since: int | None = None
    """When the phase began."""
    last_sign: int | None = None
    """When it last gave a sign of life, by the store's clock."""
    ended: int | None = None
    outcome: str | None = None
    """The value of an `Outcome`, once its part has ended."""
    sentence: str | None = None
    transports: dict[str, list[str]] | None = None
    """By library ("NCCL") what it said that it moves data with; None where none has said so."""
    trouble: str | None = None
    """Why some of this cannot be told: what is wrong with its record."""

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values; what only elastic jobs have is left out if it is not known."""
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
    """A `Status`, or one of the words below."""
    phase: str | None = None
    since: int | None = None
    """When the phase, or what came after the last one, began."""
    started: int | None = None
    ended: int | None = None
    took: float | None = None
    """Seconds for which a job that has ended ran."""
    outcome: str | None = None
    exit_code: int | None = None
    sentence: str | None = None
    agent_alive: bool | None = None
    """None where that cannot be seen from here."""
    last_words: str | None = None
    """How the log of a dead agent ends."""
    benchmark_alive: bool | None = None
    """Whether anything of the benchmark of a dead agent still runs."""
    benchmark_watched: bool | None = None
    """Whether the shim of that benchmark still runs."""
    cancelling: bool = False
    where: str
    """The name of the backend that it runs on: "local" is this machine."""
    warnings: tuple[str, ...] = ()
    """What its agent warns of, while there is no result."""
    restarts: str | None = None
    """How often its benchmark was restarted, and why the last time, while there is no result. None if it was not."""
    machine: str | None = None
    """What there is to say about its machines, in a sentence."""
    next_step: NextStep | None = None
    """What can be done about them."""
    nodes: tuple[NodeStatus, ...] = ()
    """How each of several nodes stands, by rank, where that was asked for; empty for a job of one."""
    generation: GenerationStatus | None = None
    """The newest generation of an elastic job, if it was asked for."""

    @property
    def seconds(self) -> float | None:
        """How long it took, or has taken so far."""
        if self.took is not None or self.started is None:
            return self.took
        return max(0, (self.ended or now_ms()) - self.started) / 1000

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values; `nodes` only where there are several."""
        step = dataclasses.asdict(self.next_step) if self.next_step is not None else None
        table = {**self.__dict__, "next_step": step, "seconds": self.seconds}
        del table["nodes"], table["took"], table["generation"]
        if self.generation is not None:
            table["generation"] = self.generation.as_table()
        return {**table, "nodes": [each.as_table() for each in self.nodes]} if self.nodes else table


DIED = "DIED"
"""The agent of a job on this machine is gone, and there is no result."""
SILENT = "SILENT"
"""The machine of a job on EC2 runs, and its agent gives no sign of life."""
PARKED = "PARKED"
"""Nothing of an elastic job runs: it waits for nodes, because fewer than its least number are left."""
UNREADABLE = "UNREADABLE"
"""The job's descriptor, or another record of it, is broken, or of another version."""
UNLAUNCHED = "UNLAUNCHED"
"""The submission of a job on EC2 was cut short: nothing of it runs, or will, unless it is submitted again."""
UNKNOWN = "UNKNOWN"
"""The time of a job on EC2 is up and its agent silent; whether its machines are gone cannot be asked."""
NO_RESULT = (UNLAUNCHED, UNKNOWN)
"""Where nobody will write the result of a job on EC2, and waiting is of no use."""
ENDING = "ENDING"
"""The machines of a job on EC2 shut down, and there is no result yet."""
GOES_ON = frozenset(
    {Status.PENDING.value, Status.INITIALIZING.value, Status.RUNNING.value, SILENT, ENDING, PARKED}
)
"""While a job has one of these, there is something to wait for."""
NODES_END = "The job is being ended: {}"
"""What is said once the coordinator of several nodes has told them to end."""
ENDED = frozenset({Status.SUCCEEDED.value, Status.FAILED.value, Status.ERROR.value, Status.CANCELED.value})


def listed_words() -> frozenset[str]:
    """Return the statuses and outcomes by which jobs are listed, in lower case."""
    statuses = (*GOES_ON, *ENDED, DIED, UNREADABLE, *NO_RESULT)
    return frozenset(each.lower() for each in (*statuses, *(outcome.value for outcome in Outcome)))


def unknown_status(job_status: JobStatus) -> str | None:
    """Return a sentence where this version does not know the status that a job's record says; else None."""
    if job_status.status in (*GOES_ON, *ENDED, DIED, UNREADABLE, *NO_RESULT):
        return None
    return (
        f'the record of {job_status.job_id} says the status "{job_status.status}", which this version of bai does not know; '
        "use the version that the job was started with, or a newer one"
    )


def unreadable_status(record: JobRecord, why: BaiError, *, where: str) -> JobStatus:
    """Return how a job stands of which a record cannot be read."""
    return JobStatus(
        job_id=record.job_id,
        status=UNREADABLE,
        started=created(record),
        where=where,
        machine=str(why),
    )


def created(record: JobRecord) -> int | None:
    """Return when a job was written down, ms UTC; its events tell more as soon as there are any."""
    key = record.key("job.toml")
    return next((each.modified for each in record.store.find(key) if each.key == key), None)


def ended_status(record: JobRecord, result: JobResult, *, where: str) -> JobStatus:
    """Return how a job stands that ended with `result`."""
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
