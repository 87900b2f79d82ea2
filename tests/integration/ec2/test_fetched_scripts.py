"""Scripts from a repository or a bucket, for jobs on EC2 and here: they are fetched at submission."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cli_harness import CliHarness
from git_server import GitServer, Repository, git_server
from moto_aws import HELLO, MotoAws, open_moto_aws

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.source_tables import SourceKind
from bai_agent.job.record import JobRecord
from executor.backends.ec2.bucket_store import bucket_store
from executor.configuration.config import read_settings


@pytest.fixture
def moto_aws() -> Iterator[MotoAws]:
    with open_moto_aws() as aws:
        yield aws


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    with git_server(tmp_path / "repositories") as server:
        yield server


@pytest.fixture
def cli(moto_aws: MotoAws, tmp_path: Path) -> CliHarness:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BAI_"))}
    own = {"HOME": str(tmp_path / "home")}
    return CliHarness(tmp_path, {**kept, **moto_aws.environment(), **own})


def _uploaded(moto_aws: MotoAws, job: Job) -> dict[str, bytes]:
    """Return the scripts that the instance of a job would unpack."""
    [scripts] = [each for each in job.sources if each.kind is SourceKind.SCRIPTS]
    bucket, _, key = scripts.src.removeprefix("s3://").partition("/")
    content = moto_aws.client("s3", "setup").get_object(Bucket=bucket, Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {
            each.name: file.read()
            for each in archive.getmembers()
            if (file := archive.extractfile(each)) is not None
        }


def _job(moto_aws: MotoAws, job_id: str, monkeypatch: pytest.MonkeyPatch) -> Job:
    for name, value in moto_aws.environment().items():
        monkeypatch.setenv(name, value)
    return JobRecord(bucket_store(read_settings()), job_id).job()


def test_the_commit_of_a_repository_is_uploaded_as_scripts_and_recorded(
    moto_aws: MotoAws, server: GitServer, cli: CliHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(server.folder / "bench")
    commit = repository.commit({"train.py": "print(1)"})
    cli = replace(cli, environment={**cli.environment, **server.environment})
    (cli.folder / "b.toml").write_text(f"{HELLO}[ml.script]\ngit = '{server.url}/bench'\n")

    submitted = cli.bai("submit", "b.toml", "--job-id", "from-git")
    repository.commit({"train.py": "print(2)"})
    again = cli.bai("submit", "b.toml", "--job-id", "from-git")

    assert submitted.code == again.code == 0, submitted.stderr + again.stderr
    job = _job(moto_aws, "from-git", monkeypatch)
    assert job.git is not None
    assert (job.git.commit, job.set) == (commit, {"ml.script.ref": commit})
    assert _uploaded(moto_aws, job) == {"train.py": b"print(1)"}


def _archive(text: str) -> bytes:
    content = f"{text}\n".encode()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        member = tarfile.TarInfo("train.py")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


def test_a_script_archive_in_a_bucket_works_for_jobs_on_ec2_and_on_this_machine(
    moto_aws: MotoAws, cli: CliHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3, key = moto_aws.client("s3", "setup"), "scripts/mine.tar.gz"
    s3.put_object(Bucket=moto_aws.bucket, Key=key, Body=_archive("print('version', 1)"))
    text = HELLO.replace("echo hello", "python3 $(BAI_SCRIPTS_PATH)/train.py")
    address = f"s3://{moto_aws.bucket}/{key}"
    (cli.folder / "b.toml").write_text(f"{text}[ml.script]\nscript = '{address}'\n")

    there = cli.bai("submit", "b.toml", "--job-id", "there")
    here = cli.bai("run", "b.toml", "--on", "local", "--job-id", "here")
    s3.put_object(Bucket=moto_aws.bucket, Key=key, Body=_archive("print('version', 2)"))
    again = cli.bai("run", "--like", "here", "--on", "local")
    new = cli.bai("run", "b.toml", "--on", "local")
    gone = cli.bai("submit", "b.toml", "--set", f"ml.script.script={address}.gone")

    assert [each.code for each in (there, here, again, new)] == [0] * 4, (
        there.stderr + here.stderr + again.stderr
    )
    assert _uploaded(moto_aws, _job(moto_aws, "there", monkeypatch)) == {"train.py": b"print('version', 1)\n"}
    assert "version 1\n" in here.stdout
    assert "version 1\n" in again.stdout
    assert "version 2\n" in new.stdout
    assert gone.code == 2
    assert f"bai: ml.script.script: {address}.gone: " in gone.stderr


def test_jobs_of_a_group_use_the_archive_as_it_was_when_the_group_was_made(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    s3, key = moto_aws.client("s3", "setup"), "scripts/mine.tar.gz"
    (cli.folder / "later.tar.gz").write_bytes(_archive("print('version', 2)"))
    # Each job puts another archive in its place.
    moves = (
        f"boto3.client('s3').upload_file({str(cli.folder / 'later.tar.gz')!r}, {moto_aws.bucket!r}, {key!r})"
    )
    first = _archive(f"import boto3; {moves}; print('version', 1)")
    s3.put_object(Bucket=moto_aws.bucket, Key=key, Body=first)
    text = HELLO.replace("echo hello", f"{sys.executable} $(BAI_SCRIPTS_PATH)/train.py")
    address = f"s3://{moto_aws.bucket}/{key}"
    matrix = "[matrix]\nmax_parallel = 1\n'ml.args' = ['a', 'b']\n"
    (cli.folder / "b.toml").write_text(f"{text}[ml.script]\nscript = '{address}'\n{matrix}")

    done = cli.bai("run", "b.toml", "--on", "local", "--job-id", "sweep")
    resumed = cli.bai("resume", "sweep")

    assert done.code == resumed.code == 0, done.stderr
    for number in (1, 2):
        assert cli.bai("logs", f"sweep.00{number}").stdout == "version 1\n"
