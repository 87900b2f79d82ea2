"""The rounds of a launch are recognised, whatever folders an instance creates."""

from __future__ import annotations

from pathlib import Path

import pytest

from bai_agent.job.record import JobRecord
from bai_agent.job.store import StoredObject
from bai_agent.job.store.directory import DirectoryStore
from executor.backends.ec2.launch.launch_record import latest_round

NAMES = {
    "huge": ["9" * 200],
    "next": ["4"],
    "zeros": ["0", "007", "00"],
    "signs": ["-1", "+7", "1_0"],
    "other digits": ["٤", "７", "⁹"],
    "thousands": [str(number) for number in range(4, 3_000)],
    "a hole": ["9", "6"],
    "no number": ["launch.json", "é"],
}


class CountingStore(DirectoryStore):
    """A folder that counts how often it is listed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.listings = 0

    def find(self, prefix: str) -> list[StoredObject]:
        self.listings += 1
        return super().find(prefix)


@pytest.fixture
def record(tmp_path: Path) -> JobRecord:
    return JobRecord(CountingStore(tmp_path), "job")


def plant(record: JobRecord, *names: str) -> None:
    """Make objects below the folder of rounds, as another program does."""
    assert record.store.folder is not None
    for name in names:
        path = record.store.folder / record.key(f"attempts/0/rounds/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")


def begin(record: JobRecord, rounds: int) -> None:
    plant(record, *(f"{number}/launch.json" for number in range(1, rounds + 1)))


@pytest.mark.parametrize("names", NAMES.values(), ids=list(NAMES))
@pytest.mark.parametrize("rounds", [0, 3])
def test_folders_written_by_an_instance_do_not_count_as_rounds(
    record: JobRecord, names: list[str], rounds: int
) -> None:
    begin(record, rounds)
    plant(record, *(f"{name}/nodes/0" for name in names))

    assert latest_round(record, attempt=0) == rounds
    assert isinstance(record.store, CountingStore)
    assert record.store.listings <= 13


def test_a_folder_named_like_a_round_does_not_count(record: JobRecord) -> None:
    begin(record, 2)
    plant(record, "3/launch.json/nodes/0")

    assert latest_round(record, attempt=0) == 2


@pytest.mark.parametrize("rounds", [1, 2, 5, 40])
def test_the_latest_round_is_found_among_many(record: JobRecord, rounds: int) -> None:
    begin(record, rounds)

    assert latest_round(record, attempt=0) == rounds
