"""Permissions of a job's folders: only their owner has access, and the benchmark's user has access to the benchmark's folders."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from agent_runs import begun, records_of, result_of, run_agent, start_agent, wait_until, write_job
from local_cli import local_cli

from bai_agent.job.outcome import ExitCode

_STRANGER = 64321
_BENCHMARK = """
set -eu
id -u
umask
cat "$BAI_SCRIPTS_PATH/sub/words"
echo more > "$BAI_SCRIPTS_PATH/sub/mine"
echo '{"emitted": 2}' > "$BENCHMARK_AI_FIFO_FILEPATH"
echo loss=0.5 >> /dev/stdout
touch artifact
"""


def with_umask(umask: str) -> tuple[str, ...]:
    return ("sh", "-c", f'umask {umask}; exec "$@"', "sh")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def may_open(path: Path, *, user: int = _STRANGER) -> bool:
    """Return whether another user can open a file, to lock it for instance."""
    drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    done = subprocess.run(
        [*drop, "sh", "-c", 'exec 9<"$0"', path], stderr=subprocess.DEVNULL, timeout=60, check=False
    )
    return done.returncode == 0


def _most_locked() -> str:
    """Return how much memory root may lock here, as a line of ulimit's; a container may have a bound."""
    most = "(ulimit -l unlimited) 2>/dev/null && echo unlimited || ulimit -H -l"
    return subprocess.run(["sh", "-c", most], stdout=subprocess.PIPE, text=True, check=True).stdout


def nobodys_job(folder: Path, argv: list[str], **tables: Any) -> Path:
    scripts = folder / "scripts"
    (scripts / "sub").mkdir(parents=True)
    words = scripts / "sub" / "words"
    words.write_text("some words\n")
    words.chmod(0o600)
    return write_job(
        folder,
        argv,
        benchmark={"user": "nobody", **tables.pop("benchmark", {})},
        sources=[{"kind": "scripts", "src": scripts.as_uri(), "path": ".", "directory": True}],
        store={"url": (folder / "a" / "store").as_uri()},
        metrics=[{"name": "loss", "pattern": r"loss=(\S+)"}],
        output={"artifacts": ["artifact"], **tables.pop("output", {})},
        **tables,
    )


@pytest.mark.parametrize("umask", ["000", "022", "077"])
def test_only_the_owner_can_read_a_run_directory(folder: Path, umask: str) -> None:
    job = write_job(folder, ["sh", "-c", "umask"])
    rundir = folder / "run"

    assert run_agent(job, rundir, prefix=with_umask(umask)) == ExitCode.SUCCEEDED

    assert mode(rundir) == 0o700
    assert (rundir / "output.log").read_text() == f"0{umask}\n"
    assert {mode(path) for path in rundir.glob("*.lock")} == {0o600}
    assert not any(may_open(path) for path in rundir.glob("*.lock"))


def test_files_of_a_running_job_are_accessible_only_to_their_owner(folder: Path) -> None:
    job = write_job(folder, ["find", "..", "-type", "f", "-perm", "/077"])
    rundir = folder / "run"

    assert run_agent(job, rundir, prefix=with_umask("022")) == ExitCode.SUCCEEDED

    assert (rundir / "output.log").read_text() == ""


@pytest.mark.root
def test_the_limit_on_locked_memory_is_raised_for_a_benchmark_of_another_user(folder: Path) -> None:
    job = nobodys_job(folder, ["sh", "-c", "ulimit -S -l; id -un; touch artifact"])
    rundir = folder / "a" / "store" / "job" / "attempts" / "0" / "nodes" / "0"

    assert (
        run_agent(job, rundir, prefix=("sh", "-c", 'ulimit -S -l 64; exec "$@"', "sh")) == ExitCode.SUCCEEDED
    )

    assert (rundir / "output.log").read_text() == f"{_most_locked()}nobody\n"


def test_only_the_owner_can_read_a_job_store(folder: Path) -> None:
    cli = local_cli(folder)
    before = os.umask(0)
    try:
        cli.go_file.touch()
        assert cli.bai("run", cli.descriptor(), "--job-id", "one", "--", cli.go_file).code == 0
    finally:
        os.umask(before)

    folders = [cli.store, *(path for path in cli.store.rglob("*") if path.is_dir())]
    assert {mode(path) for path in folders if path.name != "scripts"} == {0o700}


@pytest.mark.root
@pytest.mark.parametrize("umask", ["000", "077"])
def test_the_benchmarks_user_owns_only_the_benchmarks_folders(folder: Path, umask: str) -> None:
    uid = pwd.getpwnam("nobody").pw_uid
    job = nobodys_job(folder, [], benchmark={"script": f"#!/bin/sh\n{_BENCHMARK}"})
    node = folder / "a" / "store" / "job" / "attempts" / "0" / "nodes" / "0"

    code = run_agent(job, node, prefix=with_umask(umask))

    assert code == ExitCode.SUCCEEDED, result_of(node)
    output = (node / "output.log").read_text().splitlines()
    assert output == [str(uid), "0022", "some words", "loss=0.5"]
    assert {record["name"] for record in records_of(node)} >= {"loss", "emitted"}
    # The way to its folders shows nobody what lies beside it.
    way = [each for each in (node, *node.parents) if each.is_relative_to(folder / "a" / "store")]
    assert {mode(each) for each in way} == {0o711}
    own = {node / name for name in ("work", "scripts", "script", "output.log")}
    assert {path.stat().st_uid for path in own} == {uid}
    assert (node / "scripts" / "sub").stat().st_uid == uid
    others = [path for path in node.iterdir() if path not in own]
    assert len(others) > 10
    assert [(path, mode(path)) for path in others if mode(path) & 0o077] == []
    assert not may_open(node / "shim.lock", user=uid)


@pytest.mark.root
def test_a_folder_that_the_benchmarks_user_cannot_enter_fails_the_job_before_its_pull(folder: Path) -> None:
    closed = folder / "a"
    closed.mkdir(mode=0o700)
    job = nobodys_job(folder, ["true"])
    node = closed / "store" / "job" / "attempts" / "0" / "nodes" / "0"

    assert run_agent(job, node) == ExitCode.OURS

    result = result_of(node)
    assert result["outcome"] == "prepare_failed"
    assert f'user "nobody" cannot enter {closed}, ' in result["sentence"]
    assert "pull" not in result["phases"]
    assert not (node / "started.json").exists()


@pytest.mark.root
def test_a_benchmark_user_that_does_not_exist_fails_the_job_before_its_pull(tmp_path: Path) -> None:
    job = write_job(tmp_path, ["true"], benchmark={"user": "no-such-user"})

    assert run_agent(job, tmp_path / "run") == ExitCode.OURS

    result = result_of(tmp_path / "run")
    assert (result["outcome"], "pull" in result["phases"]) == ("prepare_failed", False)
    assert '"no-such-user" does not exist' in result["sentence"]


@pytest.mark.root
def test_a_restarted_agent_adopts_a_benchmark_of_another_user(folder: Path) -> None:
    go = folder / "go"
    waits = f"echo begun; while [ ! -e {go} ]; do sleep 0.05; done; echo loss=0.25"
    job = nobodys_job(folder, ["sh", "-c", waits], output={})
    node = folder / "a" / "store" / "job" / "attempts" / "0" / "nodes" / "0"
    with start_agent(job, node) as agent:
        wait_until(begun(node))
        agent.kill()
    go.touch()

    assert run_agent(job, node) == ExitCode.SUCCEEDED

    assert result_of(node)["metrics"]["per_metric"] == {"loss": 1}
