"""Reports each status of a job between its launch and its end exactly once, in the form that the service's
users know.

This module writes the messages `10-` to `40-`, `90-` and `91-` of a request's outbox. The messages depend
only on the job's events, generations and `result.json`, so a late check produces the same messages in the
same order as an early check.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from urllib.parse import quote

from bai_agent.job.generation_records import DecisionKind, NextGeneration
from bai_agent.job.outcome import Outcome, Status
from bai_agent.job.record_types import JobResult
from bai_agent.light_dataclass import dataclass
from executor.quantities import counted
from executor.records.generation_status import reason_for
from executor.service.entries import Entry
from executor.service.events.event import Event
from executor.service.events.messages import AppStatus, MessageWriter
from executor.service.outbox import Outbox
from executor.service.service_jobs import EXECUTOR

log = logging.getLogger(__name__)

END = "90-end"
_NO_CHANGES: Mapping[int, NextGeneration] = MappingProxyType({})


@dataclass(frozen=True)
class Due:
    """A status that a job has reached."""

    name: str
    """Name of the status's message in the outbox."""
    status: AppStatus
    text: str


class StatusReporter:
    """Publishes the statuses of jobs."""

    def __init__(self, *, writer: MessageWriter, dashboard: str | None, said: Callable[[str], None]) -> None:
        """dashboard: address of a dashboard with the job's metrics, in which "{action_id}" and "{client_id}"
        are replaced. said: called with each status that was sent."""
        self._writer = writer
        self._dashboard = dashboard
        self._said = said

    def metrics_sentence(self, event: Event) -> str | None:
        """Return the sentence with the address of the dashboard for a request's metrics; None if no dashboard
        is configured."""
        if self._dashboard is None:
            return None
        address = self._dashboard.replace("{action_id}", quote(event.action_id, safe=""))
        address = address.replace("{client_id}", quote(event.client_id, safe=""))
        return f"Metrics available for job {event.action_id} at {address}"

    def publish(self, entry: Entry, outbox: Outbox, due: Sequence[Due]) -> None:
        """Send the statuses in `due` that have not been sent, in their order. Raises StoreError,
        SendError."""
        launched = outbox.keep(EXECUTOR).table
        for each in due:
            if outbox.is_sent(each.name):
                continue
            outbox.post(
                each.name,
                partial(self._writer.status, entry.event, each.status, each.text, about=launched),
            )
            self._said(each.status.value)
            log.info("said: %s", each.text)


def statuses_due(
    *,
    phases: Collection[str],
    pulls: bool,
    result: JobResult | None,
    metrics: str | None,
    changes: Mapping[int, NextGeneration] = _NO_CHANGES,
) -> list[Due]:
    """Return all statuses that a launched job has reached, in order. Later calls return the same statuses,
    followed by new ones.

    phases: the phases that have begun. pulls: whether the job has sources. metrics: the sentence with the
    address of the job's metrics. changes: the decisions about an elastic job's generations, by the
    generations' numbers.
    """
    due = [Due("10-starting", AppStatus.PENDING, "Benchmark starting")]
    if pulls and "pull" in phases:
        due.append(Due("20-pulling", AppStatus.PENDING, "Downloading data"))
    if "run" in phases:
        due.append(Due("30-running", AppStatus.RUNNING, "Benchmark running"))
        if metrics is not None:
            due.append(Due("31-metrics", AppStatus.METRICS_AVAILABLE, metrics))
        due += [
            _change(number, changes[number])
            for number in sorted(changes)
            if number and changes[number].kind is not DecisionKind.END
        ]
    if result is not None:
        due.append(Due(END, *_end(result)))
        if metrics is not None and result.status == Status.SUCCEEDED.value:
            due.append(Due("91-metrics", AppStatus.METRICS_AVAILABLE, metrics))
    return due


def _change(number: int, decision: NextGeneration) -> Due:
    now = (
        f"Benchmark running on {counted(len(decision.members), 'node')}"
        if decision.runs
        else "Benchmark waiting for nodes"
    )
    return Due(f"40-generation-{number:06}", AppStatus.RUNNING, f"{now}: {reason_for(decision)}")


def _end(result: JobResult) -> tuple[AppStatus, str]:
    if result.status == Status.SUCCEEDED.value:
        return AppStatus.SUCCEEDED, "Benchmark finished successfully"
    if result.status == Status.CANCELED.value:
        return AppStatus.CANCELED, "Benchmark cancelled - watch ended"
    if result.outcome == Outcome.MAX_RUNTIME.value:
        return AppStatus.FAILED, "Benchmark failed - Max runtime exceeded"
    return AppStatus.FAILED, f"Benchmark failed: {result.sentence}"
