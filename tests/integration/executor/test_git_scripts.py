"""`[ml.script] git`: a job whose scripts are a commit of a repository."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from git_server import GitServer, Repository, git_server
from local_cli import LocalCli

_TRAIN = "print('version', {})\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    with git_server(tmp_path / "repositories") as server:
        yield server


@pytest.fixture
def repository(server: GitServer) -> Repository:
    return Repository(server.folder / "bench")


@pytest.fixture
def git_cli(cli: LocalCli, server: GitServer) -> LocalCli:
    return replace(cli, environment={**cli.environment, **server.environment})


def _descriptor(cli: LocalCli, server: GitServer, more: str = "") -> Path:
    before, _, _ = cli.descriptor("").read_text().partition("[ml]")
    path = cli.folder / "b.toml"
    path.write_text(
        f"{before}[ml]\nbenchmark_code = 'python3 $(BAI_SCRIPTS_PATH)/train.py'\n"
        f"[ml.script]\ngit = '{server.url}/bench'\nfolder = 'src'\n{more}"
    )
    return path


def test_a_job_and_its_repetition_run_the_same_commit(
    git_cli: LocalCli, server: GitServer, repository: Repository
) -> None:
    commit = repository.commit({"src/train.py": _TRAIN.format(1)})
    file = _descriptor(git_cli, server, "ref = 'main'\n")

    first = git_cli.bai("run", file, "--job-id", "first")
    later = repository.commit({"src/train.py": _TRAIN.format(2)})
    # The branch has moved, but the job of this id exists with the commit from before.
    same = git_cli.bai("run", file, "--job-id", "first")
    new = git_cli.bai("run", file, "--job-id", "new")
    again = git_cli.bai("run", "--like", "first", "--job-id", "again")
    # Without the copies of the scripts that the jobs kept, the commit is fetched again.
    shutil.rmtree(git_cli.rundir("first").scripts)
    fetched = git_cli.bai("run", "--like", "first", "--job-id", "fetched")
    other = git_cli.bai("run", "--like", "first", "--job-id", "other", "--set", "ml.script.ref=main")

    assert [each.code for each in (first, same, new, again, fetched, other)] == [0] * 6, first.stderr
    outputs = {name: git_cli.output(name) for name in ("first", "new", "again", "fetched", "other")}
    one, two = "version 1\n", "version 2\n"
    assert outputs == {"first": one, "new": two, "again": one, "fetched": one, "other": two}
    for name, used in (("first", commit), ("again", commit), ("fetched", commit), ("other", later)):
        job = git_cli.record(name).job()
        assert job.git is not None
        assert (job.git.commit, job.set["ml.script.ref"]) == (used, used), name

    # Another ref is another job.
    for changed in ("HEAD", commit, later):
        refused = git_cli.bai("run", file, "--job-id", "first", "--set", f"ml.script.ref={changed}")
        said = 'the job "first" exists already and runs something else'
        assert (refused.code == 2) == (changed != commit), refused.stderr
        assert (said in refused.stderr) == (changed != commit), refused.stderr


def test_script_options_with_like_replace_the_repository_of_the_job(
    git_cli: LocalCli, server: GitServer, repository: Repository
) -> None:
    repository.commit({"src/train.py": _TRAIN.format(1)})
    first = git_cli.bai("run", _descriptor(git_cli, server, "ref = 'main'\n"), "--job-id", "first")
    (git_cli.folder / "mine").mkdir()
    mine = git_cli.folder / "mine/train.py"
    mine.write_text(_TRAIN.format(3))

    folder = git_cli.bai("run", "--like", "first", "--job-id", "folder", "--set", "ml.script.path=mine")
    again = git_cli.bai("run", "--like", "folder", "--job-id", "again")
    script = git_cli.bai("run", "--like", "first", "--job-id", "script", "--script", mine)

    assert [each.code for each in (first, folder, again, script)] == [0] * 4, folder.stderr + script.stderr
    assert [git_cli.output(name) for name in ("folder", "again", "script")] == ["version 3\n"] * 3
    assert git_cli.record("folder").job().set == {"ml.script.path": "mine"}


def test_a_group_compares_commits(git_cli: LocalCli, server: GitServer, repository: Repository) -> None:
    repository.commit({"src/train.py": _TRAIN.format(1)})
    repository.git("tag", "v1")
    repository.commit({"src/train.py": _TRAIN.format(2)})
    file = _descriptor(git_cli, server, "[matrix]\n'ml.script.ref' = ['v1', 'main']\n")

    done = git_cli.bai("run", file, "--job-id", "sweep")

    assert done.code == 0, done.stderr
    assert sorted(git_cli.output(f"sweep.00{number}") for number in (1, 2)) == ["version 1\n", "version 2\n"]


def test_a_group_fetches_its_scripts_once(
    git_cli: LocalCli, server: GitServer, repository: Repository
) -> None:
    repository.commit({"src/train.py": _TRAIN.format(1)})
    file = _descriptor(git_cli, server, "ref = 'main'\n[matrix]\n'ml.args' = ['a', 'b', 'c']\n")

    done = git_cli.bai("run", file, "--job-id", "sweep")

    assert done.code == 0, done.stderr
    assert [git_cli.output(f"sweep.00{number}") for number in (1, 2, 3)] == ["version 1\n"] * 3
    assert sum("/info/refs" in each for each in server.requests) == 1


def test_jobs_of_a_matrix_over_folders_use_the_same_commit(
    git_cli: LocalCli, server: GitServer, repository: Repository
) -> None:
    # Given a job that moves the branch of which the next one has another folder
    moves = "import subprocess; subprocess.run(['git', '-C', {!r}, 'reset', '-q', '--hard', 'later'], check=True)\n"
    text = _TRAIN.format(1) + moves.format(str(repository.folder))
    repository.commit({"src/train.py": text, "lib/train.py": text})
    repository.git("checkout", "-q", "-b", "later")
    repository.commit({"src/train.py": _TRAIN.format(2), "lib/train.py": _TRAIN.format(2)})
    repository.git("checkout", "-q", "main")
    file = _descriptor(git_cli, server, "ref = 'main'\n[matrix]\n'ml.script.folder' = ['src', 'lib']\n")

    done = git_cli.bai("run", file, "--job-id", "sweep")

    assert done.code == 0, done.stderr
    assert [git_cli.output(f"sweep.00{number}") for number in (1, 2)] == ["version 1\n", "version 1\n"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            "ref = 'v9'\n",
            r'ml.script.git: "https://127.0.0.1:\d+/bench": the repository has no branch, tag or full commit "v9"',
        ),
        ("requirements = 'r.txt'\n", "the file r.txt is missing; correct requirements"),
        (
            "ref = 'linked'\n",
            r'bai: ml.script.git: "https://127.0.0.1:\d+/bench": key: a link out of the folder, to /etc/passwd. Copy the file into '
            r"the folder, or name the link in .baiignore. Make this change in the repository, or in a clone that path names.",
        ),
    ],
)
def test_an_invalid_ref_or_folder_of_a_repository_is_reported_before_a_job_starts(
    git_cli: LocalCli, server: GitServer, repository: Repository, more: str, says: str
) -> None:
    repository.commit({"src/train.py": _TRAIN.format(1)})
    repository.git("checkout", "-q", "-b", "linked")
    (repository.folder / "src/key").symlink_to("/etc/passwd")
    repository.commit({})
    repository.git("checkout", "-q", "main")

    refused = git_cli.bai("run", _descriptor(git_cli, server, more))

    assert refused.code == 2
    assert re.search(says, refused.stderr), refused.stderr
    assert not list(git_cli.store.glob("*/job.toml"))


def test_bai_ab_refuses_two_files_with_repositories(
    git_cli: LocalCli, server: GitServer, repository: Repository
) -> None:
    repository.commit({"src/train.py": _TRAIN.format(1)})
    first = _descriptor(git_cli, server, "ref = 'main'\n").rename(git_cli.folder / "a.toml")
    second = _descriptor(git_cli, server)

    refused = git_cli.bai("ab", first, second)

    assert refused.code == 2
    assert "cannot have repositories of their own; compare commits with [matrix]" in refused.stderr
