"""What the service hears of its consumer group."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kafka_brokers import Broker

from bai_agent.job.descriptor import Kafka
from executor.configuration.service_config import ServiceTable
from executor.service.broker import Rebalance, open_consumer

_PARTITIONS = 3


def test_a_rebalance_lasts_until_partitions_are_assigned(kafka: Broker) -> None:
    table = _table_of_new_topics(kafka)
    first_rebalance, second_rebalance = Rebalance(), Rebalance()
    first = open_consumer(Kafka(brokers=(kafka.address,)), table, first_rebalance)
    try:
        assert first_rebalance.seconds is not None
        _poll(first, until=lambda: first_rebalance.seconds is None)
        # At once all of both topics: what is there was known before the group was joined.
        assert len(first.assignment()) == 2 * _PARTITIONS

        second = open_consumer(Kafka(brokers=(kafka.address,)), table, second_rebalance)
        try:
            assert second_rebalance.seconds is not None
            _poll(
                first,
                second,
                until=lambda: bool(second.assignment()) and len(first.assignment()) < 2 * _PARTITIONS,
            )
            assert {first_rebalance.seconds, second_rebalance.seconds} == {None}
            assert not first.assignment() & second.assignment()
            assert len(first.assignment() | second.assignment()) == 2 * _PARTITIONS
        finally:
            second.close(autocommit=False, timeout_ms=3000)
    finally:
        first.close(autocommit=False, timeout_ms=3000)


def _table_of_new_topics(kafka: Broker) -> ServiceTable:
    name = uuid.uuid4().hex[:8]
    table = ServiceTable()
    topics = replace(table.topics, fetcher=f"fetcher-{name}", cmd_submit=f"cmd-submit-{name}")
    for topic in (topics.fetcher, topics.cmd_submit):
        kafka.create_topic(topic, partitions=_PARTITIONS)
    return replace(table, group=f"group-{name}", topics=topics)


def _poll(*consumers: Any, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline
        for consumer in consumers:
            consumer.poll(timeout_ms=100)
