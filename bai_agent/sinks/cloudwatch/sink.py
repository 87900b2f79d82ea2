"""Sends the records of `metrics.jsonl` to CloudWatch Logs, on a thread of its own.

The file is the buffer, as with Kafka: `cloudwatch.offset` moves on when CloudWatch has taken a batch.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Mapping

from bai_agent.aws.json_service import ServiceError
from bai_agent.backoff import Backoff
from bai_agent.job.descriptor import Job
from bai_agent.job.run_directory import RunDir
from bai_agent.sinks.backlog import MAX_RECORDS, Backlog, Batch, read_progress, write_progress
from bai_agent.sinks.cloudwatch.emf import EventWriter, LogEvent
from bai_agent.sinks.cloudwatch.log_stream import LogStream, requests_of
from bai_agent.sinks.record import HOST, Record, labels_of, read_record
from bai_agent.sinks.sink import Delivery, SinkThread

log = logging.getLogger(__name__)

LOOK_S = 1.0
SEND_S = 5.0
"""How long records are gathered before they are sent: several of one moment make one event, and requests are charged for."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class CloudWatchSink(SinkThread):
    """Follows `metrics.jsonl` from where `cloudwatch.offset` says. At least once."""

    def __init__(
        self, job: Job, rundir: RunDir, *, rank: int, environment: Mapping[str, str] = os.environ
    ) -> None:
        super().__init__("CloudWatch")
        if job.cloudwatch is None:
            raise ValueError("the job names no CloudWatch")
        table = self._table = job.cloudwatch
        region = job.store.region if job.store is not None else None
        self._stream = LogStream(table, f"{job.job.id}/{rank}", region=region, environment=environment)
        self._writer = EventWriter(table, labels_of(job, rank=rank))
        self._backlog: Backlog[Record] = Backlog(rundir.metrics, self._wanted)
        self._offset_file = rundir.cloudwatch_offset
        self._progress = read_progress(rundir.cloudwatch_offset)
        self._batch: Batch[Record] | None = None
        self._requests: deque[list[LogEvent]] = deque()
        self._refused = 0
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._sent_at = time.monotonic()

    def _summary(self, deadline: float) -> Delivery:
        done = self._progress
        left = self._backlog.count(done.offset, deadline=deadline, host_metrics=self._table.host_metrics)
        return Delivery.of(
            delivered=done.delivered,
            undelivered=left + done.refused + done.malformed,
            what="values",
            place="CloudWatch",
            why=self._error or self._why(),
        )

    def _round(self, *, last: bool) -> float | None:
        try:
            return self._send(last=last)
        except (ServiceError, OSError) as error:
            self._failed(str(error))
            if last and not getattr(error, "passes", False):
                return None
            return self._backoff.next()

    def _send(self, *, last: bool) -> float | None:
        """Send a batch if one is due; return how long to wait then, None when all is sent. Raises ServiceError, OSError."""
        if self._batch is None:
            batch = self._backlog.read(self._progress.offset)
            if batch.end == self._progress.offset:
                return None if last else LOOK_S
            due = last or self._hurried or time.monotonic() >= self._sent_at + SEND_S
            if not due and len(batch.messages) < MAX_RECORDS:
                return LOOK_S
            events, self._refused = self._writer.events(batch.messages)
            self._batch, self._requests = batch, deque(requests_of(events))
        while self._requests:
            self._refused += self._stream.put(self._requests[0])
            self._requests.popleft()
        self._advance(self._batch)
        return 0.0

    def _advance(self, batch: Batch[Record]) -> None:
        self._progress = self._progress.after(batch, refused=self._refused)
        self._batch, self._hurried, self._sent_at = None, False, time.monotonic()
        self._error = None
        self._backoff.reset()
        try:
            write_progress(self._offset_file, self._progress)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._offset_file, error.strerror)

    def _wanted(self, line: bytes) -> Record | None:
        record = read_record(line)
        return None if record.src == HOST and not self._table.host_metrics else record

    def _why(self) -> str:
        if self._progress.refused:
            return f"CloudWatch does not take {self._progress.refused} of them: too old, too large, or beyond its numbers"
        if self._progress.malformed:
            return f"{self._progress.malformed} lines of metrics.jsonl are not records"
        return "the time for it was over (limits.drain)"
