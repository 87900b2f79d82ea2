"""Where records go: a module or a room for each kind of place, and the list of those that a run has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bai_agent.job.descriptor import Job
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir
from bai_agent.sinks.delivery import Delivery
from bai_agent.sinks.labels import labels_of
from bai_agent.sinks.log_lines import LogLinesFile


class Sink(Protocol):
    """A place to which records go while the run goes on. It works on a thread of its own: nothing that it does holds up the run."""

    @property
    def name(self) -> str:
        """The place's name in a sentence for people: "Kafka"."""
        ...

    @property
    def error(self) -> str | None:
        """Why nothing can be delivered at the moment; None while all is well."""
        ...

    def start(self) -> None:
        """Begin, or go on where the last agent's sink of this kind was."""
        ...

    def hurry(self) -> object:
        """Send what is there now, without waiting for more."""
        ...

    def finish(self, deadline: float) -> Delivery:
        """Deliver what is left and return a summary of the whole run, by `deadline` (of `time.monotonic()`) at the latest.

        Called when nobody writes records any more.
        """
        ...


def _kafka(job: Job, rundir: RunDir, rank: int, redactor: Redactor) -> Sink | None:
    if job.kafka is None:
        return None
    # Only here: its library takes as long to import as all else together.
    from bai_agent.sinks.kafka.pusher import KafkaPusher

    return KafkaPusher(job, rundir, rank=rank, redactor=redactor)


def _log_lines(job: Job, rundir: RunDir, rank: int, redactor: Redactor) -> Sink | None:
    if job.log_lines is None:
        return None
    return LogLinesFile(job.log_lines, rundir, labels=labels_of(job, rank=rank), redactor=redactor)


def _prometheus(job: Job, rundir: RunDir, rank: int, redactor: Redactor) -> Sink | None:
    if job.prometheus is None:
        return None
    # Only here, and so the next: few jobs have them, and each takes a web server's or client's modules along.
    from bai_agent.sinks.prometheus.sink import PrometheusSink

    return PrometheusSink(job, rundir, rank=rank, redactor=redactor)


def _cloudwatch(job: Job, rundir: RunDir, rank: int, redactor: Redactor) -> Sink | None:
    if job.cloudwatch is None:
        return None
    from bai_agent.sinks.cloudwatch.sink import CloudWatchSink

    return CloudWatchSink(job, rundir, rank=rank)


_SINKS: tuple[Callable[[Job, RunDir, int, Redactor], Sink | None], ...] = (
    _kafka,
    _log_lines,
    _prometheus,
    _cloudwatch,
)
"""The job store is no part of it: a node's place there is claimed before anything else, and holds more than records."""


def sinks_of(job: Job, rundir: RunDir, *, rank: int, redactor: Redactor) -> list[Sink]:
    """Return the sinks that `job` asks for, not yet started."""
    made = (make(job, rundir, rank, redactor) for make in _SINKS)
    return [sink for sink in made if sink is not None]
