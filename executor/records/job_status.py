"""How a job stands, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bai_agent.errors import BaiError
from bai_agent.job.outcome import Status
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import now_ms
from executor.errors import NextStep


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """How a job stands. Times are ms UTC."""

    job_id: str
    status: str
    """A `Status`, or one of the words below."""
    phase: str | None
    since: int | None
    """When the phase, or what came after the last one, began."""
    started: int | None
    ended: int | None
    outcome: str | None
    exit_code: int | None
    sentence: str | None
    agent_alive: bool | None
    """None where that cannot be seen from here."""
    last_words: str | None = None
    """How the log of a dead agent ends."""
    benchmark_alive: bool | None = None
    """Whether anything of the benchmark of a dead agent still runs."""
    benchmark_watched: bool | None = None
    """Whether the shim of that benchmark still runs."""
    cancelling: bool = False
    where: str = "local"
    """"local": on this machine; "ec2"."""
    warnings: tuple[str, ...] = ()
    """What its agent warns of, while there is no result."""
    machine: str | None = None
    """What there is to say about its machines, in a sentence."""
    next_step: NextStep | None = None
    """What can be done about them."""

    @property
    def seconds(self) -> float | None:
        """How long it took, or has taken so far."""
        if self.started is None:
            return None
        return max(0, (self.ended or now_ms()) - self.started) / 1000

    def as_table(self) -> dict[str, Any]:
        """Return it as JSON values, but for the next step, which is a command of whoever shows it."""
        table = {name: value for name, value in self.__dict__.items() if name != "next_step"}
        return {**table, "seconds": self.seconds}


DIED = "DIED"
"""The agent of a job on this machine is gone, and there is no result."""
SILENT = "SILENT"
"""The machine of a job on EC2 runs, and its agent gives no sign of life."""
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
GOES_ON = frozenset({Status.PENDING.value, Status.INITIALIZING.value, Status.RUNNING.value, SILENT, ENDING})
"""While a job has one of these, there is something to wait for."""
ENDED = frozenset({Status.SUCCEEDED.value, Status.FAILED.value, Status.ERROR.value, Status.CANCELED.value})


def unknown_status(standing: JobStatus) -> str | None:
    """Return a sentence where this version does not know the status that a job's record says; else None."""
    if standing.status in (*GOES_ON, *ENDED, DIED, UNREADABLE, *NO_RESULT):
        return None
    return (
        f'the record of {standing.job_id} says the status "{standing.status}", which this version of bai does not know; '
        "use the version that the job was started with, or a newer one"
    )


def unreadable_status(record: JobRecord, why: BaiError, *, where: str) -> JobStatus:
    """Return how a job stands of which a record cannot be read."""
    return JobStatus(
        job_id=record.job_id,
        status=UNREADABLE,
        phase=None,
        since=None,
        started=created(record),
        ended=None,
        outcome=None,
        exit_code=None,
        sentence=None,
        agent_alive=None,
        where=where,
        machine=str(why),
    )


def created(record: JobRecord) -> int | None:
    """Return when a job was written down, ms UTC; its events tell more as soon as there are any."""
    key = record.key("job.toml")
    return next((each.modified for each in record.store.find(key) if each.key == key), None)


def ended_status(record: JobRecord, result: Mapping[str, Any]) -> JobStatus:
    """Return how a job stands that ended with `result`."""
    return JobStatus(
        job_id=record.job_id,
        status=str(result.get("status")),
        phase=None,
        since=result.get("ended"),
        started=result.get("started"),
        ended=result.get("ended"),
        outcome=result.get("outcome"),
        exit_code=result.get("exit_code"),
        sentence=result.get("sentence"),
        agent_alive=None,
    )


def is_over(job_status: JobStatus) -> bool:
    """Return whether a job has ended, with a result."""
    return job_status.status in ENDED
