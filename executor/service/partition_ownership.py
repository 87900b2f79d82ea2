"""Assigns open jobs to replicas: each monitors the jobs of clients whose partition of the requests' topic it holds."""

from __future__ import annotations

from collections.abc import Collection


class PartitionOwnership:
    """Kafka's group decides: the partitions of a dead replica go to the others, and its jobs with them.

    Two replicas may monitor the same job for a moment, because the store decides about messages.
    """

    def __init__(self) -> None:
        self._held: tuple[frozenset[int], int] = (frozenset(), 0)
        self.version = 0
        """Number of changes of our partitions."""

    def update(self, held: Collection[int], count: int) -> None:
        """Note our partitions of the requests' topic, which has `count`."""
        before, self._held = self._held, (frozenset(held), count)
        if self._held != before:
            self.version += 1

    def owns(self, client_id: str) -> bool:
        """Return whether this client's jobs are ours. Usually we also launched these jobs."""
        held, count = self._held
        return bool(count) and client_partition(client_id, count) in held

    def may_own(self, client_id: str) -> bool:
        """Return whether this client's jobs are ours, or our partitions are still unknown."""
        return not self._held[1] or self.owns(client_id)

    @property
    def is_leader(self) -> bool:
        """Whether this replica does the tasks that all replicas share."""
        return 0 in self._held[0]


def client_partition(client_id: str, count: int) -> int:
    """Return the partition, of `count`, that Kafka's clients choose by default for the key `client_id`."""
    from kafka.partitioner.default import murmur2

    number: int = murmur2(client_id.encode()) & 0x7FFFFFFF
    return number % count
