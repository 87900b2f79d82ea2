"""Makes messages of records, as the benchmark service and its exporters read them; sends a batch of them, and finds out what became of each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bai_agent.errors import BaiError
from bai_agent.job.descriptor import Job
from bai_agent.sinks.backlog import MAX_RECORDS, Batch
from bai_agent.sinks.kafka.library_log import last_trouble
from bai_agent.sinks.record import HOST, labels_of, read_record

# kafka-python takes half a second of imports, and most jobs have no Kafka: it is imported where it is used.
if TYPE_CHECKING:
    from kafka import KafkaProducer

_FLUSH_SECONDS = 0.25
_BATCH_SECONDS = 60.0


@dataclass(frozen=True)
class MetricMessage:
    """One record of `metrics.jsonl` on its way to Kafka."""

    value: bytes
    """`{"name", "value", "timestamp", "labels"}`: UTF-8 JSON, the timestamp in milliseconds."""
    headers: list[tuple[str, bytes]]
    """`job`, `rank` and `seq`: together they name the record, so that a reader can tell a repetition."""


class MetricMessageWriter:
    """Turns the records of one node of a job into messages."""

    def __init__(self, job: Job, *, rank: int) -> None:
        identity = job.job
        self.key = identity.client_id.encode()
        labels = self._reserved = labels_of(job, rank=rank)
        # Encoded once: they are most of a message, and the same in nearly all.
        self._labels = json.dumps(labels)
        self._headers = [("job", identity.id.encode()), ("rank", str(rank).encode())]
        self._host_metrics = job.kafka is not None and job.kafka.host_metrics

    def write(self, line: bytes) -> MetricMessage | None:
        """Return the message of one line of `metrics.jsonl`; None where host metrics are not wanted.

        Raises ValueError where the line is not a record.
        """
        record = read_record(line)
        if record.src == HOST and not self._host_metrics:
            return None
        text = json.dumps({"name": record.name, "value": record.value, "timestamp": record.timestamp})
        # The job's come last, for the same reason.
        labels = json.dumps({**record.labels, **self._reserved}) if record.labels else self._labels
        message = f'{text[:-1]}, "labels": {labels}}}'
        return MetricMessage(message.encode(), [*self._headers, ("seq", b"%d" % record.seq)])


class NotAcknowledgedError(BaiError):
    """The broker has not taken all of a batch."""


@dataclass
class Outgoing:
    """A batch on its way: kept over reconnections, so that what the broker refuses is not offered for ever."""

    batch: Batch[MetricMessage]
    messages: list[MetricMessage]
    """Those that it has neither acknowledged nor refused."""
    at_a_time: int = MAX_RECORDS
    refused: int = 0


class BatchSender:
    """Sends through one producer. `is_over`: returns whether to stop waiting for answers."""

    def __init__(
        self,
        producer: KafkaProducer,
        *,
        topic: str,
        key: bytes | None,
        is_over: Callable[[], bool],
        warn: Callable[[str], None],
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._key = key
        self._is_over = is_over
        self._warn = warn

    def send(self, outgoing: Outgoing) -> bool:
        """Send what is left of `outgoing`; return whether the producer can be used again. Raises NotAcknowledgedError.

        Idempotence makes a refusal fatal: the producer then fails whatever it still holds with the same error. So who was
        meant is certain only for a message that was sent alone; a refused group is offered again in halves.
        """
        from kafka.errors import (
            InvalidRecordError,
            InvalidTimestampError,
            KafkaError,
            MessageSizeTooLargeError,
        )

        refusals = (InvalidRecordError, InvalidTimestampError, MessageSizeTooLargeError)
        topic = self._topic
        while group := outgoing.messages[: outgoing.at_a_time]:
            try:
                futures = [self._future(message) for message in group]
            except KafkaError as error:
                reason = last_trouble() or error
                raise NotAcknowledgedError(f"Kafka takes no messages for topic {topic}: {reason}") from error
            self._await(futures)
            unsent = [
                message for message, future in zip(group, futures, strict=True) if not future.succeeded()
            ]
            outgoing.messages[: len(group)] = unsent
            outgoing.at_a_time = 2 * len(group)
            if not unsent:
                continue
            failures = [future.exception for future in futures if not future.succeeded()]
            if not any(isinstance(failure, refusals) for failure in failures):
                reason = last_trouble() or failures[0]
                raise NotAcknowledgedError(
                    f"Kafka did not acknowledge {len(unsent)} messages for topic {topic}: {reason}"
                )
            outgoing.at_a_time = max(1, len(group) // 2)
            if len(group) == 1:
                self._warn(f"Kafka refuses a message for topic {topic}: {failures[0]}")
                outgoing.messages.pop(0)
                outgoing.refused += 1
            return False
        return True

    def _future(self, message: MetricMessage) -> Any:
        from kafka.errors import MessageSizeTooLargeError
        from kafka.future import Future

        try:
            # Kafka's own timestamp stays that of the sending: it is what retention goes by, and a record that was held up
            # for longer than that would be deleted on arrival.
            return self._producer.send(
                self._topic, key=self._key, value=message.value, headers=message.headers
            )
        except MessageSizeTooLargeError as error:
            return Future().failure(error)

    def _await(self, futures: list[Any]) -> None:
        """Return when every future is done. Raises NotAcknowledgedError where time is up before."""
        from kafka.errors import KafkaError

        deadline = time.monotonic() + _BATCH_SECONDS
        while not all(future.is_done for future in futures):
            if self._is_over() or time.monotonic() > deadline:
                open_ones = sum(not future.is_done for future in futures)
                raise NotAcknowledgedError(
                    f"{open_ones} messages for topic {self._topic} were still not acknowledged when the time was up"
                    + (f": {last_trouble()}" if last_trouble() else "")
                )
            # Neither its end nor its failure says what became of a message: the futures do.
            with suppress(KafkaError):
                self._producer.flush(timeout=_FLUSH_SECONDS)
