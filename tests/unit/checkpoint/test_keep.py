"""Storing a snapshot: files first, the marker last, and never a torn checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from saved_files import save

from bai_agent.checkpoint.keep import Keeper
from bai_agent.checkpoint.snapshot import FileVersion, FolderListing, Snapshot, take_snapshot
from bai_agent.errors import CheckpointError, StoreError, StoreRefusedError
from bai_agent.generations.checkpoint_marker import CheckpointMarker, CheckpointRecord
from bai_agent.job.store.directory import DirectoryStore

MakeKeeper = Callable[..., Keeper]


def take(folder: Path) -> Snapshot:
    until = time.monotonic() + 30
    return take_snapshot(folder, user=None, place=folder.parent / "held", until=until, over=lambda: False)


def keep(
    keeper: Keeper,
    folder: Path,
    *,
    last: CheckpointMarker | None = None,
    over: Callable[[], bool] = lambda: False,
) -> CheckpointMarker | None:
    snapshot = take(folder)
    try:
        return keeper.keep(snapshot, last=last, over=over)
    finally:
        snapshot.release()


def kept_content(record: CheckpointRecord, marker: CheckpointMarker) -> dict[str, str]:
    store = record.attempt.job.store
    return {
        each.name: store.get(record.file_key(marker, place)).decode()
        for place, each in enumerate(marker.files)
        if each.link is None
    }


def test_a_stored_checkpoint_has_all_its_files(
    folder: Path, record: CheckpointRecord, make_keeper: MakeKeeper
) -> None:
    save(folder / "optimizer/state.pt", "momentum")
    (folder / "last").symlink_to("model.pt")

    marker = keep(make_keeper(), folder)

    assert marker is not None
    assert record.newest(before=1) == marker
    assert kept_content(record, marker) == {"model.pt": "weights", "optimizer/state.pt": "momentum"}
    assert {each.name: each.link for each in marker.files}["last"] == "model.pt"
    assert marker.bytes == len("weights") + len("momentum")


def test_an_unchanged_folder_is_not_stored_again(folder: Path, make_keeper: MakeKeeper) -> None:
    keeper = make_keeper()
    marker = keep(keeper, folder)
    # The same content, written again.
    save(folder / "model.pt", "weights", age_s=5)

    assert keep(keeper, folder, last=marker) is None


def test_three_slots_rotate_and_two_checkpoints_are_always_complete(
    folder: Path, record: CheckpointRecord, make_keeper: MakeKeeper
) -> None:
    keeper = make_keeper()
    for number in range(5):
        save(folder / f"step-{number}.pt", f"weights {number}")
        (folder / "model.pt").unlink(missing_ok=True)
        (folder / f"step-{number - 1}.pt").unlink(missing_ok=True)
        marker = keep(keeper, folder)
        assert marker is not None
        assert (marker.number, marker.slot) == (number, number % 3)

    found = list(record.markers())
    assert [kept_content(record, each) for each in found[:3]] == [
        {f"step-{number}.pt": f"weights {number}"} for number in (4, 3, 2)
    ]
    # However many files a benchmark has named, the store has those of three checkpoints.
    assert len(record.attempt.job.store.find(record.attempt.key("nodes/0/checkpoint/"))) == 3


class FailingStore(DirectoryStore):
    """Fails of its puts as a test says."""

    failures: list[StoreError]
    put_files: list[str]

    def put_file(self, key: str, path: Path) -> None:
        if self.failures:
            raise self.failures.pop(0)
        super().put_file(key, path)
        self.put_files.append(key)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    (tmp_path / "store").mkdir()
    made = FailingStore(tmp_path / "store")
    object.__setattr__(made, "failures", [])
    object.__setattr__(made, "put_files", [])
    return made


def test_requests_to_a_briefly_unreachable_store_are_retried(
    folder: Path, store: FailingStore, make_keeper: MakeKeeper
) -> None:
    store.failures.append(StoreError("the job store is away"))

    assert keep(make_keeper(), folder) is not None


@pytest.mark.parametrize(
    ("error", "patience"),
    [(StoreRefusedError("access denied"), 30), (StoreError("the job store is away"), 0)],
)
def test_a_checkpoint_that_could_not_be_uploaded_has_no_marker(
    folder: Path,
    store: FailingStore,
    record: CheckpointRecord,
    make_keeper: MakeKeeper,
    error: StoreError,
    patience: int,
) -> None:
    store.failures += [error] * 9

    with pytest.raises(CheckpointError, match=str(error)):
        keep(make_keeper(patience=timedelta(seconds=patience)), folder)

    assert record.numbers() == []


def test_a_file_that_is_rewritten_in_place_during_the_upload_leaves_no_marker(
    folder: Path, record: CheckpointRecord, make_keeper: MakeKeeper
) -> None:
    snapshot = take(folder)
    with (folder / "model.pt").open("r+") as file:
        file.write("W")

    with pytest.raises(CheckpointError, match=r"model\.pt was rewritten in place"):
        make_keeper().keep(snapshot, last=None, over=lambda: False)

    assert record.numbers() == []


def test_a_checkpoint_is_not_uploaded_after_its_deadline(
    folder: Path, store: FailingStore, record: CheckpointRecord, make_keeper: MakeKeeper
) -> None:
    with pytest.raises(CheckpointError, match="no time left"):
        keep(make_keeper(), folder, over=lambda: True)

    assert record.numbers() == []
    assert store.put_files == []


def test_a_checkpoint_that_would_fill_the_disk_is_not_stored(
    folder: Path, store: FailingStore, make_keeper: MakeKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bai_agent.checkpoint.keep.free_bytes", lambda _: 50 << 20)

    with pytest.raises(CheckpointError, match="52,428,800 bytes free"):
        keep(make_keeper(), folder)

    assert store.put_files == []


def test_a_checkpoint_whose_file_names_exceed_the_markers_size_is_refused(
    folder: Path, store: FailingStore, make_keeper: MakeKeeper
) -> None:
    # A character that is not ASCII needs six bytes.
    listing = FolderListing(
        files={f"{number}/" + "\u00fc" * 250: FileVersion(1, 0, 1, "target") for number in range(12_000)}
    )
    snapshot = Snapshot(listing, folder.parent / "held")

    with pytest.raises(
        CheckpointError, match=r"12,000 files has 18,\d+,\d+ bytes, but may have at most 16,777,216"
    ):
        make_keeper().keep(snapshot, last=None, over=lambda: False)

    assert store.find("job/") == []


def test_a_checkpoint_with_a_number_of_another_node_does_not_overwrite_it(
    folder: Path, record: CheckpointRecord, make_keeper: MakeKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = keep(make_keeper(), folder)
    assert first is not None
    save(folder / "model.pt", "other weights")
    monkeypatch.setattr(CheckpointRecord, "next_number", lambda *_: (0, 0))

    with pytest.raises(CheckpointError, match="another node has written checkpoint-0-0"):
        keep(make_keeper(node=1), folder)

    assert record.marker((0, 0)) == first


def test_names_that_are_not_utf8_are_kept(
    folder: Path, record: CheckpointRecord, make_keeper: MakeKeeper
) -> None:
    name = os.fsdecode(b"st\xff ep.pt")
    save(folder / name, "5")

    marker = keep(make_keeper(), folder)

    assert marker is not None
    assert kept_content(record, record.marker(marker.at)) == {"model.pt": "weights", name: "5"}
