"""Which job a person means, how it stands, and which jobs may be deleted."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from handmade_job import START, HandmadeJob, job_status

from bai_agent.errors import StoreError
from executor.backends.local.agent import local_agent
from executor.backends.local.folder_store import store_at
from executor.errors import UsageError
from executor.jobs.job_list import last_values
from executor.jobs.job_lookup import find_job
from executor.jobs.prune import prune_jobs

DAY = 86_400_000


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock as a live agent or shim would."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def test_a_job_is_named_by_its_id_or_unique_prefix(tmp_path: Path) -> None:
    for job_id in ("digits-1", "digits-12", "torch-1"):
        HandmadeJob(tmp_path, job_id)
    store = store_at(tmp_path)

    assert find_job([store], "digits-1").job_id == "digits-1"
    assert find_job([store], "digits-12").job_id == "digits-12"
    assert find_job([store], "to").job_id == "torch-1"
    with pytest.raises(UsageError, match="may mean any of digits-1, digits-12"):
        find_job([store], "dig")
    with pytest.raises(UsageError, match='did you mean "torch-1"'):
        find_job([store], "trch-1")
    for nonsense in ("", ".", "..", "../x", "digits-1/attempts", "zzz"):
        with pytest.raises(UsageError, match="there is no job"):
            find_job([store], nonsense)


def test_last_is_the_job_that_was_started_last(tmp_path: Path) -> None:
    HandmadeJob(tmp_path, "b", started=START).ends()
    HandmadeJob(tmp_path, "a", started=START + 5000).event("agent_started", pid=1)
    HandmadeJob(tmp_path, "c", started=START + 1000).ends()

    assert find_job([store_at(tmp_path)], "last").job_id == "a"


def test_an_empty_store_and_a_file_give_different_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are no jobs in"):
        find_job([store_at(tmp_path / "nothing")], "last")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not a folder"):
        store_at(tmp_path / "file")


def test_a_job_in_its_run_phase_is_shown_as_dead_once_its_agent_died(tmp_path: Path) -> None:
    # Given a job in its run phase
    job = HandmadeJob(tmp_path)
    job.event("agent_started", pid=1)
    job.phases("prepare", "pull", "join", until="run")

    # When its agent lives
    with held(job.node / "agent.lock"):
        alive = job_status(job.record)
    # And when it has died
    dead = job_status(job.record)

    assert (alive.status, alive.phase, alive.agent_alive) == ("RUNNING", "run", True)
    assert (dead.status, dead.phase, dead.agent_alive) == ("DIED", "run", False)


@pytest.mark.parametrize(
    ("phase", "status"), [(None, "PENDING"), ("pull", "INITIALIZING"), ("drain", "RUNNING")]
)
def test_the_status_of_a_running_job_depends_on_its_phase(
    tmp_path: Path, phase: str | None, status: str
) -> None:
    job = HandmadeJob(tmp_path)
    job.event("agent_started", pid=1)
    job.phases(until=phase)

    with held(job.node / "agent.lock"):
        assert job_status(job.record).status == status


def test_a_result_written_only_by_the_node_is_final(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    job.ends("cancelled", 4, sentence="The job was cancelled.")

    now = job_status(job.record)
    assert (now.status, now.outcome, now.exit_code, now.seconds) == ("CANCELED", "cancelled", 4, 12.0)

    (tmp_path / "digits-1" / "result.json").rename(job.node / "result.json")
    assert job_status(job.record) == now


def test_the_last_value_of_each_metric_is_found_among_thousands(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    job.measures("loss", *[float(each) for each in range(5000)], units="nats")
    job.measures("accuracy", 0.5)

    values = last_values(job.record)
    assert values["loss"]["value"] == 4999.0
    assert values["accuracy"]["value"] == 0.5


def test_prune_deletes_old_ended_jobs_and_none_that_may_run(tmp_path: Path) -> None:
    now = START + 40 * DAY
    HandmadeJob(tmp_path, "old").ends()
    HandmadeJob(tmp_path, "new", started=now - DAY).ends()
    died = HandmadeJob(tmp_path, "died")
    died.event("agent_started", pid=1)
    running = HandmadeJob(tmp_path, "running")
    running.event("agent_started", pid=1)
    orphan = HandmadeJob(tmp_path, "orphan")
    orphan.event("agent_started", pid=1)
    store = store_at(tmp_path)

    with held(running.node / "agent.lock"), held(orphan.node / "shim.lock"):
        announced = [each.job_id for each in prune_jobs(store, before_ms=now - 30 * DAY, dry_run=True)]
        assert sorted(each.name for each in tmp_path.iterdir()) == ["died", "new", "old", "orphan", "running"]
        deleted = [each.job_id for each in prune_jobs(store, before_ms=now - 30 * DAY, dry_run=False)]

    assert announced == deleted == ["died", "old"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["new", "orphan", "running"]


def test_prune_counts_what_deleting_frees(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path / "store", "old")
    job.ends()
    before = next(prune_jobs(store_at(tmp_path / "store"), before_ms=START + 40 * DAY, dry_run=True)).bytes
    # 1 MiB of three names, two links to what is elsewhere
    output = job.node / "big"
    output.write_bytes(os.urandom(2**20))
    os.link(output, job.node / "log" / "second")
    os.link(output, job.node / "third")
    (tmp_path / "elsewhere").write_bytes(os.urandom(2**20))
    os.link(tmp_path / "elsewhere", job.node / "hard")
    (job.node / "soft").symlink_to(tmp_path / "elsewhere")

    (pruned,) = prune_jobs(store_at(tmp_path / "store"), before_ms=START + 40 * DAY, dry_run=False)

    assert 2**20 <= pruned.bytes - before < 2**20 + 65536
    assert (tmp_path / "elsewhere").stat().st_size == 2**20


def test_prune_skips_links_and_continues(tmp_path: Path) -> None:
    target = HandmadeJob(tmp_path / "elsewhere", "a-job")
    target.ends()
    HandmadeJob(tmp_path / "store", "b-job").ends()
    (tmp_path / "store" / "a-job").symlink_to(tmp_path / "elsewhere" / "a-job")
    left: list[str] = []

    pruned = prune_jobs(
        store_at(tmp_path / "store"), before_ms=START + 40 * DAY, dry_run=False, left=left.append
    )

    assert [each.job_id for each in pruned] == ["b-job"]
    assert left == [
        f"{tmp_path}/store/a-job is a symbolic link, to {tmp_path}/elsewhere/a-job; it is not deleted"
    ]
    assert target.record.exists()
    assert [each.name for each in (tmp_path / "store").iterdir()] == ["a-job"]


def test_a_job_that_cannot_be_deleted_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a-job", "b-job"):
        HandmadeJob(tmp_path, name).ends()
    # A folder that is a mount point cannot be removed, not even by root.
    rmdir = os.rmdir

    def busy(path: str, **options: int) -> None:
        if str(path).endswith("a-job"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        rmdir(path, **options)

    monkeypatch.setattr(os, "rmdir", busy)
    failures: list[str] = []

    pruned = prune_jobs(
        store_at(tmp_path), before_ms=START + 40 * DAY, dry_run=False, on_failure=failures.append
    )

    assert [each.job_id for each in pruned] == ["b-job"]
    assert len(failures) == 1
    assert failures[0].startswith("a-job could not be deleted: the job store failed at ")


def test_no_agent_can_start_in_a_job_that_is_being_deleted(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    agent = local_agent(job.record)
    assert agent is not None

    with agent.kept_away() as nothing_lives:
        assert nothing_lives
        assert agent.alive()
        with agent.kept_away() as again:
            assert not again


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A folder that this process may not look into, even where it is root's."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(before)


def test_a_store_that_may_not_be_read_is_a_sentence(closed: Path) -> None:
    with pytest.raises(
        StoreError, match=f"the job store {closed}/store cannot be read: Permission denied; .*--store"
    ):
        store_at(closed / "store")
