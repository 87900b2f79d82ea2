"""Replicas share the clients as Kafka shares the partitions among them."""

from __future__ import annotations

from collections import Counter

from kafka.partitioner.default import DefaultPartitioner

from executor.service.broker import PartitionOwnership, client_partition


class ThreePartitions:
    """What the partitioner asks of its connection."""

    def topics(self) -> set[str]:
        return {"requests"}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0, 1, 2}

    available_partitions_for_topic = partitions_for_topic


def test_a_client_is_assigned_to_the_kafka_partition_of_its_requests() -> None:
    partitioner, cluster = DefaultPartitioner(), ThreePartitions()

    for number in range(100):
        client = f"client-{number}"
        assert client_partition(client, 3) == partitioner.partition(
            "requests", client, client.encode(), None, None, cluster
        )


def test_each_client_is_owned_by_exactly_one_replica() -> None:
    shares = [PartitionOwnership(), PartitionOwnership(), PartitionOwnership()]
    shares[0].update([0, 2], 3)
    shares[1].update([1], 3)

    held = Counter(sum(each.owns(f"client-{number}") for each in shares) for number in range(100))

    assert held == {1: 100}
    assert [each.is_leader for each in shares] == [True, False, False]
