"""`--like JOB` runs a job again."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from local_cli import LocalCli

_TRAIN = "import sys, os\nprint('loss=0.5', sys.argv[1:], os.environ.get('SEED'))\n"


@pytest.fixture
def folder(cli: LocalCli) -> Path:
    """A benchmark whose scripts lie in a folder."""
    folder = cli.folder / "bench"
    folder.mkdir()
    (folder / "train.py").write_text(_TRAIN)
    text = cli.descriptor("").read_text()
    before, _, _ = text.partition("[ml]")
    (folder / "b.toml").write_text(
        f"{before}[env.vars]\nSEED = '1'\n[ml]\nbenchmark_code = 'python3 $(BAI_SCRIPTS_PATH)/train.py'\n[ml.script]\npath = '.'\n"
    )
    return folder


def _run(cli: LocalCli, *arguments: str | Path) -> str:
    answer = cli.bai("run", "--json", *arguments)
    assert answer.code == 0, answer.stderr
    return str(answer.objects[-1]["job_id"])


def test_like_runs_a_job_again_by_its_id(cli: LocalCli, folder: Path) -> None:
    first = _run(cli, folder / "b.toml", "--set", "env.vars.SEED=7", "--", "--fast", "x y")

    # What the file and the scripts say by now is of no account.
    (folder / "b.toml").write_text("nothing")
    (folder / "train.py").write_text("raise SystemExit(1)")
    again = _run(cli, "--like", first)
    other = _run(cli, "--like", again, "--set", "env.vars.SEED=8", "--", "--slow")

    assert len({first, again, other}) == 3
    assert cli.output(first) == cli.output(again) == "loss=0.5 ['--fast', 'x y'] 7\n"
    assert cli.output(other) == "loss=0.5 ['--fast', 'x y', '--slow'] 8\n"
    assert cli.record(again).job().set == {"env.vars.SEED": "7"}


@pytest.mark.parametrize("alone", [False, True])
def test_like_uses_the_kept_copy_of_deleted_scripts(cli: LocalCli, folder: Path, alone: bool) -> None:
    if alone:
        (cli.folder / "alone.py").write_text(_TRAIN)
        text = (folder / "b.toml").read_text().partition("[ml.script]")[0].replace("train.py", "alone.py")
        (cli.folder / "alone.toml").write_text(text)
        first = _run(cli, cli.folder / "alone.toml", "--script", cli.folder / "alone.py")
        (cli.folder / "alone.py").unlink()
        (cli.folder / "alone.toml").unlink()
    else:
        first = _run(cli, folder / "b.toml")
        shutil.rmtree(folder)

    again = _run(cli, "--like", first)

    assert cli.output(first) == cli.output(again) == "loss=0.5 [] 1\n"


@pytest.mark.parametrize("key", ["ml.script.path=v2", 'ml.script={path="v2"}'])
def test_like_runs_the_scripts_that_an_option_names(cli: LocalCli, folder: Path, key: str) -> None:
    first = _run(cli, folder / "b.toml")
    (folder / "train.py").unlink()
    (folder / "v2").mkdir()
    (folder / "v2" / "train.py").write_text("print('v2')\n")

    again = _run(cli, "--like", first, "--set", key)

    assert cli.output(again) == "v2\n"


def test_like_keeps_the_script_option_although_script_path_is_set(cli: LocalCli, folder: Path) -> None:
    (cli.folder / "train.py").write_text(_TRAIN)
    first = _run(cli, folder / "b.toml", "--script", cli.folder / "train.py")
    (cli.folder / "train.py").write_text("raise SystemExit(1)")
    (folder / "v2").mkdir()

    again = _run(cli, "--like", first, "--set", "ml.script.path=v2")

    assert cli.output(first) == cli.output(again)


def test_the_recorded_commit_is_that_of_the_scripts_that_run(cli: LocalCli, folder: Path) -> None:
    def commit() -> str:
        """Commit all there is, and return the commit."""
        git = ("git", "-C", folder, "-c", "user.name=n", "-c", "user.email=e@example.org")
        for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "m"]):
            subprocess.run([*git, *words], check=True)
        return subprocess.run(
            [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit_of(job_id: str) -> str | None:
        git = cli.record(job_id).job().git
        return git.commit if git is not None else None

    old = commit()
    first = _run(cli, folder / "b.toml")
    (folder / "readme").write_text("x")
    (folder / "train.py").write_text("raise SystemExit(1)")
    new = commit()

    again = _run(cli, "--like", first)
    named = _run(
        cli, "--like", first, "--script", cli.folder / "bench" / "readme", "--set", "ml.benchmark_code=true"
    )

    assert commit_of(first) == commit_of(again) == old
    assert commit_of(named) == new


def test_like_prefers_existing_scripts_although_another_file_is_missing(cli: LocalCli, folder: Path) -> None:
    (folder / "train.py").write_text(f"{_TRAIN}open('written', 'w').close()\n")
    with (folder / "b.toml").open("a") as file:
        file.write("[[data.sources]]\nid = 'd'\nsrc = '../data.txt'\npath = 'data.txt'\n")
    (cli.folder / "data.txt").write_text("old")
    first = _run(cli, folder / "b.toml")
    assert (cli.rundir(first).scripts / "written").exists()  # so that the copy is of no use
    (cli.folder / "data.txt").rename(cli.folder / "new.txt")

    _run(cli, "--like", first, "--set", f"data.sources[0].src={cli.folder / 'new.txt'}")
    refused = cli.bai("run", "--like", first)

    assert refused.code == 2
    assert "data.txt does not exist" in " ".join(refused.stderr.split())


def test_an_archive_of_scripts_that_has_changed_is_not_used(cli: LocalCli, folder: Path) -> None:
    archive = folder / "scripts.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(folder / "train.py", "train.py")
    file = folder / "b.toml"
    file.write_text(file.read_text().replace("path = '.'", "script = 'scripts.tar'"))
    first = _run(cli, file)

    again = _run(cli, "--like", first)
    archive.write_bytes(archive.read_bytes().replace(b"loss=0.5", b"loss=0.7"))
    refused = cli.bai("run", "--like", first)
    anew = _run(cli, "--like", first, "--set", "ml.script.script=scripts.tar")

    assert cli.output(first) == cli.output(again) == "loss=0.5 [] 1\n"
    assert (refused.code, refused.stdout) == (2, "")
    assert (
        "(they have changed since), and a job keeps no copy of an archive; restore the scripts"
        in refused.stderr
    )
    assert cli.output(anew) == "loss=0.7 [] 1\n"


def test_a_job_that_cannot_be_repeated_gives_one_sentence(cli: LocalCli, folder: Path) -> None:
    first = _run(cli, folder / "b.toml")
    (folder / "train.py").write_text("raise SystemExit(1)")
    (cli.rundir(first).scripts / "train.py").write_text("raise SystemExit(2)")

    changed = cli.bai("run", "--like", first)
    assert (changed.code, changed.stdout) == (2, "")
    assert changed.stderr.startswith(
        f"bai: --like {first}: the job's scripts are not available (they have changed since), "
        "and the run has changed the job's copy; restore the scripts"
    )
    assert "name one of them" in cli.bai("run", "--like", first, folder / "b.toml").stderr
    assert "nothing to run: name FILE, --like JOB or --resume JOB" in cli.bai("run").stderr
    path = cli.store / first / "request.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, "arguments": "x"}))
    assert "request.json: arguments: expected a list" in cli.bai("run", "--like", first).stderr
    path.write_text(json.dumps({**table, "scripts_sha256": None, "set": {"env.vars.TOKEN": "***"}}))
    assert "add --set env.vars.TOKEN=" in cli.bai("run", "--like", first).stderr
    path.unlink()
    assert "the job's record contains no request" in cli.bai("run", "--like", first).stderr
