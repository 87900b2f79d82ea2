"""Snapshots of a folder are complete or fail, even if files are written meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from saved_files import save

from bai_agent.checkpoint import snapshot
from bai_agent.checkpoint.snapshot import STAGING, Snapshot, list_folder, take_snapshot
from bai_agent.errors import CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoints"
    made.mkdir()
    return made


def take(folder: Path, *, sleep: Callable[[float], None] = lambda _: None, for_s: float = 30.0) -> Snapshot:
    place = folder.parent / "held"
    return take_snapshot(
        folder, user=None, place=place, until=time.monotonic() + for_s, over=lambda: False, sleep=sleep
    )


def contents(snapshot: Snapshot) -> dict[str, str]:
    return {name: path.read_text() for name, path in snapshot.paths.items()}


def test_captured_files_keep_their_content_when_the_benchmark_replaces_them(folder: Path) -> None:
    save(folder / "a.pt", "old a")
    save(folder / "deep/er/b.pt", "old b")
    snapshot = take(folder)

    save(folder / "new", "new a")
    (folder / "new").rename(folder / "a.pt")
    shutil.rmtree(folder / "deep")

    assert contents(snapshot) == {"a.pt": "old a", "deep/er/b.pt": "old b"}
    assert snapshot.rewritten() is None
    snapshot.release()
    assert not (folder.parent / "held").exists()


def test_a_file_that_is_rewritten_in_place_is_detected(folder: Path) -> None:
    save(folder / "a.pt", "old")
    snapshot = take(folder)

    (folder / "a.pt").write_text("new")

    assert snapshot.rewritten() == "a.pt"


def test_without_hard_links_files_are_held_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(folder / "a.pt", "old")

    def refuse(descriptor: int, path: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr("bai_agent.checkpoint.snapshot.link_descriptor", refuse)
    snapshot = take(folder)

    (folder / "a.pt").unlink()

    assert contents(snapshot) == {"a.pt": "old"}
    snapshot.release()


def test_temporary_files_of_a_killed_agent_are_not_part_of_a_snapshot(folder: Path) -> None:
    save(folder.parent / "held" / "000000", "of another checkpoint")
    save(folder / STAGING / "000000", "of a restore")
    save(folder / "a.pt", "a")

    assert contents(take(folder)) == {"a.pt": "a"}


@pytest.fixture
def steps_of_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clock of files take steps that are longer than any delay of this machine."""
    monkeypatch.setattr(snapshot, "_STEPS_S", 60.0)


@pytest.mark.usefixtures("steps_of_a_minute")
def test_a_folder_that_changes_during_a_snapshot_is_listed_again(folder: Path) -> None:
    # Written to a moment ago: a further write might leave the same time.
    save(folder / "a.pt", "half", age_s=0)

    def go_on(_: float) -> None:
        save(folder / "a.pt", "whole", age_s=600)

    assert contents(take(folder, sleep=go_on)) == {"a.pt": "whole"}


@pytest.mark.usefixtures("steps_of_a_minute")
def test_a_folder_that_changes_all_the_time_is_named(folder: Path) -> None:
    save(folder / "log.txt", "line", age_s=0)

    def go_on(_: float) -> None:
        save(folder / "log.txt", "line", age_s=0)

    with pytest.raises(CheckpointError, match=r"log\.txt was written to at every check"):
        take(folder, sleep=go_on, for_s=0.2)


@pytest.mark.parametrize("change", ["vanishes", "replaced", "link"])
def test_a_file_replaced_before_it_is_opened_voids_the_snapshot(
    folder: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder / "a.pt", "old")
    save(folder / "other", "kept")
    hold, looks = Snapshot.hold, 0

    def exchange(self: Snapshot, of: Path, name: str, *, user: None) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            (folder / name).unlink()
            if change == "replaced":
                save(folder / name, "new")
            elif change == "link":
                (folder / name).symlink_to("other")
        hold(self, of, name, user=user)

    monkeypatch.setattr(Snapshot, "hold", exchange)

    found = contents(take(folder))

    assert found == {"other": "kept", **({"a.pt": "new"} if change == "replaced" else {})}


def test_inner_links_are_kept_and_special_files_are_named(folder: Path) -> None:
    save(folder / "step-5.pt", "5")
    (folder / "last").symlink_to("step-5.pt")
    (folder / "out").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("../held")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
        snapshot = take(folder)

    assert contents(snapshot) == {"step-5.pt": "5"}
    assert snapshot.listing.files["last"].link == "step-5.pt"
    assert snapshot.listing.skipped == ("out", "pipe", "socket", "up")


def test_a_file_name_that_is_not_utf8_is_kept(folder: Path) -> None:
    name = os.fsdecode(b"st\xff ep\n5.pt")
    save(folder / name, "5")

    assert contents(take(folder)) == {name: "5"}


def test_an_unreadable_file_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(folder / "a.pt", "a")

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("bai_agent.checkpoint.snapshot.open_as", refuse)

    with pytest.raises(CheckpointError, match=r"a\.pt cannot be read: Permission denied"):
        take(folder)


def test_a_folder_with_too_many_files_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bai_agent.checkpoint.snapshot.MOST_FILES", 2)
    for number in range(3):
        save(folder / str(number), "x")

    with pytest.raises(CheckpointError, match="more than 2 files"):
        take(folder)


def test_a_missing_folder_is_a_separate_error(folder: Path) -> None:
    folder.rmdir()

    with pytest.raises(CheckpointError, match="No such file or directory"):
        take(folder)


WRITES = st.lists(st.tuples(st.sampled_from(["a", "b", "d/c"]), st.sampled_from("xyz")), max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(first=WRITES, meanwhile=WRITES, place=st.integers(0, 4))
def test_a_snapshot_is_the_folder_at_one_moment(
    tmp_path: Path, first: list[tuple[str, str]], meanwhile: list[tuple[str, str]], place: int
) -> None:
    """Atomic writes of others in the middle of a look: what is held was all there at once."""
    folder = tmp_path / "checkpoints"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    moments: list[dict[str, str]] = []

    def replace(name: str, content: str) -> None:
        save(folder / ".." / "draft", content)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / ".." / "draft").rename(folder / name)
        moments.append(
            {each: (folder / each).read_text() for each in ("a", "b", "d/c") if (folder / each).exists()}
        )

    moments.append({})
    for name, content in first:
        replace(name, content)
    hold, calls, writes = Snapshot.hold, 0, iter(meanwhile)

    def hold_amid_writes(self: Snapshot, of: Path, name: str, *, user: None) -> None:
        nonlocal calls
        calls += 1
        if calls > place and (due := next(writes, None)) is not None:
            replace(*due)
        hold(self, of, name, user=user)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Snapshot, "hold", hold_amid_writes)
        snapshot = take(folder)

    assert contents(snapshot) in moments
    assert list_folder(folder, user=None).files == snapshot.listing.files
    snapshot.release()
