"""The index of ended jobs: a list reads only what it shows, and damage to the index or changes of jobs never make it wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from handmade_job import START, HandmadeJob

from bai_agent.job.store.directory import DirectoryStore
from executor.backends import Backends
from executor.jobs.ended_jobs import StartedJob, ended_jobs
from executor.jobs.job_list import JobFilter, listed
from executor.jobs.job_lookup import find_job, newest_first

MINUTE = 60_000
COUNT = 80
"""More jobs than make an index worth writing."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where indexes are. Files count as settled at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    now = time.time_ns
    monkeypatch.setattr("executor.jobs.ended_jobs.time.time_ns", lambda: now() + 10**10)
    return tmp_path / "cache/bai/jobs"


@pytest.fixture
def folder(tmp_path: Path, cache: Path) -> Path:
    """Many jobs that have ended, a minute apart."""
    store = tmp_path / "jobs"
    for number in range(COUNT):
        write(store, f"job-{number:02}", START + number * MINUTE)
    return store


def write(store: Path, job_id: str, started: int, *, outcome: str = "succeeded") -> None:
    job = store / job_id
    job.mkdir(parents=True)
    (job / "job.toml").write_text(f'version = 1\n[job]\nid = "{job_id}"\n[benchmark]\nargv = ["true"]\n')
    write_result(job, started, outcome=outcome)


def write_result(job: Path, started: int, *, outcome: str = "succeeded") -> None:
    failed = outcome != "succeeded"
    result = {"outcome": outcome, "status": "FAILED" if failed else "SUCCEEDED", "exit_code": int(failed)}
    times = {"started": started, "ended": started + 5000}
    (job / "result.json").write_text(json.dumps({**result, **times, "sentence": "It has ended."}))


def newest(folder: Path, count: int = 3, only: Sequence[str] = ()) -> list[str]:
    """Return what a list shows."""
    found = listed([DirectoryStore(folder)], count, Backends(), only=JobFilter(statuses=only))
    return [each.status.job_id for each in found.jobs]


def last(folder: Path) -> str:
    return find_job([DirectoryStore(folder)], "last").job_id


@pytest.fixture
def results_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs whose results were read."""
    read: list[str] = []
    get = DirectoryStore.get

    def note(store: DirectoryStore, key: str, *, start: int = 0, limit: int | None = None) -> bytes:
        if key.endswith("/result.json"):
            read.append(key.partition("/")[0])
        return get(store, key, start=start, limit=limit)

    monkeypatch.setattr(DirectoryStore, "get", note)
    return read


def test_a_limited_list_reads_only_the_results_of_the_jobs_that_it_shows(
    folder: Path, results_read: list[str]
) -> None:
    newest(folder)
    results_read.clear()

    assert newest(folder) == ["job-77", "job-78", "job-79"]
    assert set(results_read) == {"job-77", "job-78", "job-79"}
    results_read.clear()
    assert last(folder) == "job-79"
    assert results_read == []


def test_a_list_by_status_reads_no_jobs_with_other_statuses(folder: Path, results_read: list[str]) -> None:
    shutil.rmtree(folder / "job-07")
    write(folder, "job-07", START, outcome="failed")
    HandmadeJob(folder, "runs", started=START)
    newest(folder)
    results_read.clear()

    assert newest(folder, only=["Failed"]) == ["job-07"]
    assert newest(folder, only=["died"]) == ["runs"]
    assert set(results_read) == {"job-07"}


def test_no_index_is_written_for_a_few_jobs(tmp_path: Path, cache: Path) -> None:
    for number in range(5):
        write(tmp_path / "jobs", f"job-{number}", START + number)

    assert newest(tmp_path / "jobs") == ["job-2", "job-3", "job-4"]
    assert not cache.exists()


def replaced(folder: Path) -> None:
    shutil.rmtree(folder / "job-03")
    write(folder, "job-03", START + 900 * MINUTE)


def replaced_by_rename(folder: Path) -> None:
    write(folder.parent / "other", "job-03", START + 900 * MINUTE)
    shutil.rmtree(folder / "job-03")
    (folder.parent / "other/job-03").rename(folder / "job-03")


def changed_in_place(folder: Path) -> None:
    """With another start of as many digits, and the times of the file before."""
    result = folder / "job-03/result.json"
    before = result.stat()
    write_result(folder / "job-03", START + 900 * MINUTE)
    os.utime(result, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert result.stat().st_size == before.st_size


def runs_again(folder: Path) -> None:
    shutil.rmtree(folder / "job-03")
    HandmadeJob(folder, "job-03", started=START + 900 * MINUTE).event("agent_started", pid=1)


@pytest.mark.parametrize("change", [replaced, replaced_by_rename, changed_in_place, runs_again])
def test_a_replaced_job_is_read_again(folder: Path, change: Callable[[Path], None]) -> None:
    assert newest(folder) == ["job-77", "job-78", "job-79"]

    change(folder)

    assert newest(folder) == ["job-78", "job-79", "job-03"]
    assert last(folder) == "job-03"


def test_a_deleted_job_is_not_listed_from_the_index(folder: Path) -> None:
    newest(folder)

    shutil.rmtree(folder / "job-79")
    (folder / "job-78/job.toml").unlink()

    assert newest(folder, 2) == ["job-76", "job-77"]
    assert last(folder) == "job-77"
    for job in folder.iterdir():
        shutil.rmtree(job)
    assert newest(folder) == []


def test_a_result_that_has_just_been_written_is_read_again(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parents[1]))

    assert newest(folder) == ["job-77", "job-78", "job-79"]
    assert not cache.exists()


def _truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    # A digit of a start: the file is still valid JSON.
    at = content.rfind(str(START + 79 * MINUTE).encode()) + 3
    content[at] = ord("0")
    file.write_bytes(content)


def _other_version(file: Path) -> None:
    content = file.read_bytes().partition(b"\n")[2].replace(b'"format":1', b'"format":2')
    _with_checksum(file, content.replace(b"179", b"000"))


def _other_shape(file: Path) -> None:
    _with_checksum(file, json.dumps({"format": 1, "folder": "x", "jobs": [1]}).encode())


def _with_checksum(file: Path, content: bytes) -> None:
    import zlib

    file.write_bytes(b"%08x\n%b" % (zlib.crc32(content), content))


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _flip,
        _other_version,
        _other_shape,
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"\xff" * 100),
        lambda file: file.write_bytes(b"[" * 10**6),
        lambda file: (file.unlink(), file.mkdir()),
    ],
)
def test_a_damaged_index_counts_as_empty(folder: Path, cache: Path, damage: Callable[[Path], object]) -> None:
    newest(folder)
    (index,) = cache.iterdir()

    damage(index)

    assert newest(folder) == ["job-77", "job-78", "job-79"]
    assert last(folder) == "job-79"


def test_each_store_folder_has_its_own_index(folder: Path, cache: Path) -> None:
    newest(folder)
    (index,) = cache.iterdir()
    other = folder.parent / "moved"
    folder.rename(other)
    (other / "job-79").rename(other / "a")

    assert newest(other) == ["job-77", "job-78", "a"]
    (second,) = set(cache.iterdir()) - {index}
    shutil.copy(second, index)
    assert newest(other) == ["job-77", "job-78", "a"]


@pytest.mark.parametrize("obstacle", ["cache", "cache/bai", "cache/bai/jobs"])
def test_without_a_cache_folder_each_job_is_read(tmp_path: Path, folder: Path, obstacle: str) -> None:
    place = tmp_path / obstacle
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()

    for _ in range(2):
        assert newest(folder) == ["job-77", "job-78", "job-79"]


def test_without_a_home_folder_each_job_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)

    assert newest(folder) == ["job-77", "job-78", "job-79"]


KILLED = """
import os, signal, sys
from pathlib import Path
import executor.jobs.ended_jobs as index

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

real = index.time.time_ns
index.time.time_ns = lambda: real() + 10**10
step = sys.argv[2]
if step == "begin":
    index.write_atomic = die
elif step == "half":
    from bai_agent.job import run_directory
    def half(descriptor, content):
        os.write(descriptor, content[:len(content) // 2])
        die()
    run_directory.write_all = half
elif step == "sync":
    os.fsync = die
elif step == "rename":
    Path.replace = die
from executor.jobs.job_lookup import find_job
from bai_agent.job.store.directory import DirectoryStore
find_job([DirectoryStore(Path(sys.argv[1]))], "last")
if step == "end":
    die()
"""


@pytest.mark.parametrize("step", ["begin", "half", "sync", "rename", "end"])
@pytest.mark.parametrize("before", [False, True])
def test_a_kill_while_the_index_is_written_changes_no_answer(
    folder: Path, cache: Path, step: str, before: bool
) -> None:
    if before:
        newest(folder)
        for number in range(COUNT):
            shutil.rmtree(folder / f"job-{number:02}")
            write(folder, f"job-{number:02}", START - number * MINUTE)

    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), step], timeout=60, check=False)

    assert done.returncode == -9
    expected = ["job-02", "job-01", "job-00"] if before else ["job-77", "job-78", "job-79"]
    assert newest(folder) == expected
    # What it left goes with a later index.
    drafts = [each for each in cache.iterdir() if each.suffix == ".tmp"]
    for each in drafts:
        os.utime(each, (0, 0))
    for number in range(COUNT):
        write_result(folder / f"job-{number:02}", START + number * MINUTE)
    assert newest(folder) == ["job-77", "job-78", "job-79"]
    assert [each.suffix for each in cache.iterdir()] == [".json"]


def test_commands_at_the_same_time_give_the_same_answer(folder: Path, cache: Path) -> None:
    wrong: list[object] = []

    def look() -> None:
        for _ in range(10):
            found = [each.job_id for each in newest_first(DirectoryStore(folder))[:2]]
            if found != ["job-79", "job-78"]:
                wrong.append(found)
            for index in cache.glob("*.json"):
                index.unlink(missing_ok=True)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)

    assert wrong == []
    assert not any(each.is_alive() for each in threads)


def test_a_result_without_a_start_is_not_indexed(folder: Path) -> None:
    read: list[str] = []

    def nothing(job_id: str) -> StartedJob | None:
        read.append(job_id)
        return None

    for _ in range(2):
        assert ended_jobs(folder, ["job-01", "job-02", "none"], nothing) == {}
    assert sorted(read) == ["job-01", "job-01", "job-02", "job-02"]
