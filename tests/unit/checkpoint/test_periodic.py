"""The thread that stores checkpoints: when it stores one, and what it reports."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_runs import wait_until
from saved_files import save

from bai_agent.checkpoint.keep import Keeper
from bai_agent.checkpoint.periodic import CheckpointThread
from bai_agent.errors import StoreRefusedError
from bai_agent.generations.checkpoint_marker import CheckpointMarker, CheckpointRecord
from bai_agent.job.record_types import CheckpointEvent, RunEvent, WarningEvent
from bai_agent.job.store.directory import DirectoryStore

MakeThread = Callable[..., CheckpointThread]


@pytest.fixture
def make(folder: Path, make_keeper: Callable[..., Keeper]) -> MakeThread:
    def make(
        *,
        every_s: float | None = None,
        last: CheckpointMarker | None = None,
        before: CheckpointThread | None = None,
        **more: Any,
    ) -> CheckpointThread:
        thread = CheckpointThread(
            folder,
            make_keeper(**more),
            user=None,
            place=folder.parent / "held",
            every_s=every_s,
            last=last,
            before=before,
            before_s=0.05,
        )
        thread.start()
        return thread

    return make


def end(thread: CheckpointThread) -> list[RunEvent]:
    thread.end()
    thread.join(60)
    assert not thread.is_alive()
    return list(thread.events())


def names(events: list[RunEvent]) -> list[str]:
    return [each.name for each in events if isinstance(each, CheckpointEvent)]


def warnings(events: list[RunEvent]) -> list[str]:
    return [each.message for each in events if isinstance(each, WarningEvent)]


def test_with_every_off_a_checkpoint_is_kept_at_the_end(make: MakeThread, record: CheckpointRecord) -> None:
    events = end(make())

    assert names(events) == ["checkpoint-0-0"]
    assert record.numbers() == [(0, 0)]
    assert warnings(events) == []


def test_a_checkpoint_is_stored_each_time_the_folder_has_changed(
    make: MakeThread, record: CheckpointRecord, folder: Path
) -> None:
    thread = make(every_s=0.01)
    wait_until(lambda: record.numbers() == [(0, 0)])
    save(folder / "model.pt", "better weights")
    wait_until(lambda: record.numbers() == [(0, 1), (0, 0)])

    # Nothing has changed since.
    assert names(end(thread)) == ["checkpoint-0-0", "checkpoint-0-1"]


def test_a_hanging_upload_does_not_delay_the_end(make: MakeThread, record: CheckpointRecord) -> None:
    hangs = make()

    events = end(make(generation=1, before=hangs))

    (message,) = warnings(events)
    assert "the upload of the previous generation is still running" in message
    assert record.numbers() == []
    # One that has ended meanwhile is in nobody's way.
    end(hangs)
    assert names(end(make(generation=1, before=hangs))) == ["checkpoint-1-0"]


def test_an_empty_folder_is_not_stored_as_a_checkpoint(make: MakeThread, folder: Path) -> None:
    (folder / "model.pt").unlink()

    assert end(make()) == []


def test_a_restored_checkpoint_is_not_kept_again(make: MakeThread, record: CheckpointRecord) -> None:
    end(make())

    assert end(make(generation=1, last=record.newest(before=1))) == []
    assert record.numbers() == [(0, 0)]


def test_a_missing_checkpoint_folder_causes_a_warning(make: MakeThread, folder: Path) -> None:
    (folder / "model.pt").unlink()
    folder.rmdir()

    (message,) = warnings(end(make()))

    assert (
        message
        == f"A checkpoint was not kept: {folder}: No such file or directory; no earlier checkpoint exists."
    )


def test_a_denied_upload_is_one_warning_with_bytes_and_reason(
    make: MakeThread, folder: Path, record: CheckpointRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def refuse(_: DirectoryStore, key: str, path: Path) -> None:
        tries.append(key)
        raise StoreRefusedError("access denied")

    put_file = DirectoryStore.put_file
    thread = make(every_s=0.01)
    wait_until(lambda: record.numbers() == [(0, 0)])
    monkeypatch.setattr(DirectoryStore, "put_file", refuse)
    save(folder / "model.pt", "better weights")
    wait_until(lambda: len(tries) > 2)
    monkeypatch.setattr(DirectoryStore, "put_file", put_file)

    events = end(thread)

    assert warnings(events) == [
        "A checkpoint of 14 bytes was not kept: access denied; checkpoint-0-0 counts."
    ]
    assert names(events) == ["checkpoint-0-0", "checkpoint-0-1"]


def test_entries_that_are_not_files_are_reported_once(
    make: MakeThread, folder: Path, record: CheckpointRecord
) -> None:
    os.mkfifo(folder / "pipe")
    thread = make(every_s=0.01)
    wait_until(lambda: record.numbers() == [(0, 0)])
    save(folder / "model.pt", "better weights")
    wait_until(lambda: (0, 1) in record.numbers())

    assert warnings(end(thread)) == [
        f"Checkpoints do not have pipe: neither files nor links within {folder}."
    ]


def test_an_upload_in_progress_at_the_end_is_abandoned_for_the_last_checkpoint(
    make: MakeThread, folder: Path, record: CheckpointRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_file = DirectoryStore.put_file
    threads: list[CheckpointThread] = []

    def end_meanwhile(store: DirectoryStore, key: str, path: Path) -> None:
        wait_until(lambda: threads)
        if not record.numbers() and path.read_text() == "weights":
            save(folder / "model.pt", "last weights")
            threads[0].end()
        put_file(store, key, path)

    save(folder / "more.pt", "more weights")
    monkeypatch.setattr(DirectoryStore, "put_file", end_meanwhile)
    monkeypatch.setattr("bai_agent.checkpoint.keep.AT_ONCE", 1)
    threads.append(make(every_s=0.01))
    threads[0].join(60)

    events = list(threads[0].events())
    assert names(events) == ["checkpoint-0-0"]
    assert warnings(events) == []
    (marker,) = record.markers()
    assert record.attempt.job.store.get(record.file_key(marker, 0)) == b"last weights"


def test_a_last_upload_that_runs_out_of_time_writes_no_marker_and_is_reported(
    make: MakeThread, record: CheckpointRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_file = DirectoryStore.put_file
    threads: list[CheckpointThread] = []

    def give_up_meanwhile(store: DirectoryStore, key: str, path: Path) -> None:
        put_file(store, key, path)
        threads[0].give_up()

    monkeypatch.setattr(DirectoryStore, "put_file", give_up_meanwhile)
    threads.append(make(every_s=None))

    events = end(threads[0])

    assert warnings(events) == [
        "A checkpoint of 7 bytes was not kept: there was no time left; no earlier checkpoint exists."
    ]
    assert record.numbers() == []
    assert names(events) == []
