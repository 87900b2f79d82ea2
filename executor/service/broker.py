"""Connects the service to Kafka: creates topics, consumes messages, sends messages with acknowledgements, and
tracks the partitions of this replica."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bai_agent.job.descriptor.sink_tables import Kafka
from bai_agent.sinks.kafka.connection import client_settings, create_topics, explained, owned_client, release
from bai_agent.sinks.kafka.library_log import last_trouble
from executor.configuration.service_config import ServiceTable
from executor.errors import MessageTooLargeError, SendError
from executor.service.events.messages import Message

# kafka-python is imported in functions, as in the agent, because its import takes half a second.
if TYPE_CHECKING:
    from kafka import KafkaConsumer, KafkaProducer

log = logging.getLogger(__name__)

_ACKNOWLEDGED_S = 20.0
_MOST_RECORDS = 10
"""Maximum number of records in one poll. Each record needs one or two requests to the store before the next
poll."""
_LARGEST = 32 * 2**20
"""Largest message that kafka-python sends (bytes). The broker also limits the size of messages."""


def make_topics(kafka: Kafka, table: ServiceTable) -> None:
    """Create the topics that the service reads or writes, including BAI_METRICS, unless they exist. Raises
    ConnectError."""
    topics = table.topics
    names = [topics.fetcher, topics.executor, topics.status, topics.cmd_submit, topics.cmd_return]
    every = list(dict.fromkeys([*names, kafka.topic, table.dead_letter_topic]))
    settings = client_settings(kafka)
    with explained(replace(kafka, topic=", ".join(every))):
        create_topics(every, settings, partitions=table.partitions, replicas=table.replicas)


class Rebalance:
    """Tracks whether a rebalance of the consumer group is in progress, and for how long.

    kafka-python 3.0 can lose an assignment if new metadata causes the rebalance. If a poll then times out
    between JoinGroup and the answer to SyncGroup, the next poll wrongly assumes that the consumer has joined
    the group. The consumer sends no more heartbeats, and only a new consumer gets partitions again.
    """

    def __init__(
        self, *, assigned: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """assigned: called at the end of each rebalance."""
        self._assigned = assigned
        self._clock = clock
        self._since: float | None = clock()

    @property
    def seconds(self) -> float | None:
        """Duration of the current rebalance (seconds); None if no rebalance is in progress."""
        since = self._since
        return None if since is None else self._clock() - since

    def begun(self, _revoked: Collection[Any]) -> None:
        """Record that Kafka has revoked this consumer's partitions. `open_consumer` registers this method."""
        self._since = self._clock()

    def ended(self, _assigned: Collection[Any]) -> None:
        """Record that Kafka has assigned partitions to this consumer, possibly none. `open_consumer`
        registers this method."""
        self._since = None
        self._assigned()


def open_consumer(kafka: Kafka, table: ServiceTable, rebalance: Rebalance) -> KafkaConsumer:
    """Return a consumer of both topics that the service reads. The consumer's rebalances are reported to
    `rebalance`. Raises ConnectError."""
    from kafka import ConsumerRebalanceListener, KafkaConsumer

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
            rebalance.begun(revoked)

        def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
            rebalance.ended(assigned)

    settings = client_settings(kafka)
    session_ms = round(table.session_timeout.total_seconds() * 1000)
    topics = (table.topics.fetcher, table.topics.cmd_submit)
    with explained(kafka), owned_client(KafkaConsumer) as own:
        consumer = KafkaConsumer(
            **settings,
            **own,
            client_id=table.group,
            group_id=table.group,
            # A new consumer group must not miss messages that were published before its first poll.
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            max_poll_records=_MOST_RECORDS,
            max_poll_interval_ms=round(table.max_poll_interval.total_seconds() * 1000),
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=min(3000, session_ms // 3),
            metrics_enabled=False,
        )
        consumer.subscribe(topics, listener=Listener())
        # The topics' partitions are fetched before the consumer joins the group. If they were unknown, the
        # first assignment would be empty, and a second rebalance would follow.
        for topic in topics:
            consumer.partitions_for_topic(topic)
        return consumer


class Sender:
    """Sends messages one by one, and waits for Kafka's acknowledgement of each. Several threads may use a
    `Sender`."""

    def __init__(self, kafka: Kafka, *, client_id: str) -> None:
        self._kafka = kafka
        self._client_id = client_id
        self._producer: KafkaProducer | None = None
        self._lock = threading.Lock()
        self._closed = False

    def send(self, message: Message) -> None:
        """Send a message. Raises SendError, MessageTooLargeError."""
        self.send_bytes(message.topic, message.key.encode(), message.value.encode())

    def send_bytes(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        """Send any bytes. Raises SendError, MessageTooLargeError."""
        from kafka.errors import KafkaError, MessageSizeTooLargeError

        producer = self._connected()
        try:
            future = producer.send(topic, key=key, value=value)
            future.get(timeout=_ACKNOWLEDGED_S)
        except MessageSizeTooLargeError as error:
            # After the broker has refused a message, an idempotent producer cannot be used any more.
            self._drop(producer)
            raise MessageTooLargeError(f"Kafka does not take a message for {topic}: {error}") from error
        except (KafkaError, AssertionError, ValueError) as error:
            self._drop(producer)
            raise SendError(
                f"Kafka has not taken a message for {topic}: {last_trouble() or error or 'no answer came'}"
            ) from error

    def close(self) -> None:
        """Close the connection. Nothing can be sent after this call."""
        with self._lock:
            self._closed = True
            producer, self._producer = self._producer, None
        if producer is not None:
            release(producer)

    def _connected(self) -> KafkaProducer:
        with self._lock:
            if self._closed:
                raise SendError("the service is ending")
            if self._producer is None:
                self._producer = _open_producer(self._kafka, self._client_id)
            return self._producer

    def _drop(self, producer: KafkaProducer) -> None:
        with self._lock:
            if self._producer is not producer:
                return
            self._producer = None
        release(producer)


def _open_producer(kafka: Kafka, client_id: str) -> KafkaProducer:
    from kafka import KafkaProducer

    settings: dict[str, Any] = client_settings(kafka)
    with explained(kafka), owned_client(KafkaProducer) as own:
        return KafkaProducer(
            **settings,
            **own,
            client_id=client_id,
            acks="all",
            enable_idempotence=True,
            allow_auto_create_topics=False,
            linger_ms=0,
            delivery_timeout_ms=15_000,
            max_block_ms=10_000,
            max_request_size=_LARGEST,
            metrics_enabled=False,
        )


def consumer_lag(consumer: KafkaConsumer, partitions: Sequence[Any]) -> int | None:
    """Return the number of unread messages in the assigned partitions; None if the broker has not reported
    that number yet."""
    known = [consumer.highwater(each) for each in partitions]
    if not known or None in known:
        return None
    places = [consumer.position(each, timeout_ms=0) for each in partitions]
    behind: int = sum(max(0, high - (place or 0)) for high, place in zip(known, places, strict=True))
    return behind


class PartitionOwnership:
    """Assigns open jobs to replicas. Each client belongs to a partition of the requests' topic. The replica
    that holds the partition monitors the client's jobs.

    Kafka's consumer group assigns partitions to replicas. If a replica dies, Kafka assigns its partitions to
    the other replicas, which then monitor its jobs. Two replicas may monitor the same job for a moment.
    Monitoring a job twice does no harm, because the store decides which messages are sent.
    """

    def __init__(self) -> None:
        self._held: tuple[frozenset[int], int] = (frozenset(), 0)
        self.version = 0
        """Number of changes of this replica's partitions."""

    def update(self, held: Collection[int], count: int) -> None:
        """Record this replica's partitions of the requests' topic. count: number of the topic's
        partitions."""
        before, self._held = self._held, (frozenset(held), count)
        if self._held != before:
            self.version += 1

    def owns(self, client_id: str) -> bool:
        """Return whether this replica monitors the client's jobs. Usually the replica has also launched the
        jobs that it monitors."""
        held, count = self._held
        return bool(count) and client_partition(client_id, count) in held

    def may_own(self, client_id: str) -> bool:
        """Return whether this replica monitors the client's jobs, or does not know its partitions yet."""
        return not self._held[1] or self.owns(client_id)

    @property
    def is_leader(self) -> bool:
        """Whether this replica does the tasks that only one replica has to do."""
        return 0 in self._held[0]


def client_partition(client_id: str, count: int) -> int:
    """Return the partition that Kafka client libraries choose by default for the key `client_id`. count:
    number of partitions."""
    from kafka.partitioner.default import murmur2

    number: int = murmur2(client_id.encode()) & 0x7FFFFFFF
    return number % count
