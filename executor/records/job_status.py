"""Types for the status of a job and of its nodes, wherever the job runs."""

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
    # These modules are imported for type checks only, to keep the shell completion of job ids fast.
    from executor.records.generation_status import GenerationStatus


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """The status of a node of a job with several nodes. Times are ms UTC."""

    rank: int
    """The node's number."""
    group_rank: int | None = None
    """The node's rank in the newest generation of an elastic job; None if the node is not a member of that
    generation."""
    left: str | None = None
    """What happened to a node of an elastic job that is no longer a member: "lost in generation 1"."""
    instance_id: str | None = None
    """Id of the node's EC2 instance. None until the node has joined the job, and for any node on this
    machine."""
    address: str | None = None
    """Address at which the other nodes reach this node; None until the node has joined the job."""
    phase: str | None = None
    """Phase of the node; None until its agent has started, and after its part has ended."""
    since: int | None = None
    """Time at which the node's phase began."""
    last_sign: int | None = None
    """Time of the node's last heartbeat, by the store's clock."""
    ended: int | None = None
    outcome: str | None = None
    """Value of the `Outcome` of the node's part of the job; None until that part has ended."""
    sentence: str | None = None
    transports: dict[str, list[str]] | None = None
    """Reported transports by library (for example "NCCL"); None if no transports were reported."""
    trouble: str | None = None
    """Mistake in the node's record that makes some facts about the node unknown; None if the record has no
    mistake."""

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values. Keys of elastic jobs are left out if unknown."""
        return {
            key: value
            for key, value in self.__dict__.items()
            if value is not None or key not in ("group_rank", "left")
        }


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The status of a job. Times are ms UTC."""

    job_id: str
    status: str
    """A `Status`, or one of the texts that this module defines as constants."""
    phase: str | None = None
    since: int | None = None
    """Time at which the current phase began, or at which the state after the last phase began."""
    started: int | None = None
    ended: int | None = None
    took: float | None = None
    """Run time of an ended job (seconds)."""
    outcome: str | None = None
    exit_code: int | None = None
    sentence: str | None = None
    agent_alive: bool | None = None
    """Whether the job's agent is alive; None if this machine cannot observe the agent."""
    last_words: str | None = None
    """The end of a dead agent's log."""
    benchmark_alive: bool | None = None
    """Whether the agent is dead but some process of the benchmark still runs."""
    benchmark_watched: bool | None = None
    """Whether the agent is dead but the shim still runs, so that the benchmark's end will be recorded."""
    cancelling: bool = False
    where: str
    """Name of the backend that runs the job, for example "local" for this machine."""
    warnings: tuple[str, ...] = ()
    """Warnings of the job's agent, until the job has a result."""
    restarts: str | None = None
    """Number of restarts and reason for the last restart, until the job has a result. None if the job was not
    restarted."""
    machine: str | None = None
    """A sentence about the job's machines."""
    next_step: NextStep | None = None
    """A command that the user may run next."""
    nodes: tuple[NodeStatus, ...] = ()
    """Status of each node, by rank, if requested; empty for a job of one node."""
    generation: GenerationStatus | None = None
    """The newest generation of an elastic job, if requested."""

    @property
    def may_run(self) -> bool:
        """Whether it is possible that the benchmark still runs or will start. False only if this machine
        knows that the benchmark neither runs nor will start."""
        is_gone = (self.status, self.benchmark_alive) == (DIED, False)
        return self.outcome is None and self.status != UNLAUNCHED and not is_gone

    @property
    def seconds(self) -> float | None:
        """Duration of the job (seconds), up to now if the job runs; None if unknown."""
        if self.took is not None or self.started is None:
            return self.took
        return max(0, (self.ended or now_ms()) - self.started) / 1000

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values; `nodes` only if there are several nodes."""
        step = dataclasses.asdict(self.next_step) if self.next_step is not None else None
        table = {**self.__dict__, "next_step": step, "seconds": self.seconds}
        del table["nodes"], table["took"], table["generation"]
        if self.generation is not None:
            table["generation"] = self.generation.as_table()
        return {**table, "nodes": [each.as_table() for each in self.nodes]} if self.nodes else table


DIED = "DIED"
"""The agent of a job on this machine is gone, but the job has no result."""
SILENT = "SILENT"
"""The machine of a job on EC2 runs, but its agent writes no heartbeat."""
PARKED = "PARKED"
"""The benchmark of an elastic job does not run, because the job has fewer nodes than its minimum and waits
for more nodes."""
UNREADABLE = "UNREADABLE"
"""The job's descriptor or another of its records is broken, or of another version."""
UNLAUNCHED = "UNLAUNCHED"
"""The submission of a job on EC2 was interrupted. No machine of the job runs, and none will run unless the
job is submitted again."""
UNKNOWN = "UNKNOWN"
"""The deadline of a job on EC2 has passed and its agent is silent. EC2 cannot be queried, so it is unknown
whether the job's machines are gone."""
NO_RESULT = (UNLAUNCHED, UNKNOWN)
"""Statuses of a job on EC2 that will not get a result, so that waiting for a result is useless."""
ENDING = "ENDING"
"""The machines of a job on EC2 are shutting down, but the job has no result yet."""
GOES_ON = frozenset(
    {Status.PENDING.value, Status.INITIALIZING.value, Status.RUNNING.value, SILENT, ENDING, PARKED}
)
"""Statuses in which waiting for the job makes sense."""
NODES_END = "The job is being ended: {}"
"""Phase that is shown after the coordinator of a job with several nodes has ordered the nodes to end."""
ENDED = frozenset({Status.SUCCEEDED.value, Status.FAILED.value, Status.ERROR.value, Status.CANCELED.value})


def listed_words() -> frozenset[str]:
    """Return the statuses and outcomes that `--status` accepts, in lower case."""
    statuses = (*GOES_ON, *ENDED, DIED, UNREADABLE, *NO_RESULT)
    return frozenset(each.lower() for each in (*statuses, *(outcome.value for outcome in Outcome)))


def unknown_status(job_status: JobStatus) -> str | None:
    """Return a sentence if this version does not know the status in a job's record; otherwise None."""
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
    """Return the time at which a job was recorded (ms UTC). The time of recording stands for the job's start
    if the job has no events."""
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
