"""`bai fetch --checkpoint`: the newest whole checkpoint, with its own names, and never a torn one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from handmade_job import HandmadeJob
from saved_files import saved

from bai_agent.generations.checkpoint_marker import CheckpointFile, CheckpointMarker, CheckpointRecord
from bai_agent.job.attempt import AttemptRecord
from executor.errors import JobFetchError
from executor.jobs.fetch import fetch_checkpoint


@pytest.fixture
def job(tmp_path: Path) -> HandmadeJob:
    return HandmadeJob(tmp_path / "store")


def keep(job: HandmadeJob, number: int, files: Mapping[str, str]) -> CheckpointMarker:
    record = CheckpointRecord(AttemptRecord(job.record))
    listed = [
        CheckpointFile(name=name, link=content[3:])
        if content.startswith("-> ")
        else CheckpointFile(name=name, size=len(content), sha256=hashlib.sha256(content.encode()).hexdigest())
        for name, content in files.items()
    ]
    marker = CheckpointMarker(generation=0, number=number, node=0, slot=number % 3, files=listed, time=1)
    for place, content in enumerate(files.values()):
        job.store.put(record.file_key(marker, place), content.encode())
    assert record.write(marker)
    return marker


def test_the_newest_checkpoint_is_copied_into_a_folder_of_its_name(job: HandmadeJob, tmp_path: Path) -> None:
    keep(job, 0, {"model.pt": "old"})
    keep(job, 1, {"model.pt": "new", "deep/state": "s", "last": "-> model.pt"})
    there = tmp_path / "there"

    came = {
        each.path.relative_to(there).as_posix(): each.bytes for each in fetch_checkpoint(job.record, there)
    }

    assert came == {"checkpoint-0-1/model.pt": 3, "checkpoint-0-1/deep/state": 1}
    assert saved(there / "checkpoint-0-1") == {"model.pt": "new", "deep/state": "s", "last": "new"}
    # What is there is not copied again.
    assert list(fetch_checkpoint(job.record, there)) == []


def test_a_forged_later_attempt_does_not_hide_a_checkpoint(job: HandmadeJob, tmp_path: Path) -> None:
    keep(job, 0, {"model.pt": "old"})
    job.store.put(job.record.node(attempt=9).key("x"), b"")

    list(fetch_checkpoint(job.record, tmp_path))

    assert saved(tmp_path / "checkpoint-0-0") == {"model.pt": "old"}


def test_a_checkpoint_that_is_being_overwritten_is_skipped(job: HandmadeJob, tmp_path: Path) -> None:
    keep(job, 0, {"model.pt": "old"})
    torn = keep(job, 1, {"model.pt": "new"})
    record = CheckpointRecord(AttemptRecord(job.record))
    job.store.put(record.file_key(torn, 0), b"newer")

    list(fetch_checkpoint(job.record, tmp_path / "there"))

    assert saved(tmp_path / "there") == {"checkpoint-0-0/model.pt": "old"}


def test_a_fetched_file_with_a_wrong_checksum_is_removed(job: HandmadeJob, tmp_path: Path) -> None:
    torn = keep(job, 0, {"model.pt": "new"})
    record = CheckpointRecord(AttemptRecord(job.record))
    job.store.put(record.file_key(torn, 0), b"abc")

    with pytest.raises(JobFetchError, match="was overwritten while it was fetched; fetch it again"):
        list(fetch_checkpoint(job.record, tmp_path / "there"))

    assert saved(tmp_path / "there") == {}


def test_an_existing_file_with_other_content_is_not_replaced(job: HandmadeJob, tmp_path: Path) -> None:
    keep(job, 0, {"model.pt": "new"})
    mine = tmp_path / "there" / "checkpoint-0-0" / "model.pt"
    mine.parent.mkdir(parents=True)
    mine.write_text("own")

    with pytest.raises(JobFetchError, match="nothing is overwritten"):
        list(fetch_checkpoint(job.record, tmp_path / "there"))

    assert mine.read_text() == "own"


def test_fetching_from_a_job_without_a_checkpoint_is_refused(job: HandmadeJob, tmp_path: Path) -> None:
    with pytest.raises(JobFetchError, match="the job has no checkpoint"):
        list(fetch_checkpoint(job.record, tmp_path / "there"))
