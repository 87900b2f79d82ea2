from __future__ import annotations

import os
from pathlib import Path

import pytest

from bai_agent.job.store.directory import DirectoryStore
from bai_agent.phases.artifacts import ArtifactSummary, keep_artifacts


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    for name in ("runs/a/events.bin", "runs/model.pt", "runs/.hidden", "notes.txt", "runs/a b, c: 100%.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def keep(work: Path, *globs: str, stopping: bool = False) -> tuple[ArtifactSummary, list[str]]:
    store = DirectoryStore(work.parent / "store")
    kept = keep_artifacts(
        globs, folder=work, store=store, prefix="job-1/artifacts/", stopping=lambda: stopping
    )
    return kept, sorted(each.key.removeprefix("job-1/artifacts/") for each in store.find("job-1/artifacts/"))


def test_a_glob_with_two_stars_keeps_all_files_below_a_folder(work: Path) -> None:
    kept, names = keep(work, "runs/**")

    assert names == ["runs/.hidden", "runs/a b, c: 100%.txt", "runs/a/events.bin", "runs/model.pt"]
    assert kept.files == 4


def test_an_artifact_with_a_name_of_any_length_is_kept(work: Path) -> None:
    long = ["a" * length for length in (230, 240, 255)]
    for name in long:
        (work / name).write_text(name)

    kept, names = keep(work, "a*")

    assert names == long
    assert kept.warnings == ()


def test_a_file_that_two_globs_match_is_kept_once(work: Path) -> None:
    kept, names = keep(work, "*.txt", "notes.*")

    assert names == ["notes.txt"]
    assert (kept.files, kept.bytes) == (1, len("notes.txt"))


def test_a_glob_that_matches_nothing_is_a_warning(work: Path) -> None:
    kept, names = keep(work, "checkpoints/*.pt")

    assert names == []
    assert 'No file matched output.artifacts "checkpoints/*.pt"' in kept.warnings[0]


def test_links_out_of_the_folder_and_special_files_are_not_kept(work: Path) -> None:
    (work / "runs" / "passwd").symlink_to("/etc/passwd")
    (work / "runs" / "loop").symlink_to("loop")
    os.mkfifo(work / "runs" / "fifo")

    _, names = keep(work, "runs/*")

    assert "runs/passwd" not in names
    assert "runs/fifo" not in names
    assert "runs/model.pt" in names


def test_artifacts_not_kept_before_the_deadline_are_counted(work: Path) -> None:
    kept, names = keep(work, "notes.txt", stopping=True)

    assert names == []
    assert kept.warnings[0].startswith("1 artifacts were not kept")


def test_artifacts_that_cannot_be_searched_cause_a_warning(work: Path) -> None:
    kept, names = keep(work, "x" * 300, "notes.txt")

    assert names == ["notes.txt"]
    assert "cannot be searched" in kept.warnings[0]


def test_only_some_of_many_failed_artifacts_are_named(work: Path) -> None:
    many = work / "many"
    many.mkdir()
    for number in range(100):
        (many / str(number)).touch()
    (work.parent / "store/job-1/artifacts").mkdir(parents=True)
    (work.parent / "store/job-1/artifacts/many").write_text("a file where a folder is needed")

    kept, _ = keep(work, "many/*", "notes.txt")

    assert kept.files == 1
    assert len(kept.warnings) == 21
    assert kept.warnings[-1] == "80 more artifacts were not kept."
