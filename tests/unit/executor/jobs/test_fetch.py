"""Bringing a job here: complete, resumable, and without ever overwriting anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cli_harness import BAI
from handmade_job import HandmadeJob
from without_hard_links import without_hard_links

from executor.errors import JobFetchError, UsageError
from executor.jobs.fetch import fetch_job


@pytest.fixture
def job(tmp_path: Path) -> HandmadeJob:
    made = HandmadeJob(tmp_path / "store")
    made.event("agent_started", pid=1)
    made.prints("first line\n")
    made.measures("loss", 0.5)
    made.store.put(made.record.key("artifacts/runs/model.bin"), b"m" * 100_000)
    return made


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_fetched_files_have_readable_names(job: HandmadeJob, tmp_path: Path) -> None:
    job.ends()
    there = tmp_path / "there"

    brought = list(fetch_job(job.record, there))

    found = tree(there)
    assert sorted(found) == [
        "artifacts/runs/model.bin",
        "job.toml",
        "nodes/0/events.jsonl",
        "nodes/0/metrics.jsonl",
        "nodes/0/output.log",
        "result.json",
    ]
    assert found["nodes/0/output.log"] == b"first line\n"
    assert sum(each.bytes for each in brought) == sum(map(len, found.values()))
    assert list(fetch_job(job.record, there)) == []


def test_log_objects_are_appended_to_one_file(job: HandmadeJob, tmp_path: Path) -> None:
    there = tmp_path / "there"
    list(fetch_job(job.record, there))
    job.store.put(job.record.node().key(f"log/{11:020}"), b"second line\n")
    (grown,) = fetch_job(job.record, there)

    assert (grown.path, grown.bytes) == (there / "nodes/0/output.log", 12)
    assert grown.path.read_text() == "first line\nsecond line\n"


def test_a_further_fetch_appends_to_a_grown_agent_log(job: HandmadeJob, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (job.node / "agent.log").write_text("started\n")
    list(fetch_job(job.record, there))
    with (job.node / "agent.log").open("a") as log:
        log.write("ended\n")
    (grown,) = fetch_job(job.record, there)

    assert (grown.path, grown.bytes) == (there / "nodes/0/agent.log", 6)
    assert grown.path.read_text() == "started\nended\n"


def test_an_interrupted_fetch_is_continued(job: HandmadeJob, tmp_path: Path) -> None:
    there = tmp_path / "there"
    part = there / "artifacts" / "runs" / ".model.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"m" * 60_000)
    log = there / "nodes" / "0" / "output.log"
    log.parent.mkdir(parents=True)
    log.write_text("first")

    came = {each.path.name: each.bytes for each in fetch_job(job.record, there)}

    assert (came["model.bin"], came["output.log"]) == (40_000, 6)
    assert (there / "artifacts/runs/model.bin").read_bytes() == b"m" * 100_000
    assert log.read_text() == "first line\n"
    assert not part.exists()


@pytest.mark.parametrize(
    "name", ["job.toml", "nodes/0/output.log", "nodes/0/metrics.jsonl", "artifacts/runs/model.bin"]
)
def test_an_existing_file_with_other_content_is_not_replaced(
    job: HandmadeJob, tmp_path: Path, name: str
) -> None:
    mine = tmp_path / "there" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")

    with pytest.raises(JobFetchError, match="nothing is overwritten"):
        list(fetch_job(job.record, tmp_path / "there"))

    assert mine.read_text() == "mine"


def test_a_folder_with_another_job_is_not_changed(job: HandmadeJob, tmp_path: Path) -> None:
    # Given a folder with another job, whose files have the same sizes
    there = tmp_path / "there"
    other = HandmadeJob(tmp_path / "store", "digits-2")
    other.prints("other line\n")
    list(fetch_job(other.record, there))
    before = tree(there)

    with pytest.raises(UsageError, match=r"holds the job digits-2; fetch digits-1 into another folder"):
        list(fetch_job(job.record, there))

    assert tree(there) == before


def test_job_toml_is_fetched_before_all_other_files(job: HandmadeJob, tmp_path: Path) -> None:
    there = tmp_path / "there"

    first = next(fetch_job(job.record, there))

    assert first.path == there / "job.toml"


@pytest.mark.parametrize("content", [b"\xff", b"x = ", b"x = 1", b"job = 1"])
def test_an_invalid_descriptor_in_the_folder_refuses_a_fetch(
    job: HandmadeJob, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "job.toml").write_bytes(content)

    with pytest.raises(JobFetchError, match="nothing is overwritten"):
        list(fetch_job(job.record, tmp_path))


def test_no_link_leads_out_of_the_folder(job: HandmadeJob, tmp_path: Path) -> None:
    there, outside = tmp_path / "there", tmp_path / "outside"
    there.mkdir()
    outside.mkdir()
    (there / "artifacts").symlink_to(outside)

    with pytest.raises(JobFetchError, match="leads out of"):
        list(fetch_job(job.record, there))

    assert list(outside.rglob("*.bin")) == []


def test_a_folder_without_hard_links_is_accepted(job: HandmadeJob, tmp_path: Path) -> None:
    long = "n" * 255
    job.store.put(job.record.key(f"artifacts/{long}"), b"x")
    there = tmp_path / "there"
    command = (*BAI, "fetch", job.record.job_id, there, "--store", job.store.folder)
    for _ in range(2):
        subprocess.run(without_hard_links(*command), check=True, timeout=60)

    assert tree(there)["artifacts/runs/model.bin"] == b"m" * 100_000
    assert tree(there)[f"artifacts/{long}"] == b"x"
    assert not list(there.rglob("*.part"))


def test_each_of_several_attempts_has_its_own_folder(job: HandmadeJob, tmp_path: Path) -> None:
    job.store.put(job.record.node(attempt=1).key(f"log/{0:020}"), b"again\n")

    list(fetch_job(job.record, tmp_path / "there"))

    assert (tmp_path / "there/attempts/0/nodes/0/output.log").read_text() == "first line\n"
    assert (tmp_path / "there/attempts/1/nodes/0/output.log").read_text() == "again\n"
