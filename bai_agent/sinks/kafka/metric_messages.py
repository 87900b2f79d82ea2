"""Messages as the benchmark service and its exporters read them, and whole batches of them as Kafka takes them.

kafka-python takes ten microseconds for a message that is sent alone, an encoded batch one twentieth. The format is Kafka's
(https://kafka.apache.org/documentation/#recordbatch). Header, checksum, producer id, sequence, retries and connections stay kafka-python's: a
batch goes into the queue into which its `send` puts messages one by one.
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
"""A record in the form of nearly all: without labels and escapes, and with a number that any double holds.

Its parts are a message's parts, so that they need not be parsed."""


class MetricMessage(NamedTuple):
    """One record of `metrics.jsonl` to be sent to Kafka."""

    value: bytes
    """`{"name", "value", "timestamp", "labels"}`: UTF-8 JSON, the timestamp in milliseconds."""
    seq: bytes
    """The record's number (decimal). Together with the job and the rank it identifies the record, so that a
    reader can detect a repetition."""


class MetricMessageWriter:
    """Turns the records of one node of a job into messages."""

    def __init__(self, job: Job, *, rank: int) -> None:
        identity = job.job
        self.key = identity.client_id.encode()
        self.encoder = RecordEncoder(
            key=self.key, headers=[("job", identity.id.encode()), ("rank", str(rank).encode())]
        )
        labels = self._reserved = labels_of(job, rank=rank)
        # Encoded once, because these parts are most of a message and are the same in nearly all messages.
        self._labels = json.dumps(labels)
        self._end = f', "labels": {self._labels}}}'.encode()
        self._host_metrics = job.kafka is not None and job.kafka.host_metrics

    def write(self, line: bytes) -> MetricMessage | None:
        """Return the message of one line of `metrics.jsonl`; None for a host metric if these are not wanted.

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
        # The job's labels come last, so that no label of a record can make a job look like another one.
        labels = json.dumps({**record.labels, **self._reserved}) if record.labels else self._labels
        return MetricMessage(b'%b, "labels": %b}' % (text[:-1], labels.encode()), b"%d" % record.seq)


def varint(number: int) -> bytes:
    """Return a non-negative number as Kafka writes lengths: zigzag, seven bits a byte, the lowest first."""
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
    """Encodes messages with the same key, and with the same headers but for `seq`."""

    def __init__(self, *, key: bytes, headers: Sequence[tuple[str, bytes]]) -> None:
        self._key = varint(len(key)) + key
        shared = b"".join(_text(name.encode()) + _text(value) for name, value in headers)
        self._headers = varint(len(headers) + 1) + shared + _text(b"seq")

    def encode(self, messages: Sequence[MetricMessage]) -> bytes:
        """Return the records of a batch, all with the batch's own timestamp."""
        key, headers = self._key, self._headers
        parts = []
        for offset, (value, seq) in enumerate(messages):
            # Attributes and the difference to the batch's timestamp: none.
            record = b"\0\0%b%b%b%b%b%b%b" % (
                varint(offset), key, varint(len(value)), value, headers, varint(len(seq)), seq,
            )  # fmt: skip
            parts.append(varint(len(record)))
            parts.append(record)
        return b"".join(parts)


def enqueue(producer: KafkaProducer, *, topic: str, key: bytes, records: bytes, count: int) -> Any:
    """Hand a batch of `count` encoded records to `producer`, which sends it unchanged; return the future of
    its answer.

    `failure_of` interprets the future's result. Raises KafkaError if the topic's partitions are unknown.
    """
    from kafka.errors import KafkaTimeoutError
    from kafka.record.memory_records import MemoryRecordsBuilder
    from kafka.structs import TopicPartition

    if not producer.partitions_for(topic):
        raise KafkaTimeoutError(f"topic {topic} has no partitions")
    number = producer.config["partitioner"].partition(topic, None, key, None, b"", producer._metadata)
    partition = TopicPartition(topic, number)
    # Without room for more, so that it counts as full, and is sent at once.
    batch = MemoryRecordsBuilder(_MAGIC, 0, 0)
    builder = batch._builder
    builder._buffer += records
    builder._num_records = batch._next_offset = count
    builder._last_offset = count - 1
    # The time of sending: retention uses it, and a record that was delayed for longer than that would be
    # deleted on arrival.
    builder._first_timestamp = builder._max_timestamp = int(time.time() * 1000)
    queued = _batch_type()(partition, batch)
    accumulator = producer._accumulator
    with accumulator._tp_lock(partition):
        accumulator._batches[partition].append(queued)
        accumulator._incomplete.add(queued)
    producer._sender.wakeup()
    return queued.produce_future


def failure_of(future: Any) -> Exception | None:
    """Return why a batch was not acknowledged; None if it was acknowledged. The future must be completed."""
    _, _, find_error = future.value
    error: Exception | None = find_error(0) if find_error is not None else None
    return error


@functools.cache
def _batch_type() -> Any:
    from kafka.producer.producer_batch import ProducerBatch

    class WholeBatch(ProducerBatch):  # type: ignore[misc]
        record_count = 1
        """This method is for kafka-python, which would otherwise split a batch that the broker finds too
        large, and forget this one's future."""

        def complete_exceptionally(self, top_level_exception: Exception, record_exceptions_fn: Any) -> bool:
            # If the broker named a message, that message would have an error of its own, and the first one,
            # which `failure_of` reads, a vague error that is not a refusal: the batch would be sent again for
            # ever.
            completed: bool = super().complete_exceptionally(
                top_level_exception, lambda _: top_level_exception
            )
            return completed

    return WholeBatch


def _text(content: bytes) -> bytes:
    return varint(len(content)) + content
