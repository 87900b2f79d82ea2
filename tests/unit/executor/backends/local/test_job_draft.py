"""A job appears in its store complete or not at all, despite concurrent submissions and kills."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bai_agent.errors import StoreError
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from executor.backends.local import local_submission as submission
from executor.backends.local.local_submission import job_draft, remove_abandoned
from executor.descriptor import load
from executor.errors import UsageError
from executor.jobs.job_lookup import job_ids
from executor.planning.request import JobRequest, Submitted, read_request

_DESCRIPTOR = """\
spec_version = "0.1.0"
[info]
description = "Says ok"
execution_engine = "local"
[hardware]
instance_type = "local"
strategy = "single_node"
[ml]
benchmark_code = "sh ok.sh"
[ml.script]
path = "."
"""


def submit(job_request: JobRequest, store: DirectoryStore, *, job_id: str) -> Submitted:
    return submission.submit(job_request, read_request(job_request)[0], store, job_id=job_id)


@pytest.fixture
def job_request(tmp_path: Path) -> JobRequest:
    folder = tmp_path / "benchmark"
    folder.mkdir()
    (folder / "b.toml").write_text(_DESCRIPTOR)
    (folder / "ok.sh").write_text("echo ok\n")
    return JobRequest(file=folder / "b.toml")


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


def everything(store: DirectoryStore) -> list[str]:
    return sorted(path.relative_to(store.folder).as_posix() for path in store.folder.rglob("*"))


def test_one_of_two_concurrent_submissions_of_a_job_succeeds(
    job_request: JobRequest, store: DirectoryStore
) -> None:
    with job_draft(store, "one") as first:
        # the second one begins, and is done, while the first one still copies
        second = submit(job_request, store, job_id="one")
        assert not first.publish(b"")

    assert second.new
    assert not submit(job_request, store, job_id="one").new
    assert JobRecord(store, "one").job() == second.job
    assert everything(store) == [
        "one",
        "one/attempts",
        "one/attempts/0",
        "one/attempts/0/nodes",
        "one/attempts/0/nodes/0",
        "one/attempts/0/nodes/0/scripts",
        "one/attempts/0/nodes/0/scripts/b.toml",
        "one/attempts/0/nodes/0/scripts/ok.sh",
        "one/job.toml",
        "one/request.json",
    ]


def test_a_refused_submission_leaves_no_files(job_request: JobRequest, store: DirectoryStore) -> None:
    (job_request.file.parent / "outside").symlink_to("/etc/hostname")

    with pytest.raises(Exception, match="a link out of the folder"):
        submit(job_request, store, job_id="one")

    assert everything(store) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            '[env.secrets]\nTOKEN = "env:BAI_TEST_UNSET"\n',
            r"env\.secrets\.TOKEN: .* BAI_TEST_UNSET is not set",
        ),
        ("", r'BAI_KAFKA_BROKERS: "broker:99999" is not a broker'),
    ],
)
def test_a_job_that_cannot_start_is_refused_before_it_is_created(
    job_request: JobRequest, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, more: str, said: str
) -> None:
    job_request.file.write_text(_DESCRIPTOR + more)
    monkeypatch.setenv("BAI_CONFIG", "/dev/null")
    if not more:
        monkeypatch.setenv("BAI_KAFKA_BROKERS", "broker:99999")

    with pytest.raises(UsageError, match=said):
        submit(job_request, store, job_id="one")

    assert not store.folder.exists()
    monkeypatch.setenv("BAI_TEST_UNSET", "s3cret")
    monkeypatch.setenv("BAI_KAFKA_BROKERS", "broker:9092")
    assert submit(job_request, store, job_id="one").new
    # A job that is there is followed, whatever is set now
    monkeypatch.delenv("BAI_TEST_UNSET")
    assert not submit(job_request, store, job_id="one").new


_WAITS = """
import sys, time
from pathlib import Path
from bai_agent.job.store.directory import DirectoryStore
from executor.backends.local.local_submission import job_draft
with job_draft(DirectoryStore(Path(sys.argv[1])), "one") as draft:
    draft.scripts().mkdir()
    print("copying", flush=True)
    time.sleep(600)
"""


def test_files_of_a_killed_submission_are_removed_by_the_next(
    job_request: JobRequest, store: DirectoryStore
) -> None:
    maker = subprocess.Popen([sys.executable, "-c", _WAITS, store.folder], stdout=subprocess.PIPE)
    with maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == b"copying\n"
        submit(job_request, store, job_id="two")
        remove_abandoned(store)
        alive = everything(store)
        maker.kill()
    assert any(name.endswith("/one/attempts/0/nodes/0/scripts") for name in alive)
    assert job_ids(store) == ["two"]

    submit(job_request, store, job_id="three")

    assert {name.partition("/")[0] for name in everything(store)} == {"two", "three"}


@pytest.mark.parametrize("has_podman", [False, True])
def test_a_container_without_podman_causes_a_warning(
    job_request: JobRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_podman: bool
) -> None:
    job_request.file.write_text(_DESCRIPTOR.replace("[ml]", "[env]\ncontainer = 'r/t:1'\n[ml]"))
    (tmp_path / "bin").mkdir()
    if has_podman:
        (tmp_path / "bin" / "podman").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    descriptor, _ = load(job_request.file)
    assert descriptor is not None

    found = submission.preflight(job_request, descriptor)

    assert [each.key for each in found] == ([] if has_podman else ["env.container"])


def test_a_folder_that_is_not_a_job_but_has_its_name_is_reported(
    job_request: JobRequest, store: DirectoryStore
) -> None:
    (store.folder / "one").mkdir(parents=True)
    (store.folder / "one" / "mine.txt").touch()

    with pytest.raises(StoreError, match=r"/one already exists and holds no job; move the folder away"):
        submit(job_request, store, job_id="one")

    assert everything(store) == ["one", "one/mine.txt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_disk_too_small_for_the_scripts_is_named(job_request: JobRequest, store: DirectoryStore) -> None:
    store.folder.mkdir()
    (job_request.file.parent / "model.bin").write_bytes(bytes(3 << 20))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", store.folder], check=True, timeout=60)
    try:
        with pytest.raises(
            StoreError, match=r"no space is left for .*/benchmark \(3,1.* bytes in 3 files\); free"
        ):
            submit(job_request, store, job_id="one")
        assert everything(store) == []
    finally:
        subprocess.run(["umount", "-l", store.folder], check=True, timeout=60)
