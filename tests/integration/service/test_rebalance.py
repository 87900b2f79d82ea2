"""The service's view of its Kafka consumer group."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kafka import KafkaProducer
from kafka_brokers import Broker

from bai_agent.job.descriptor.sink_tables import Kafka
from executor.configuration.service_config import ServiceTable
from executor.service.broker import Rebalance, open_consumer

_PARTITIONS = 3
_LONGEST_POLL_MS = 120_000


def test_a_kafka_rebalance_is_reported_until_partitions_are_assigned(kafka: Broker) -> None:
    table = _table_of_new_topics(kafka)
    address = Kafka(brokers=(kafka.address,))
    first_rebalance, second_rebalance = Rebalance(), Rebalance()
    with _open(address, table, first_rebalance) as first:
        assert first_rebalance.seconds is not None
        _publish(kafka, table)
        first.poll(timeout_ms=_LONGEST_POLL_MS)
        assert first_rebalance.seconds is None
        # At once all of both topics: what is there was known before the group was joined.
        assert len(first.assignment()) == 2 * _PARTITIONS

        with _open(address, table, second_rebalance) as second:
            assert second_rebalance.seconds is not None
            shared = threading.Event()
            with ThreadPoolExecutor(1) as pool:
                polling = pool.submit(
                    _poll_until, first, lambda: shared.is_set() and first_rebalance.seconds is None
                )
                second.poll(timeout_ms=_LONGEST_POLL_MS)
                shared.set()
                _publish(kafka, table)
                polling.result()
            assert {first_rebalance.seconds, second_rebalance.seconds} == {None}
            assert second.assignment()
            assert not first.assignment() & second.assignment()
            assert len(first.assignment() | second.assignment()) == 2 * _PARTITIONS


@contextmanager
def _open(address: Kafka, table: ServiceTable, rebalance: Rebalance) -> Iterator[Any]:
    consumer = open_consumer(address, table, rebalance)
    try:
        yield consumer
    finally:
        consumer.close(autocommit=False, timeout_ms=3000)


def _table_of_new_topics(kafka: Broker) -> ServiceTable:
    name = uuid.uuid4().hex[:8]
    table = ServiceTable()
    topics = replace(table.topics, fetcher=f"fetcher-{name}", cmd_submit=f"cmd-submit-{name}")
    for topic in (topics.fetcher, topics.cmd_submit):
        kafka.create_topic(topic, partitions=_PARTITIONS)
    return replace(table, group=f"group-{name}", topics=topics)


def _publish(kafka: Broker, table: ServiceTable) -> None:
    """End the polls of both topics' consumers by a record for each partition.

    A poll that ended by its time in the middle of a join could lose the assignment (`Rebalance`).
    """
    producer = KafkaProducer(bootstrap_servers=kafka.address)
    try:
        for topic in (table.topics.fetcher, table.topics.cmd_submit):
            for partition in range(_PARTITIONS):
                producer.send(topic, b"{}", partition=partition).get(timeout=60)
    finally:
        producer.close(timeout=20)


def _poll_until(consumer: Any, ended: Callable[[], bool]) -> None:
    while not ended():
        consumer.poll(timeout_ms=_LONGEST_POLL_MS)
