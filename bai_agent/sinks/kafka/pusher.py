"""Sends the records of `metrics.jsonl` to Kafka, on a separate thread.

The file itself is the buffer, so a broker can be unreachable for any time. The file is read in batches, of
which up to three are in flight. `kafka.offset` advances after the broker has acknowledged a batch. After a
kill of the agent, at most three batches are sent twice.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from bai_agent.backoff import Backoff
from bai_agent.errors import ConnectError, NotAcknowledgedError
from bai_agent.job.descriptor import Job
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir
from bai_agent.sinks.backlog import MAX_RECORDS, Backlog, read_progress, write_progress
from bai_agent.sinks.kafka.connection import connect, release
from bai_agent.sinks.kafka.library_log import forget_trouble, last_trouble, quieten
from bai_agent.sinks.kafka.metric_messages import MetricMessageWriter
from bai_agent.sinks.kafka.send import MAX_IN_FLIGHT, BatchSender, Outgoing, SendWindow
from bai_agent.sinks.sink import Delivery, RareWarnings

if TYPE_CHECKING:
    from kafka import KafkaProducer

log = logging.getLogger(__name__)

POLL_SECONDS = 0.02
"""Seconds between two checks of the file for new records. On average, half of the interval is added to the
latency of a record. The checks cost 0.7 % of a core."""
_OFFSET_SECONDS = 0.1
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _PERMANENT_PAUSE_S = 0.25, 5.0, 30.0
_DRAINING_PAUSE_S = 0.5


class KafkaPusher(threading.Thread):
    """Thread that reads `metrics.jsonl` from the position in `kafka.offset` on, and sends each record at
    least once, in the order of the file."""

    def __init__(
        self,
        job: Job,
        rundir: RunDir,
        *,
        rank: int,
        environment: Mapping[str, str] = os.environ,
        redactor: Redactor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="Kafka", daemon=True)
        if job.kafka is None:
            raise ValueError("the job names no Kafka")
        self._kafka = job.kafka
        self._client_id = f"bai-{job.job.id}-{rank}"
        self._environment = environment
        self._redactor = redactor or Redactor()
        self._clock = clock
        self._writer = MetricMessageWriter(job, rank=rank)
        self._backlog = Backlog(rundir.metrics, self._writer.write, size=lambda message: len(message.value))
        self._offset_file = rundir.kafka_offset
        # Only this thread changes the progress, and always replaces the whole object, so other threads see a
        # consistent state.
        self._progress = self._noted = read_progress(rundir.kafka_offset)
        """`_progress`: what the broker has acknowledged. `_noted`: what the offset file contains."""
        self._note_at = clock()
        self._read_at = clock()
        self._window = SendWindow()
        self._wake = threading.Event()
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._error: str | None = None
        self._connected = False
        self._warnings = RareWarnings(log)
        self._finishing = threading.Event()
        self._drain_until = float("inf")
        self._drained = threading.Event()

    def flush_soon(self) -> None:
        """Does nothing, because each record is sent as soon as it exists."""

    @property
    def delivered(self) -> int:
        """Number of messages that the broker has acknowledged since the start of the run, over all restarts
        of the agent."""
        return self._progress.delivered

    @property
    def malformed(self) -> int:
        """Number of skipped lines of `metrics.jsonl` that are not records."""
        return self._progress.malformed

    @property
    def error(self) -> str | None:
        """Reason why nothing can be delivered at the moment; None if deliveries succeed."""
        return self._error

    def finish(self, deadline: float) -> Delivery:
        """Deliver the remaining records, and return a summary of the whole run. Must be called after
        `metrics.jsonl` is complete.

        Returns after all records are delivered or have turned out to be undeliverable, and at `deadline`
        (`time.monotonic()`) at the latest.
        """
        now = time.monotonic()
        before = self._progress
        left = self._backlog.count(
            before.offset, deadline=now + (deadline - now) / 4, host_metrics=self._kafka.host_metrics
        )
        self._drain_until = deadline - min(0.5, max(0.0, deadline - now) / 4)
        self._finishing.set()
        self._wake.set()
        if left == 0 and self._progress == self._noted:
            self._drained.set()
        elif self.is_alive():
            self._drained.wait(max(0.0, deadline - time.monotonic()))
        after = self._progress
        acknowledged = after.delivered - before.delivered
        return Delivery.of(
            delivered=after.delivered,
            undelivered=max(0, left - acknowledged) + before.refused + before.malformed,
            what="metric messages",
            place="Kafka",
            why=self._why(),
        )

    def run(self) -> None:
        quieten()
        try:
            while not self._is_over():
                self._serve_one_connection()
        except Exception:
            # Any error is caught in the thread's outermost frame, because a defect in the library must be
            # reported in the result.
            log.exception("Kafka: the pusher ended because of an unexpected error")
            self._error = "the Kafka pusher ended because of an unexpected error; agent.log has the details"
        finally:
            self._drained.set()

    def _serve_one_connection(self) -> None:
        try:
            producer = connect(
                self._kafka,
                client_id=self._client_id,
                environment=self._environment,
                redactor=self._redactor,
            )
        except ConnectError as error:
            self._failed(str(error))
            if error.permanent and self._finishing.is_set():
                self._drained.set()
            else:
                self._pause(_PERMANENT_PAUSE_S if error.permanent else None)
            return
        self._connected = True
        try:
            if self._push(producer):
                # The event is set before the connection is closed, because closing can take a second.
                self._drained.set()
        except NotAcknowledgedError as error:
            self._failed(str(error))
            self._pause()
        except OSError as error:
            self._failed(f"metrics.jsonl cannot be read: {error.strerror}")
            self._pause()
        finally:
            release(producer)

    def _push(self, producer: KafkaProducer) -> bool:
        """Send records until `finish` was called and all records are sent, or until the deadline of `finish`.

        Return False if a new producer is needed. Raises NotAcknowledgedError.
        """
        sender = BatchSender(
            producer,
            self._window,
            topic=self._kafka.topic,
            writer=self._writer,
            wake=self._wake,
            warn=self._warnings.add,
        )
        try:
            while not self._is_over():
                # `_finishing` is checked before the file is read. Otherwise, records that are written between
                # the read and the check would be missed.
                finishing = self._finishing.is_set()
                self._wake.clear()
                usable = sender.settle()
                self._advance()
                if not usable:
                    return False
                caught_up = self._read(at_once=finishing)
                sender.hand_over()
                if caught_up:
                    if finishing and not self._window.outgoing:
                        return True
                    self._wake.wait(POLL_SECONDS)
            if self._window.outgoing:
                raise sender.unanswered()
            return True
        finally:
            self._advance()
            self._note_progress()

    def _read(self, *, at_once: bool) -> bool:
        """Read the next batch of the file into the window. Return whether there is nothing more to read for
        now."""
        window = self._window.outgoing
        if len(window) == MAX_IN_FLIGHT or (self._clock() < self._read_at and not at_once):
            return True
        offset = window[-1].batch.end if window else self._progress.offset
        batch = self._backlog.read(offset)
        if not batch.is_full:
            self._read_at = self._clock() + POLL_SECONDS
        if batch.end == offset:
            return True
        if self._unnoted + self._window.pending + len(batch.messages) > MAX_IN_FLIGHT * MAX_RECORDS:
            # Without this write of the offset file, more messages than those in flight would be sent again
            # after a kill.
            self._note_progress()
        window.append(Outgoing(batch, list(batch.messages)))
        return not batch.is_full

    @property
    def _unnoted(self) -> int:
        """Number of messages that are finished but not yet counted in the offset file."""
        now, noted = self._progress, self._noted
        return now.delivered + now.refused - noted.delivered - noted.refused

    def _advance(self) -> None:
        """Remove the finished batches from the window, and advance the progress past them."""
        window = self._window.outgoing
        while window and not window[0].messages:
            outgoing = window.popleft()
            batch = outgoing.batch
            self._progress = self._progress.after(batch, refused=outgoing.refused)
            self._backoff.reset()
            if self._error is not None:
                log.info("Kafka: delivering again")
                self._error = None
            forget_trouble()
            if batch.malformed:
                self._warnings.add(
                    f"{batch.malformed} lines of metrics.jsonl before byte {batch.end} are not records; skipped"
                )
        if self._clock() >= self._note_at:
            self._note_progress()

    def _note_progress(self) -> None:
        if self._progress == self._noted:
            return
        self._note_at = self._clock() + _OFFSET_SECONDS
        progress = self._progress
        try:
            write_progress(self._offset_file, progress)
        except OSError as error:
            self._warnings.add(
                f"{self._offset_file} cannot be written ({error.strerror}); a restart would send messages again"
            )
        # `_noted` is set even if the write failed. The next progress is written again, and `finish` does not
        # wait for a file that cannot be written.
        self._noted = progress

    def _is_over(self) -> bool:
        return self._drained.is_set() or time.monotonic() > self._drain_until

    def _pause(self, pause_s: float | None = None) -> None:
        if pause_s is None:
            pause_s = self._backoff.next()
        if self._finishing.is_set():
            time.sleep(max(0.0, min(pause_s, _DRAINING_PAUSE_S, self._drain_until - time.monotonic())))
        else:
            self._finishing.wait(pause_s)

    def _failed(self, reason: str) -> None:
        self._error = reason
        self._warnings.add(reason)

    def _why(self) -> str:
        if self._error is not None:
            return self._error
        reasons = []
        if self._progress.refused:
            reasons.append(f"Kafka refused {self._progress.refused} messages; agent.log says why")
        if self._progress.malformed:
            reasons.append(f"{self._progress.malformed} lines of metrics.jsonl are not records")
        if not reasons:
            reasons.append("the time for delivering the last messages was over (limits.drain)")
            trouble = last_trouble()
            if trouble is not None:
                reasons.append(f"the last error of {', '.join(self._kafka.brokers)}: {trouble}")
            elif not self._connected:
                reasons.append(f"there was no connection to {', '.join(self._kafka.brokers)} yet")
        return "; ".join(reasons)
