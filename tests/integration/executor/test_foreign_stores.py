"""A store written by another user is read, and its claims never cause a process to be killed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from handmade_job import HandmadeJob
from local_cli import LocalCli, local_cli
from nobodys_jobs import what_is_in

from bai_agent.shim.proc import boot_id, read_process

_STRANGER = 64321


@pytest.fixture
def cli(tmp_path: Path) -> LocalCli:
    return local_cli(tmp_path)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user that leads a session, as a benchmark's first process does."""
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
        yield process
        process.kill()


def started_job(cli: LocalCli) -> HandmadeJob:
    """Return a job whose benchmark was started, by its files, and whose agent goes on with that."""
    job = HandmadeJob(cli.store, "theirs")
    job.phases("prepare", "pull", "join", until="run")
    with (cli.store / "theirs" / "job.toml").open("a") as file:
        file.write('[limits]\ndrain = "1s"\n')
    return job


def naming(cli: LocalCli, bystander: subprocess.Popen[bytes]) -> HandmadeJob:
    """Return a job that claims to have started the bystander, with what everybody may read in /proc."""
    job = started_job(cli)
    process = read_process(bystander.pid)
    assert process is not None
    said = {"pid": process.pid, "start": process.start, "shim_pid": process.pid, "shim_start": process.start}
    (job.node / "started.json").write_text(json.dumps({**said, "boot_id": boot_id(), "time": job.started}))
    began = {
        "event": "began", "run": 0, "repeat": 0, "output_bytes": 0, "emit_bytes": 0, "boot_id": boot_id(),
        "pid": process.pid, "start": process.start, "time": job.started,
    }  # fmt: skip
    (job.node / "repeats.jsonl").write_text(json.dumps(began) + "\n")
    (job.node / "shim.lock").touch()
    return job


def give_away(folder: Path, *, but: Path | None = None) -> None:
    for path in (folder, *folder.rglob("*")):
        if path != but:
            os.lchown(path, _STRANGER, _STRANGER)


def test_a_process_that_only_a_forged_record_names_is_not_killed(
    cli: LocalCli, bystander: subprocess.Popen[bytes]
) -> None:
    naming(cli, bystander)

    cancelled = cli.bai("cancel", "theirs")
    waited = cli.bai("status", "theirs", "--wait")

    assert cancelled.code == 0, cancelled.stderr
    assert waited.code == 4, waited.stderr
    assert bystander.poll() is None


def test_a_process_in_a_session_that_a_forged_record_names_is_not_killed(cli: LocalCli) -> None:
    # Given a process in a session whose leader has gone, as in a closed terminal
    lines = "sleep 300 & echo $!"
    leader = subprocess.Popen(["sh", "-c", lines], start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert leader.stdout is not None
    with leader.stdout:
        pid = int(leader.stdout.readline())
    began = read_process(pid)
    assert began is not None
    job = started_job(cli)
    said = {"pid": leader.pid, "start": 0, "shim_pid": leader.pid, "shim_start": 0, "time": job.started}
    (job.node / "started.json").write_text(json.dumps({**said, "boot_id": boot_id()}))
    (job.node / "shim.lock").touch()
    leader.wait()
    try:
        cli.bai("cancel", "theirs")
        assert cli.bai("status", "theirs", "--wait").code == 4

        now = read_process(pid)
        assert now is not None
        assert (now.start, now.state) == (began.start, "S")
    finally:
        os.kill(pid, 9)


@pytest.mark.root
@pytest.mark.parametrize("whole", [True, False], ids=["store", "job"])
@pytest.mark.parametrize(
    "command",
    [("cancel", "theirs"), ("resume", "theirs"), ("run", "benchmark.toml", "--job-id", "theirs")],
    ids=lambda command: command[0],
)
def test_commands_on_another_users_job_show_it_and_change_nothing(
    cli: LocalCli, bystander: subprocess.Popen[bytes], command: tuple[str, ...], whole: bool
) -> None:
    naming(cli, bystander)
    cli.descriptor()
    give_away(cli.store, but=None if whole else cli.store)
    before = sorted(cli.store.rglob("*"))

    done = cli.bai(*command)
    listed = cli.bai("list")
    shown = cli.bai("status", "theirs")

    assert done.code == 2, done.stdout + done.stderr
    assert f"belongs to the user {_STRANGER}, and only that user may change it" in done.stderr
    assert sorted(cli.store.rglob("*")) == before
    assert bystander.poll() is None
    assert "theirs" in listed.stdout
    assert shown.code == 0, shown.stderr


@pytest.mark.root
def test_another_users_job_is_not_pruned(cli: LocalCli) -> None:
    for name in ("mine", "theirs"):
        job = HandmadeJob(cli.store, name)
        job.ends()
    give_away(cli.store / "theirs")

    done = cli.bai("prune", "--older-than", "1s")

    assert f"belongs to the user {_STRANGER}" in done.stderr
    assert [path.name for path in cli.store.iterdir()] == ["theirs"]


def ended_job(cli: LocalCli) -> HandmadeJob:
    """Return a job that has ended and kept its log, with what a killed extraction left beside it."""
    job = HandmadeJob(cli.store, "theirs")
    job.prints("loss=0.5\n")
    job.ends()
    (cli.store / "theirs" / ".extract-left").mkdir()
    return job


@pytest.mark.root
@pytest.mark.parametrize("whole", [True, False], ids=["store", "job"])
def test_another_users_job_is_not_extracted_again(cli: LocalCli, whole: bool) -> None:
    ended_job(cli)
    give_away(cli.store, but=None if whole else cli.store)
    before = what_is_in(cli.store)

    done = cli.bai("extract", "theirs")

    assert done.code == 2, done.stdout + done.stderr
    assert f"belongs to the user {_STRANGER}, and only that user may change it" in done.stderr
    assert what_is_in(cli.store) == before
    assert cli.bai("logs", "theirs").stdout == "loss=0.5\n"


def test_bai_extract_refuses_a_job_behind_a_symbolic_link(cli: LocalCli, tmp_path: Path) -> None:
    job = ended_job(cli)
    job.node.rename(tmp_path / "elsewhere")
    job.node.symlink_to(tmp_path / "elsewhere")
    before = what_is_in(tmp_path / "elsewhere")

    done = cli.bai("extract", "theirs")

    assert done.code == 2, done.stdout + done.stderr
    assert "is a symbolic link" in done.stderr
    assert what_is_in(tmp_path / "elsewhere") == before


@pytest.mark.parametrize("place", [".", "attempts", "attempts/0/nodes/0"])
def test_a_link_in_place_of_a_jobs_folder_is_not_followed(cli: LocalCli, tmp_path: Path, place: str) -> None:
    job = HandmadeJob(cli.store, "theirs")
    job.phases("prepare", until="run")
    folder = cli.store / "theirs" / place
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    before = sorted((tmp_path / "elsewhere").rglob("*"))

    done = cli.bai("cancel", "theirs")

    assert done.code == 2
    assert "is a symbolic link" in done.stderr
    assert sorted((tmp_path / "elsewhere").rglob("*")) == before


@pytest.mark.parametrize("name", ["started.json", "shim.lock", "agent.lock"])
def test_a_fifo_in_place_of_a_file_does_not_block_a_command(cli: LocalCli, name: str) -> None:
    job = HandmadeJob(cli.store, "theirs")
    job.phases("prepare", until="run")
    (job.node / name).unlink(missing_ok=True)
    os.mkfifo(job.node / name)

    for command in (("status", "theirs"), ("prune", "--dry-run")):
        done = cli.bai(*command)
        assert done.code == 0, done.stderr


@pytest.mark.parametrize(
    "said",
    ["{}", '{"boot_id": "BOOT"}', '{"boot_id": "BOOT", "pid": "x", "start": null}', '{"boot_id": "BOOT", "pid": 1e400}',
     '{"boot_id": "BOOT", "pid": 99999999999999999999, "start": 1, "shim_pid": 1, "shim_start": 1}', "[]"],
)  # fmt: skip
def test_commands_tolerate_a_start_record_without_a_valid_process(cli: LocalCli, said: str) -> None:
    job = started_job(cli)
    (job.node / "started.json").write_text(said.replace("BOOT", boot_id()))
    (job.node / "shim.lock").touch()

    for command in (("status", "theirs"), ("prune", "--older-than", "1s", "--dry-run"), ("cancel", "theirs")):
        done = cli.bai(*command)
        assert done.code == 0, done.stderr
    assert cli.bai("status", "theirs", "--wait").code == 4
