"""Where records go: a module or a room for each kind of place. Here is the list of those that a run has, and what is said of their troubles."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from bai_agent.job.descriptor import Job
from bai_agent.job.record_types import SinkEvent
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir
from bai_agent.sinks.log_lines import LogLinesFile
from bai_agent.sinks.record import labels_of
from bai_agent.sinks.sink import Sink

PATIENCE = 10.0
"""Seconds: shorter troubles are nobody's business."""


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


class SinkTroubles:
    """Turns the sinks' errors into `sink` events: one when an error lasts, one when it is over."""

    def __init__(
        self, add: Callable[[SinkEvent], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._add = add
        self._clock = clock
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def observe(self, errors: Mapping[str, str | None]) -> None:
        """Record the current error of each sink, None where there is none, by the sink's display name."""
        for sink, error in errors.items():
            if error is None:
                self._since.pop(sink, None)
                if sink in self._told:
                    self._told.remove(sink)
                    self._add(SinkEvent(sink=sink, error=None, message=f"{sink} takes everything again."))
            elif sink not in self._told:
                since = self._since.setdefault(sink, self._clock())
                if self._clock() - since >= PATIENCE:
                    self._told.add(sink)
                    message = f"{sink} has been out of reach for {PATIENCE:.0f} s, and what goes there waits here: {error}"
                    self._add(SinkEvent(sink=sink, error=error, message=message))
