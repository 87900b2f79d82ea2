"""Which open entries a replica adopts: all at its start, then those of its own partitions that no other replica works on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from service_events import cancel_event, encoded, fetcher_event

from bai_agent.errors import StoreError
from bai_agent.job.store import StoredObject
from bai_agent.job.store.directory import DirectoryStore
from executor.service.broker import PartitionOwnership, client_partition
from executor.service.entries import Entries, Kind
from executor.service.events.event import read_event
from executor.service.service import Recovery

OURS, THEIRS = (
    next(f"c{n}" for n in range(99) if client_partition(f"c{n}", 2) == wanted) for wanted in (0, 1)
)


class AwayStore(DirectoryStore):
    """A store that can be away."""

    away = False

    def find(self, prefix: str) -> list[StoredObject]:
        if self.away:
            raise StoreError("the store is away")
        return super().find(prefix)


@dataclass
class Replica:
    """A recovery, and what it takes up."""

    entries: Entries
    share: PartitionOwnership = field(default_factory=PartitionOwnership)
    taken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.recovery = Recovery(
            self.entries,
            self.share,
            take_up=lambda name, kind, client_id: self.taken.append(name),
            looked=lambda count: None,
        )

    def look(self) -> list[str]:
        """Return what one look takes up."""
        self.taken.clear()
        self.recovery.look()
        return self.taken


@pytest.fixture
def store(tmp_path: Path) -> AwayStore:
    return AwayStore(tmp_path)


@pytest.fixture
def replica(store: AwayStore) -> Replica:
    return Replica(Entries(store))


def accept(replica: Replica, action_id: str, client_id: str = OURS, *, received: int = 1) -> None:
    event = read_event(encoded(fetcher_event(action_id=action_id, client_id=client_id)))
    replica.entries.accept(Kind.JOB, event, received_ms=received, size=1)


def test_a_starting_replica_adopts_all_entries_in_order(replica: Replica) -> None:
    accept(replica, "second", received=2)
    accept(replica, "third", THEIRS, received=3)
    accept(replica, "first", received=1)
    command = read_event(encoded(cancel_event(["first"], action_id="c-1", client_id=OURS)))
    name = replica.entries.accept(Kind.COMMAND, command, received_ms=4, size=1)

    assert replica.look() == ["first", "second", "third", name]
    # and once it knows what is its own, it leaves the rest to whose that is
    replica.share.update([0], 2)
    assert (replica.recovery.is_ours("first", OURS), replica.recovery.is_ours("third", THEIRS)) == (
        True,
        False,
    )


def test_entries_of_another_replica_are_adopted_with_its_partitions(replica: Replica) -> None:
    replica.share.update([0], 2)
    replica.look()
    accept(replica, "theirs", THEIRS)
    assert [replica.look() for _ in range(3)] == [[], [], []]

    replica.share.update([0, 1], 2)

    assert replica.look() == ["theirs"]
    replica.recovery.settle("theirs")
    replica.share.update([0], 2)
    replica.share.update([0, 1], 2)
    assert replica.look() == []


def test_a_new_entry_is_left_to_the_replica_that_accepted_it(replica: Replica) -> None:
    replica.share.update([0], 2)
    replica.look()
    accept(replica, "new")

    assert replica.look() == []
    assert replica.look() == ["new"]


def test_an_accepted_entry_stays_with_its_replica_whoever_the_client_is(replica: Replica) -> None:
    replica.share.update([0], 2)
    replica.look()
    replica.recovery.accepted("foreign", THEIRS)
    accept(replica, "foreign", THEIRS)

    replica.look()

    assert replica.recovery.is_ours("foreign", THEIRS)
    assert not replica.recovery.is_ours("other", THEIRS)


def test_a_store_that_was_unreachable_is_listed_again(replica: Replica, store: AwayStore) -> None:
    accept(replica, "waits")
    store.away = True
    assert replica.look() == []

    store.away = False

    assert replica.look() == ["waits"]
