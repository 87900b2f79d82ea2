"""The commit of a repository as scripts of a job on EC2: they reach the instance through the staging bucket."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_harness import CliHarness
from git_server import GitServer, Repository, git_server
from moto_aws import HELLO, MotoAws, open_moto_aws

from bai_agent.job.descriptor import SourceKind
from bai_agent.job.record import JobRecord
from executor.backends.ec2.bucket_store import bucket_store
from executor.configuration.config import read_settings
from executor.owned_folders import cache_folder


@pytest.fixture
def moto_aws() -> Iterator[MotoAws]:
    with open_moto_aws() as aws:
        yield aws


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    folder = tmp_path / "repositories"
    folder.mkdir()
    with git_server(folder) as server:
        yield server


def test_a_commit_is_uploaded_and_named_in_the_record(
    moto_aws: MotoAws, server: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(server.folder / "bench")
    commit = repository.commit({"train.py": "print(1)"})
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BAI_"))}
    own = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(cache_folder(os.environ).parent)}
    cli = CliHarness(tmp_path, {**kept, **moto_aws.environment(), **own, **server.environment})
    (cli.folder / "b.toml").write_text(f"{HELLO}[ml.script]\ngit = '{server.url}/bench'\n")

    submitted = cli.bai("submit", "b.toml", "--job-id", "from-git")
    repository.commit({"train.py": "print(2)"})
    again = cli.bai("submit", "b.toml", "--job-id", "from-git")

    assert submitted.code == again.code == 0, submitted.stderr + again.stderr
    for name, value in moto_aws.environment().items():
        monkeypatch.setenv(name, value)
    job = JobRecord(bucket_store(read_settings()), "from-git").job()
    assert job.git is not None
    assert (job.git.commit, job.set) == (commit, {"ml.script.ref": commit})
    [scripts] = [each for each in job.sources if each.kind is SourceKind.SCRIPTS]
    bucket, _, key = scripts.src.removeprefix("s3://").partition("/")
    content = moto_aws.client("s3", "setup").get_object(Bucket=bucket, Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        member = archive.extractfile("train.py")
        assert member is not None
        assert member.read() == b"print(1)"
