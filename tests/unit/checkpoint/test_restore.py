"""Restoring a checkpoint: the folder equals the marker afterwards, or stays unchanged."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from saved_files import save, saved

from bai_agent.checkpoint.keep import Keeper
from bai_agent.checkpoint.restore import Restorer
from bai_agent.checkpoint.snapshot import STAGING, take_snapshot
from bai_agent.errors import CheckpointError, PullError, PullStopped
from bai_agent.generations.checkpoint_marker import CheckpointMarker, CheckpointRecord

Keep = Callable[[Mapping[str, str]], CheckpointMarker]


@pytest.fixture
def keep(tmp_path: Path, make_keeper: Callable[..., Keeper]) -> Keep:
    """Return what keeps a checkpoint of such files; a content "-> NAME" is a link."""

    def keep(files: Mapping[str, str]) -> CheckpointMarker:
        origin = tmp_path / "origin"
        origin.mkdir(exist_ok=True)
        for name, content in files.items():
            if content.startswith("-> "):
                (origin / name).symlink_to(content[3:])
            else:
                save(origin / name, content)
        snapshot = take_snapshot(
            origin,
            user=None,
            place=tmp_path / "held",
            until=time.monotonic() + 30,
            over=lambda: False,
        )
        marker = make_keeper().keep(snapshot, last=None, over=lambda: False)
        snapshot.release()
        assert marker is not None
        return marker

    return keep


@pytest.fixture
def make_restorer(folder: Path, record: CheckpointRecord, tmp_path: Path) -> Callable[..., Restorer]:
    def make(*, stopping: Callable[[], bool] = lambda: False, seconds: float = 60.0) -> Restorer:
        return Restorer(
            folder=folder,
            user=None,
            record=record,
            store=None,
            manifest=tmp_path / "checkpoint-pulled.json",
            deadline=time.monotonic() + seconds,
            stopping=stopping,
        )

    return make


def test_a_restore_makes_the_folder_equal_to_the_checkpoint(
    folder: Path, keep: Keep, make_restorer: Callable[..., Restorer], tmp_path: Path
) -> None:
    marker = keep({"a.pt": "a", "deep/er/b.pt": "b", "last": "-> a.pt", "empty": ""})
    # A file where a folder goes, a folder where a file goes, and what nobody knows.
    save(folder / "deep", "a file")
    save(folder / "a.pt" / "x", "in a folder")
    (folder / "last").symlink_to("/etc/passwd")
    restorer = make_restorer()

    assert not restorer.is_there(marker)
    assert restorer.restore(marker)

    assert saved(folder) == {"a.pt": "a", "deep/er/b.pt": "b", "empty": "", "last": "a"}
    assert (folder / "last").readlink() == Path("a.pt")
    assert restorer.is_there(marker)
    assert not (tmp_path / "checkpoint-pulled.json").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: save(folder / "model.pt", "w3ights"),
        lambda folder: save(folder / "model.pt", "weights and more"),
        lambda folder: save(folder / "more.pt", "more"),
        lambda folder: (folder / "model.pt").unlink(),
        lambda folder: os.mkfifo(folder / "pipe"),
    ],
)
def test_a_folder_that_differs_does_not_count_as_the_checkpoint(
    change: Callable[[Path], None], folder: Path, keep: Keep, make_restorer: Callable[..., Restorer]
) -> None:
    marker = keep({"model.pt": "weights"})
    restorer = make_restorer()
    assert restorer.is_there(marker)

    change(folder)

    assert not restorer.is_there(marker)
    assert restorer.restore(marker)
    assert saved(folder) == {"model.pt": "weights"}


@pytest.mark.parametrize("content", [b"w3ights", b"weights and more", None])
def test_stored_files_that_do_not_match_the_marker_are_not_restored(
    content: bytes | None,
    folder: Path,
    record: CheckpointRecord,
    keep: Keep,
    make_restorer: Callable[..., Restorer],
) -> None:
    marker = keep({"other.pt": "weights"})
    store = record.attempt.job.store
    if content is None:
        store.remove(record.file_key(marker, 0))
    else:
        store.put(record.file_key(marker, 0), content)

    assert not make_restorer().restore(marker)

    assert saved(folder) == {"model.pt": "weights"}
    assert not (folder / STAGING).exists()


def test_a_killed_restore_is_continued(
    folder: Path, keep: Keep, make_restorer: Callable[..., Restorer], monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = keep({"a.pt": "a", "b.pt": "b", "c.pt": "c"})
    rename, count = Path.rename, 0

    def die_at_the_second(self: Path, target: Path) -> Path:
        nonlocal count
        if self.parent.name == STAGING and not self.name.startswith("."):
            count += 1
            if count == 2:
                raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", die_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        make_restorer().restore(marker)
    monkeypatch.undo()
    assert saved(folder) != {"a.pt": "a", "b.pt": "b", "c.pt": "c"}

    assert not make_restorer().is_there(marker)
    assert make_restorer().restore(marker)
    assert saved(folder) == {"a.pt": "a", "b.pt": "b", "c.pt": "c"}


def stopped(descriptor: int, over: Callable[[], bool]) -> str:
    raise CheckpointError("there was no time left")


def test_files_of_a_stopped_restore_are_not_used_for_a_later_checkpoint(
    folder: Path, keep: Keep, make_restorer: Callable[..., Restorer], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a restore that was stopped when all files had arrived
    first = keep({"a.pt": "step 100"})
    with monkeypatch.context() as patch:
        patch.setattr("bai_agent.checkpoint.restore.sha256_of_open", stopped)
        with pytest.raises(CheckpointError):
            make_restorer().restore(first)
    # When the others go on without this node, and its slot's turn comes again
    later = [keep({"a.pt": f"step {step}"}) for step in (200, 300, 400)]
    assert later[-1].slot == first.slot
    # Then this node has what they have
    assert make_restorer().restore(later[-1])
    assert saved(folder) == {"a.pt": "step 400"}


def test_a_stopped_restore_leaves_the_folder_unchanged(
    folder: Path, keep: Keep, make_restorer: Callable[..., Restorer]
) -> None:
    marker = keep({"a.pt": "a"})

    with pytest.raises(PullStopped):
        make_restorer(stopping=lambda: True).restore(marker)

    assert saved(folder) == {"model.pt": "weights"}


def test_a_restore_without_time_names_the_limit(
    keep: Keep, make_restorer: Callable[..., Restorer], monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = keep({"a.pt": "a"})
    monkeypatch.setattr("bai_agent.pull.sources.bring", lambda _, watch, **__: watch.pause(60))

    with pytest.raises(PullError, match=r"limits\.pull_timeout"):
        make_restorer(seconds=0).restore(marker)


NAMES = st.text("ab\udcff ü*\n.", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
FOLDERS = st.dictionaries(PATHS, st.text("xyz", max_size=4), min_size=1, max_size=5)


def without_clashes(files: Mapping[str, str]) -> dict[str, str]:
    return {
        name: content
        for name, content in files.items()
        if not any(other.startswith(f"{name}/") for other in files)
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(checkpoint=FOLDERS.map(without_clashes), before=FOLDERS.map(without_clashes))
def test_any_folder_is_restored_to_any_checkpoint(
    checkpoint: dict[str, str],
    before: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    record: CheckpointRecord,
    make_keeper: Callable[..., Keeper],
) -> None:
    place = tmp_path_factory.mktemp("any")
    origin, folder = place / "origin", place / "folder"
    for name, content in checkpoint.items():
        save(origin / name, content)
    for name, content in before.items():
        save(folder / name, content)
    until = time.monotonic() + 30
    snapshot = take_snapshot(origin, user=None, place=place / "held", until=until, over=lambda: False)
    # Examples share the store: the same folder twice is one checkpoint.
    marker = make_keeper().keep(snapshot, last=None, over=lambda: False) or record.newest(before=1)
    assert marker is not None
    restorer = Restorer(
        folder=folder,
        user=None,
        record=record,
        store=None,
        manifest=place / "pulled.json",
        deadline=until,
        stopping=lambda: False,
    )

    assert restorer.is_there(record.marker(marker.at)) or restorer.restore(record.marker(marker.at))

    assert saved(folder) == checkpoint
