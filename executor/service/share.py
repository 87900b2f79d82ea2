"""Which of the open jobs a replica looks after: those of the clients whose partition of the requests it holds."""

from __future__ import annotations

from collections.abc import Collection


class Share:
    """Kafka's group decides: when a replica dies, its partitions go to the others, and its jobs with them.

    Two that hold the same job for a moment do no harm: what is said about it is decided in the store.
    """

    def __init__(self) -> None:
        self._held: tuple[frozenset[int], int] = (frozenset(), 0)
        self.version = 0
        """Counts the changes of what is ours."""

    def update(self, held: Collection[int], count: int) -> None:
        """Note which partitions of the requests' topic are ours, of `count`."""
        before, self._held = self._held, (frozenset(held), count)
        if self._held != before:
            self.version += 1

    def holds(self, client_id: str) -> bool:
        """Return whether this client's jobs are ours: mostly it was us who launched them, too."""
        held, count = self._held
        return bool(count) and partition_of(client_id, count) in held

    def may_hold(self, client_id: str) -> bool:
        """Return whether this client's jobs are ours, or nobody has told us yet what is."""
        return not self._held[1] or self.holds(client_id)

    @property
    def leads(self) -> bool:
        """Whether what one replica does for all is ours to do."""
        return 0 in self._held[0]


def partition_of(client_id: str, count: int) -> int:
    """Return the partition, of `count`, into which Kafka's clients put what has the key `client_id`, unless they are told otherwise."""
    from kafka.partitioner.default import murmur2

    number: int = murmur2(client_id.encode()) & 0x7FFFFFFF
    return number % count
