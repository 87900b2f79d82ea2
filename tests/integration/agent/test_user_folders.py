"""Root's agent and a benchmark of another user: in folders that this user can write, root touches nothing outside of them."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from pathlib import Path

import pytest
from agent_runs import environment, result_of
from local_cli import local_cli
from nobodys_jobs import as_nobody, left_in, nobody, nobodys_job, node_of, run_job, scripts_source, what_is_in

import bai_agent
from bai_agent.benchmark.environment import find_user
from bai_agent.benchmark.openssh import public_key, ready_client
from bai_agent.job.outcome import ExitCode
from bai_agent.job.peers import Peer
from bai_agent.job.run_directory import RunDir
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.phases.artifacts import keep_artifacts
from bai_agent.phases.run import discard_ssh
from bai_agent.strategy.launch import SshTo

pytestmark = pytest.mark.root

_PYTHON = "/usr/bin/python3"
"""One that every user may run."""
_BACKEND = """
import os, zipfile


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name, about = "tiny-1.0-py3-none-any.whl", "tiny-1.0.dist-info"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        wheel.writestr("tiny.py", f"version = 'built by {os.getuid()}'")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{about}/RECORD", "")
    return name
"""
_DESCRIPTOR = """
spec_version = "0.1.0"
info.description = "Says who it is"
hardware.instance_type = "local"
env.user = "nobody"
ml.benchmark_code = "sub/go.sh"
ml.script.path = "."
"""


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_requirements_are_installed_as_the_benchmarks_user(folder: Path, mode: int) -> None:
    # given an agent in a folder that the user can enter, or cannot
    program = folder / "program"
    shutil.copytree(Path(bai_agent.__file__).parent, program / "bai_agent")
    program.chmod(mode)
    scripts = folder / "scripts"
    (scripts / "package").mkdir(parents=True)
    (scripts / "requirements.txt").write_text("./package\n")
    (scripts / "package" / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (scripts / "package" / "backend.py").write_text(_BACKEND)
    say = "import os, tiny; print(tiny.version, os.getuid(), os.stat(tiny.__file__).st_uid)"
    job = nobodys_job(
        folder,
        ["python3", "-c", say],
        benchmark={"requirements": "requirements.txt", "python": _PYTHON, "inherit_env": False},
        sources=[scripts_source(scripts)],
    )
    node = node_of(folder)

    code = run_job(job, node, env={**environment(), "PYTHONPATH": str(program)})

    assert code == ExitCode.SUCCEEDED, result_of(node)
    uid = nobody().pw_uid
    assert (node / "output.log").read_text() == f"built by {uid} {uid} {uid}\n"


def test_a_large_requirements_file_is_refused(folder: Path) -> None:
    source = folder / "source"
    source.touch()
    node = node_of(folder)
    left_in(node, "scripts", "truncate -s 1T large.txt")
    job = nobodys_job(
        folder,
        ["true"],
        benchmark={"requirements": "large.txt", "python": _PYTHON},
        sources=[{"kind": "scripts", "src": source.as_uri(), "path": "other.txt"}],
    )

    assert run_job(job, node) == ExitCode.OURS

    assert "large.txt: has more than" in result_of(node)["sentence"]


def test_only_copied_scripts_change_their_owner_to_the_benchmarks_user(folder: Path, outside: Path) -> None:
    scripts = folder / "source"
    (scripts / "sub").mkdir(parents=True)
    (scripts / "sub" / "words").write_text("words\n")
    node = node_of(folder)
    left_in(node, "scripts", 'mkdir own; ln -s "$1" own/link', outside)
    # As it may be where the kernel does not protect hard links; proc(5).
    (node / "scripts" / "own" / "hard").hardlink_to(outside / "secret")
    before = what_is_in(outside)
    job = nobodys_job(folder, ["stat", "-c", "%U", "sub/words"], sources=[scripts_source(scripts)])

    assert run_job(job, node) == ExitCode.SUCCEEDED, result_of(node)

    assert (node / "output.log").read_text() == "nobody\n"
    assert what_is_in(outside) == before


@pytest.mark.parametrize("unpack", [False, True], ids=["file", "archive"])
def test_data_is_not_written_through_a_link_of_the_user(folder: Path, outside: Path, unpack: bool) -> None:
    numbers, archive = folder / "numbers", folder / "numbers.tar"
    numbers.write_text("1 2 3\n")
    with tarfile.open(archive, "w") as tar:
        tar.add(numbers, "numbers")
    node = node_of(folder)
    left_in(node, "work", 'ln -s "$1" data', outside)
    before = what_is_in(outside)
    source = {"src": archive.as_uri(), "path": "data", "unpack": "into"}
    if not unpack:
        source = {"src": numbers.as_uri(), "path": "data/numbers"}
    job = nobodys_job(folder, ["true"], sources=[source])

    assert run_job(job, node) == ExitCode.OURS

    assert result_of(node)["outcome"] == "pull_failed"
    assert what_is_in(outside) == before


def test_a_source_in_the_users_folder_is_read_with_the_users_rights(folder: Path, outside: Path) -> None:
    theirs = folder / "home"
    theirs.mkdir()
    os.chown(theirs, nobody().pw_uid, nobody().pw_gid)
    as_nobody('ln -s "$1" numbers; echo own > own', outside / "secret", cwd=theirs)
    node = node_of(folder)
    job = nobodys_job(
        folder, ["cat", "in/numbers"], sources=[{"src": theirs.as_uri(), "path": "in", "directory": True}]
    )

    assert run_job(job, node) == ExitCode.OURS

    assert result_of(node)["outcome"] == "pull_failed"
    assert not (node / "work" / "in" / "numbers").exists()


def test_data_placed_in_a_folder_of_root_belongs_to_root(folder: Path) -> None:
    numbers = folder / "numbers"
    numbers.write_text("1 2 3\n")
    numbers.chmod(0o600)
    target = folder / "data" / "set" / "numbers"
    node = node_of(folder)
    job = nobodys_job(
        folder,
        ["stat", "-c", "%U", str(target)],
        sources=[{"src": numbers.as_uri(), "path": str(target), "mode": "0644"}],
    )

    assert run_job(job, node) == ExitCode.SUCCEEDED, result_of(node)

    assert (node / "output.log").read_text() == "root\n"


def test_a_pipe_in_place_of_a_record_of_pulled_data_is_refused(folder: Path) -> None:
    numbers = folder / "numbers"
    numbers.write_text("1 2 3\n")
    node = node_of(folder)
    left_in(node, "work", "mkfifo .numbers.bai-pulled")
    job = nobodys_job(folder, ["true"], sources=[{"src": numbers.as_uri(), "path": "numbers"}])

    assert run_job(job, node) == ExitCode.OURS

    assert "not a record of pulled data" in result_of(node)["sentence"]


def test_a_file_that_is_replaced_after_it_was_found_is_not_an_artifact(folder: Path, outside: Path) -> None:
    work = folder / "work"
    work.mkdir()
    os.chown(work, nobody().pw_uid, nobody().pw_gid)
    as_nobody("echo own > file; echo own > other", cwd=work)
    store = DirectoryStore(folder / "store")

    def exchange() -> bool:
        # Asked between finding a file and keeping it.
        as_nobody('ln -sf "$1" file', outside / "secret", cwd=work)
        return False

    kept = keep_artifacts(
        ["*"], folder=work, store=store, prefix="a/", stopping=exchange, user=find_user("nobody")
    )

    assert [each.key for each in store.find("a/")] == ["a/other"]
    assert kept.files == 1
    assert [each for each in kept.warnings if "The artifact file was not kept" in each]


def test_scripts_copied_by_bai_run_belong_to_the_benchmarks_user(folder: Path) -> None:
    cli = local_cli(folder)
    go = folder / "project" / "sub" / "go.sh"
    go.parent.mkdir(parents=True)
    go.write_text("#!/bin/sh\ncat sub/words; echo more >> sub/words; stat -c %U . sub/words; ls sub\n")
    go.chmod(0o700)
    (go.parent / "words").write_text("words\n")
    (go.parent / "words").chmod(0o600)
    descriptor = go.parents[1] / "benchmark.toml"
    descriptor.write_text(_DESCRIPTOR)

    done = cli.bai("run", descriptor, "--job-id", "one")

    assert done.code == 0, done
    output = (cli.store / "one" / "attempts" / "0" / "nodes" / "0" / "output.log").read_text()
    assert output.splitlines() == ["words", "nobody", "nobody", "go.sh", "words"]


def test_a_run_directory_in_the_users_folder_is_refused(folder: Path) -> None:
    theirs = folder / "store"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, nobody().pw_uid, nobody().pw_gid)
    node = node_of(folder)
    job = nobodys_job(folder, ["true"])

    assert run_job(job, node) == ExitCode.OURS

    result = result_of(node)
    assert result["outcome"] == "prepare_failed"
    assert f'user "nobody" can write into {theirs}, ' in result["sentence"]


def test_the_user_cannot_write_the_records_that_the_agent_acts_on(folder: Path) -> None:
    names = ("exit.json", "cancel.json", "stop.json", "started.json", "result.json", "job.toml", "peers.json")
    tries = (
        'for name; do for act in "mv ../old ../$name" "rm ../$name" "mv ../$name ../gone" "ln -s ../old ../$name"',
        'do $act 2> /dev/null && echo "$act"',
        'done; (echo {} > "../$name") 2> /dev/null && echo "wrote $name"',
        "done; mv ../work ../moved 2> /dev/null && echo moved; echo tried",
    )
    job = nobodys_job(folder, ["sh", "-c", "; ".join(tries).replace("$", "$$"), "sh", *names])
    node = node_of(folder)

    assert run_job(job, node) == ExitCode.SUCCEEDED, result_of(node)

    assert (node / "output.log").read_text() == "tried\n"


def test_root_writes_no_ssh_file_through_a_link_of_the_user(folder: Path, outside: Path) -> None:
    rundir = RunDir(folder)
    user = find_user("nobody")
    path = os.environ["PATH"]
    client = SshTo(hosts=(Peer(rank=1, address="10.0.0.2", port=7, public_key="ssh-ed25519 AAAA"),))
    before = what_is_in(outside)

    public_key(rundir, user=user, path=path)
    as_nobody('mv bin old-bin; ln -s "$1" bin', outside, cwd=rundir.ssh)
    as_nobody('mv key old; ln -s "$1" key', outside / "secret", cwd=rundir.ssh)
    ready_client(client, rundir, env={"PATH": path}, user=user)
    discard_ssh(rundir)

    assert what_is_in(outside) == before
    assert not rundir.ssh.exists()


def test_root_does_not_run_programs_from_the_benchmarks_path(folder: Path) -> None:
    theirs = folder / "bin"
    theirs.mkdir()
    fake = theirs / "ssh-keygen"
    fake.write_text(f"#!/bin/sh\ntouch {folder}/ran-as-$(id -u)\n")
    fake.chmod(0o755)

    public_key(RunDir(folder), user=find_user("nobody"), path=f"{theirs}:{os.environ['PATH']}")

    assert not list(folder.glob("ran-as-*"))


def test_the_benchmarks_user_can_read_its_ssh_key(folder: Path) -> None:
    rundir = RunDir(folder)

    public = public_key(rundir, user=find_user("nobody"), path=os.environ["PATH"])

    assert as_nobody("ssh-keygen -y -f key > /dev/null", cwd=rundir.ssh) == 0
    assert public.startswith("ssh-ed25519 ")
    key = (rundir.ssh / "key").stat()
    assert (key.st_uid, stat.S_IMODE(key.st_mode)) == (nobody().pw_uid, 0o600)
    assert rundir.ssh.stat().st_uid == 0
