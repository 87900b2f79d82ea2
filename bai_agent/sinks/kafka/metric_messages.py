"""Encodes records as messages that the benchmark service and its exporters can read, and messages as batches
for Kafka.

kafka-python takes ten microseconds to send a single message, but only half a microsecond per message of an encoded
batch. The format is Kafka's (https://kafka.apache.org/documentation/#recordbatch).
kafka-python still handles header, checksum, producer id, sequence, retries and connections: a batch is put
into the queue into which kafka-python's `send` puts single messages.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bai_agent.job.descriptor import Job
from bai_agent.sinks.backlog import labels_of, read_wanted

# kafka-python is imported in functions, because its imports take half a second and most jobs have no Kafka.
if TYPE_CHECKING:
    from kafka import KafkaProducer

_MAGIC = 2
_PLAIN = re.compile(
    rb'\{"seq":(0|[1-9]\d{0,17}),"src":"(?!host")[a-z0-9/.]*","off":\d+,"i":\d+,"k":\d+,"name":("[ !#-\[\]-~]*"),'
    rb'"value":(-?(?:0|[1-9]\d{0,14})(?:\.\d{1,15})?),"units":"[ !#-\[\]-~]*","timestamp":([1-9]\d{0,17})'
    rb'(?:,"step":-?\d+)?(?:,"late":true)?(?:,"gen":\d+)?\}'
)
"""Regular expression of the most common form of a record: without labels and escapes, and with a number that
fits into any double.

The matched parts are used as parts of the message, so that the line need not be parsed."""


class MetricMessage(NamedTuple):
    """One record of `metrics.jsonl` to be sent to Kafka."""

    value: bytes
    """JSON object in UTF-8 with the keys `name`, `value`, `timestamp` (ms) and `labels`."""
    seq: bytes
    """The record's number (decimal). Job, rank and number together identify a record, so that a reader can
    detect a repeated message."""


class MetricMessageWriter:
    """Converts the records of one node of a job to messages."""

    def __init__(self, job: Job, *, rank: int) -> None:
        identity = job.job
        self.key = identity.client_id.encode()
        self.encoder = RecordEncoder(
            key=self.key, headers=[("job", identity.id.encode()), ("rank", str(rank).encode())]
        )
        labels = self._reserved = labels_of(job, rank=rank)
        # The parts that are the same in nearly all messages are encoded only once, because they are most of a
        # message.
        self._labels = json.dumps(labels)
        self._end = f', "labels": {self._labels}}}'.encode()
        self._host_metrics = job.kafka is not None and job.kafka.host_metrics

    def write(self, line: bytes) -> MetricMessage | None:
        """Return the message for one line of `metrics.jsonl`. None for a metric of the machine itself, unless
        the job wants these metrics.

        Raises RecordError if the line is not a record.
        """
        plain = _PLAIN.fullmatch(line)
        if plain is not None:
            seq, name, value, timestamp = plain.groups()
            text = b'{"name": %b, "value": %b, "timestamp": %b%b' % (name, value, timestamp, self._end)
            return MetricMessage(text, seq)
        record = read_wanted(line, host_metrics=self._host_metrics)
        if record is None:
            return None
        text = json.dumps(
            {"name": record.name, "value": record.value, "timestamp": record.timestamp}
        ).encode()
        # The job's labels are added last, so that no label of a record can make a job look like another job.
        labels = json.dumps({**record.labels, **self._reserved}) if record.labels else self._labels
        return MetricMessage(b'%b, "labels": %b}' % (text[:-1], labels.encode()), b"%d" % record.seq)


def varint(number: int) -> bytes:
    """Encode a non-negative number as Kafka encodes lengths: zigzag, with seven bits per byte, the lowest
    bits first."""
    return _VARINTS[number] if number < len(_VARINTS) else _encode_varint(number)


def _encode_varint(number: int) -> bytes:
    rest = number << 1
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


_VARINTS = tuple(_encode_varint(number) for number in range(2_048))


class RecordEncoder:
    """Encodes messages that have the same key, and the same headers except for `seq`."""

    def __init__(self, *, key: bytes, headers: Sequence[tuple[str, bytes]]) -> None:
        self._key = varint(len(key)) + key
        shared = b"".join(_text(name.encode()) + _text(value) for name, value in headers)
        self._headers = varint(len(headers) + 1) + shared + _text(b"seq")

    def encode(self, messages: Sequence[MetricMessage]) -> bytes:
        """Return the encoded records of a batch. All records have the batch's timestamp."""
        key, headers = self._key, self._headers
        parts = []
        for offset, (value, seq) in enumerate(messages):
            # The two zero bytes are the record's attributes and its difference from the batch's timestamp.
            record = b"\0\0%b%b%b%b%b%b%b" % (
                varint(offset), key, varint(len(value)), value, headers, varint(len(seq)), seq,
            )  # fmt: skip
            parts.append(varint(len(record)))
            parts.append(record)
        return b"".join(parts)


def enqueue(producer: KafkaProducer, *, topic: str, key: bytes, records: bytes, count: int) -> Any:
    """Put a batch of `count` encoded records into the queue of `producer`, which sends the batch unchanged.
    Return the future of the broker's answer.

    `failure_of` returns the error in the future. Raises KafkaError if the topic's partitions are unknown.
    """
    from kafka.errors import KafkaTimeoutError
    from kafka.record.memory_records import MemoryRecordsBuilder
    from kafka.structs import TopicPartition

    if not producer.partitions_for(topic):
        raise KafkaTimeoutError(f"topic {topic} has no partitions")
    number = producer.config["partitioner"].partition(topic, None, key, None, b"", producer._metadata)
    partition = TopicPartition(topic, number)
    # The batch has no room for further records, so kafka-python treats it as full and sends it at once.
    batch = MemoryRecordsBuilder(_MAGIC, 0, 0)
    builder = batch._builder
    builder._buffer += records
    builder._num_records = batch._next_offset = count
    builder._last_offset = count - 1
    # The batch's timestamp is the time of sending. Kafka deletes records by this timestamp, and would delete
    # a record that was delayed for longer than the retention time on arrival.
    builder._first_timestamp = builder._max_timestamp = int(time.time() * 1000)
    queued = _batch_type()(partition, batch)
    accumulator = producer._accumulator
    with accumulator._tp_lock(partition):
        accumulator._batches[partition].append(queued)
        accumulator._incomplete.add(queued)
    producer._sender.wakeup()
    return queued.produce_future


def failure_of(future: Any) -> Exception | None:
    """Return why a batch was not acknowledged; None if it was acknowledged. Call this function only if `future.is_done`."""
    _, _, find_error = future.value
    error: Exception | None = find_error(0) if find_error is not None else None
    return error


@functools.cache
def _batch_type() -> Any:
    from kafka.producer.producer_batch import ProducerBatch

    class WholeBatch(ProducerBatch):  # type: ignore[misc]
        record_count = 1
        """If the broker refuses a batch as too large, kafka-python splits a batch of several records and forgets
        the batch's future. kafka-python does not split a batch whose record count is 1."""

        def complete_exceptionally(self, top_level_exception: Exception, record_exceptions_fn: Any) -> bool:
            # All messages get the batch's own error. Otherwise, if the broker named a message, only that
            # message would get the refusal. The first message, whose error `failure_of` reads, would get a
            # vague error, and the batch would be sent again for ever.
            completed: bool = super().complete_exceptionally(
                top_level_exception, lambda _: top_level_exception
            )
            return completed

    return WholeBatch


def _text(content: bytes) -> bytes:
    return varint(len(content)) + content
