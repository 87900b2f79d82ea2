"""Sends the records of `metrics.jsonl` to Kafka, on a thread of its own.

The file is the buffer: it is read a batch at a time, and `kafka.offset` moves on when the broker has acknowledged the
whole batch. So a broker may be away for as long as it likes, and a killed agent sends at most one batch twice.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bai_agent.backoff import Backoff
from bai_agent.job.descriptor import Job
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir
from bai_agent.sinks.backlog import Backlog, read_progress, write_progress
from bai_agent.sinks.kafka.connection import ConnectError, connect, release
from bai_agent.sinks.kafka.library_log import forget_trouble, last_trouble, quieten
from bai_agent.sinks.kafka.send import BatchSender, MetricMessageWriter, NotAcknowledgedError, Outgoing
from bai_agent.sinks.sink import Delivery

if TYPE_CHECKING:
    from kafka import KafkaProducer

log = logging.getLogger(__name__)

POLL_SECONDS = 0.02
"""How often the file is looked at: a part of what a line takes from its print to the topic."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _PERMANENT_PAUSE_S = 0.25, 5.0, 30.0
_DRAINING_PAUSE_S = 0.5
_SAME_WARNING_SECONDS = 300.0


class KafkaPusher(threading.Thread):
    """Follows `metrics.jsonl` from where `kafka.offset` says. At least once, in the file's order."""

    def __init__(
        self,
        job: Job,
        rundir: RunDir,
        *,
        rank: int,
        environment: Mapping[str, str] = os.environ,
        redactor: Redactor | None = None,
    ) -> None:
        super().__init__(name="Kafka", daemon=True)
        if job.kafka is None:
            raise ValueError("the job names no Kafka")
        self._kafka = job.kafka
        self._client_id = f"bai-{job.job.id}-{rank}"
        self._environment = environment
        self._redactor = redactor or Redactor()
        writer = MetricMessageWriter(job, rank=rank)
        self._key = writer.key
        self._backlog = Backlog(rundir.metrics, writer.write, size=lambda message: len(message.value))
        self._offset_file = rundir.kafka_offset
        # Replaced whole, by the thread alone: readers see one state or the next.
        self._progress = read_progress(rundir.kafka_offset)
        self._outgoing: Outgoing | None = None
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._error: str | None = None
        self._connected = False
        self._warned = (-_SAME_WARNING_SECONDS, "")
        self._finishing = threading.Event()
        self._drain_until = float("inf")
        self._drained = threading.Event()

    def hurry(self) -> None:
        """Nothing to do: each record is sent as soon as it is there."""

    @property
    def delivered(self) -> int:
        """Messages that the broker has acknowledged so far, over all restarts of the agent."""
        return self._progress.delivered

    @property
    def malformed(self) -> int:
        """Lines of `metrics.jsonl` so far that are not records; they were passed over."""
        return self._progress.malformed

    @property
    def error(self) -> str | None:
        """Why nothing can be delivered at the moment; None while all is well."""
        return self._error

    def finish(self, deadline: float) -> Delivery:
        """Deliver what is left and return a summary of the whole run. Call it when `metrics.jsonl` is complete.

        Returns as soon as all is delivered or cannot be, and by `deadline` (of `time.monotonic()`) whatever the broker does.
        """
        now = time.monotonic()
        before = self._progress
        left = self._backlog.count(
            before.offset, deadline=now + (deadline - now) / 4, host_metrics=self._kafka.host_metrics
        )
        self._drain_until = deadline - min(0.5, max(0.0, deadline - now) / 4)
        self._finishing.set()
        if left == 0:
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
            # The thread's outermost frame: a defect in the library must end in the result, not on a terminal that nobody sees.
            log.exception("Kafka: the pusher ended by a defect")
            self._error = "the Kafka pusher ended by a defect; agent.log has the details"
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
                # Before the connection is closed, which can take a second.
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
        """Send until all is sent after `finish`, or time is up; return False where that takes a new producer.

        Raises NotAcknowledgedError.
        """
        sender = BatchSender(
            producer, topic=self._kafka.topic, key=self._key, is_over=self._is_over, warn=self._warn
        )
        while not self._is_over():
            # Before the read: what is written between a read and this question would be left behind.
            finishing = self._finishing.is_set()
            if self._outgoing is None:
                batch = self._backlog.read(self._progress.offset)
                if batch.end == self._progress.offset:
                    if finishing:
                        return True
                    self._finishing.wait(POLL_SECONDS)
                    continue
                self._outgoing = Outgoing(batch, list(batch.messages))
            if not sender.send(self._outgoing):
                return False
            self._advance(self._outgoing)
        return True

    def _advance(self, outgoing: Outgoing) -> None:
        batch = outgoing.batch
        self._progress = self._progress.after(batch, refused=outgoing.refused)
        self._outgoing = None
        self._backoff.reset()
        if self._error is not None:
            log.info("Kafka: delivering again")
            self._error = None
        forget_trouble()
        if batch.malformed:
            self._warn(
                f"{batch.malformed} lines of metrics.jsonl before byte {batch.end} are not records; passed over"
            )
        try:
            write_progress(self._offset_file, self._progress)
        except OSError as error:
            self._warn(
                f"{self._offset_file} cannot be written ({error.strerror}); a restart would send messages again"
            )

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
        self._warn(reason)

    def _warn(self, text: str) -> None:
        """Log `text`, but not the same one again and again."""
        now = time.monotonic()
        when, last = self._warned
        if text != last or now - when > _SAME_WARNING_SECONDS:
            log.warning("%s", text)
            self._warned = (now, text)

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
                reasons.append(f"the last trouble with {', '.join(self._kafka.brokers)}: {trouble}")
            elif not self._connected:
                reasons.append(f"there was no connection to {', '.join(self._kafka.brokers)} yet")
        return "; ".join(reasons)
