"""What is said about a job between its launch and its end, in the words of the service's users. Each is said once.

Of a request's outbox `10-` to `31-` and `90-`, `91-` are ours. They follow from the job's events and its `result.json` alone, so that
whoever looks, however late, says the same in the same order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from bai_agent.job.outcome import Outcome, Status
from bai_agent.job.record_types import JobResult
from executor.service.entries import Entry
from executor.service.event import Event
from executor.service.jobs import EXECUTOR
from executor.service.messages import AppStatus, Message, MessageWriter
from executor.service.outbox import Outbox

log = logging.getLogger(__name__)

END = "90-end"


@dataclass(frozen=True)
class Due:
    """A status that a job has reached."""

    name: str
    """Of its message in the outbox."""
    status: AppStatus
    text: str


class Life:
    """Says what a job has reached."""

    def __init__(self, *, writer: MessageWriter, dashboard: str | None, said: Callable[[str], None]) -> None:
        """dashboard: where the metrics are, with "{action_id}" and "{client_id}" in it. said: called with each status."""
        self._writer = writer
        self._dashboard = dashboard
        self._said = said

    def metrics_of(self, event: Event) -> str | None:
        """Return the sentence that says where the metrics of a request are; None where no dashboard is known."""
        if self._dashboard is None:
            return None
        address = self._dashboard.replace("{action_id}", quote(event.action_id, safe=""))
        address = address.replace("{client_id}", quote(event.client_id, safe=""))
        return f"Metrics available for job {event.action_id} at {address}"

    def say(self, entry: Entry, outbox: Outbox, due: Sequence[Due]) -> None:
        """Have all of `due` sent, in order, that was not sent before. Raises StoreError, SendError."""
        launched = outbox.keep(EXECUTOR, _never).table
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
    *, phases: Collection[str], pulls: bool, result: JobResult | None, metrics: str | None
) -> list[Due]:
    """Return all that is to be said of a launched job, in order: what is due earlier is always part of what is due later.

    phases: those that have begun. pulls: whether it has anything to pull. metrics: the sentence that says where its metrics are.
    """
    due = [Due("10-starting", AppStatus.PENDING, "Benchmark starting")]
    if pulls and "pull" in phases:
        due.append(Due("20-pulling", AppStatus.PENDING, "Downloading data"))
    if "run" in phases:
        due.append(Due("30-running", AppStatus.RUNNING, "Benchmark running"))
        if metrics is not None:
            due.append(Due("31-metrics", AppStatus.METRICS_AVAILABLE, metrics))
    if result is not None:
        due.append(Due(END, *_end(result)))
        if metrics is not None and result.status == Status.SUCCEEDED.value:
            due.append(Due("91-metrics", AppStatus.METRICS_AVAILABLE, metrics))
    return due


def _end(result: JobResult) -> tuple[AppStatus, str]:
    if result.status == Status.SUCCEEDED.value:
        return AppStatus.SUCCEEDED, "Benchmark finished successfully"
    if result.status == Status.CANCELED.value:
        return AppStatus.CANCELED, "Benchmark cancelled - watch ended"
    if result.outcome == Outcome.MAX_RUNTIME.value:
        return AppStatus.FAILED, "Benchmark failed - Max runtime exceeded"
    return AppStatus.FAILED, f"Benchmark failed: {result.sentence}"


def _never() -> Message:
    raise ValueError("this message has been kept before")
