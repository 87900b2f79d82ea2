"""Starts the sinks of a run, to which its records are sent, and reports their errors as events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from bai_agent.job.descriptor import Job
from bai_agent.job.record_types import SinkEvent
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir

if TYPE_CHECKING:
    from bai_agent.sinks.sink import Sink

PATIENCE = 10.0
"""An error of a sink that lasts for this long is reported as an event (seconds)."""


_SINKS: Mapping[str, str] = {
    "kafka": "kafka.pusher:KafkaPusher",
    "log_lines": "log_lines:LogLinesFile",
    "prometheus": "prometheus_sink:PrometheusSink",
    "cloudwatch": "cloudwatch_sink:CloudWatchSink",
}
"""Module and class of each sink, by the name of its table in the descriptor. A job imports only its own
sinks, because the import of Kafka's library takes as long as all other imports together.

The job store is not in this table, for two reasons. A node must first claim its folder in the job store, and the job store
contains more than records.
"""


def sinks_of(job: Job, rundir: RunDir, *, rank: int, redactor: Redactor) -> list[Sink]:
    """Return the sinks that `job` configures, without starting them."""
    asked = (place.partition(":") for name, place in _SINKS.items() if getattr(job, name) is not None)
    kinds = (getattr(import_module(f"bai_agent.sinks.{module}"), kind) for module, _, kind in asked)
    return [kind(job, rundir, rank=rank, redactor=redactor) for kind in kinds]


class SinkTroubles:
    """Adds a `sink` event when an error of a sink persists, and another event when the error is over."""

    def __init__(
        self, add: Callable[[SinkEvent], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._add = add
        self._clock = clock
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def observe(self, errors: Mapping[str, str | None]) -> None:
        """Record the current error of each sink. errors: error, or None, by the sink's display name."""
        for sink, error in errors.items():
            if error is None:
                self._since.pop(sink, None)
                if sink in self._told:
                    self._told.remove(sink)
                    self._add(SinkEvent(sink=sink, error=None, message=f"{sink} accepts records again."))
            elif sink not in self._told:
                since = self._since.setdefault(sink, self._clock())
                if self._clock() - since >= PATIENCE:
                    self._told.add(sink)
                    message = (
                        f"{sink} has been unreachable for {PATIENCE:.0f} s; its records wait on disk: {error}"
                    )
                    self._add(SinkEvent(sink=sink, error=error, message=message))
