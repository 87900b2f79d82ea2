"""Artifacts of one job as data of the next one, between this machine and EC2; and its checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_harness import CliHarness
from moto_aws import HELLO, REGION, MotoAws, open_moto_aws
from sandbox.fake_aws.control_plane import access
from saved_files import keep_checkpoint

from bai_agent.generations.checkpoint_marker import marker_digest
from bai_agent.job.descriptor.restart_tables import Checkpoint, CheckpointOrigin
from bai_agent.job.record import JobRecord
from bai_agent.job.store import open_store
from executor.backends.ec2.bucket_store import bucket_store
from executor.configuration.config import read_settings

_WEIGHTS = b"weights of the first job\n"


@pytest.fixture(scope="module")
def moto_aws() -> Iterator[MotoAws]:
    with open_moto_aws() as aws:
        yield aws


@pytest.fixture
def cli(moto_aws: MotoAws, tmp_path: Path) -> CliHarness:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BAI_"))}
    own = {"HOME": str(tmp_path / "home")}
    return CliHarness(tmp_path, {**kept, **moto_aws.environment(), **own})


def _uses(cli: CliHarness, src: str) -> str:
    """Write a descriptor that prints the artifact `src`."""
    text = HELLO.replace("echo hello", "cat model.bin")
    source = f'[[data.sources]]\nsrc = "{src}"\npath = "model.bin"\n'
    (cli.folder / "uses.toml").write_text(text + source)
    return "uses.toml"


def test_an_artifact_in_the_bucket_can_be_data_of_a_job_on_ec2_or_this_machine(
    moto_aws: MotoAws, cli: CliHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cli.folder / "makes.toml").write_text(HELLO)
    assert cli.bai("submit", "makes.toml", "--job-id", "makes-1").code == 0
    for name, value in moto_aws.environment().items():
        monkeypatch.setenv(name, value)
    record = JobRecord(bucket_store(read_settings()), "makes-1")
    record.store.put(record.key("artifacts/model.bin"), _WEIGHTS)
    result = {
        "outcome": "succeeded",
        "status": "SUCCEEDED",
        "exit_code": 0,
        "sentence": "Done.",
        "started": 1,
    }
    record.store.put(record.key("result.json"), json.dumps(result).encode())
    file = _uses(cli, "job:last/model.bin")

    there = cli.bai("submit", file, "--job-id", "uses-1")
    again = cli.bai("submit", file, "--job-id", "uses-1")
    refused = cli.bai("submit", file, "--job-id", "uses-2")
    here = cli.bai("run", file, "--on", "local", "--set", "data.sources[0].src=job:makes-1/model.bin")

    # The same id means the same job, although this one is the last by now.
    assert there.code == again.code == 0, there.stderr + again.stderr
    job = JobRecord(record.store, "uses-1").job()
    [source] = job.sources
    assert source.src == f"{record.store.url}/makes-1/artifacts/model.bin"
    assert source.etag == hashlib.md5(_WEIGHTS, usedforsecurity=False).hexdigest()
    assert job.set == {"data.sources[0].src": "job:makes-1/model.bin"}
    assert refused.code == 2
    assert "the job uses-1 has not ended" in refused.stderr
    assert here.code == 0, here.stderr
    assert _WEIGHTS.decode().strip() in here.stdout


def test_an_artifact_of_a_local_job_is_uploaded_for_a_job_on_ec2(moto_aws: MotoAws, cli: CliHarness) -> None:
    makes = (
        HELLO.replace("echo hello", "cp /etc/hostname model.bin") + '[output]\nartifacts = ["model.bin"]\n'
    )
    (cli.folder / "makes.toml").write_text(makes)
    made = cli.bai("run", "makes.toml", "--on", "local", "--job-id", "makes-here")
    assert made.code == 0, made.stderr

    done = cli.bai("submit", _uses(cli, "job:makes-here/model.bin"), "--job-id", "uses-it")

    assert done.code == 0, done.stderr
    kept = (cli.folder / "home/.bai/jobs/makes-here/artifacts/model.bin").read_bytes()
    key = f"data/{hashlib.sha256(kept).hexdigest()}/model.bin"
    s3 = moto_aws.client("s3", "setup")
    bucket = moto_aws.environment()["BAI_BUCKET"]
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == kept


def test_only_a_job_on_ec2_can_begin_from_a_checkpoint_in_the_bucket(
    moto_aws: MotoAws, cli: CliHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cli.folder / "trains.toml").write_text(f'{HELLO}[checkpoint]\npath = "checkpoints"\n')
    assert cli.bai("submit", "trains.toml", "--job-id", "killed-1").code == 0
    # An instance's rights: a person may not write checkpoints.
    for name, value in access.environment(
        moto_aws.identities.of("setup"), endpoint=moto_aws.endpoint
    ).items():
        monkeypatch.setenv(name, value)
    record = JobRecord(open_store(f"s3://{moto_aws.bucket}/jobs", region=REGION), "killed-1")
    marker = keep_checkpoint(record, {"step": "7"})
    result = {"outcome": "killed", "status": "FAILED", "exit_code": 6, "sentence": "Killed.", "started": 1}
    record.store.put(record.key("result.json"), json.dumps(result).encode())

    there = cli.bai("submit", "--resume", "killed-1", "--job-id", "resumed-1")
    here = cli.bai("run", "--resume", "killed-1", "--on", "local")

    assert there.code == 0, there.stderr
    job = JobRecord(record.store, "resumed-1").job()
    origin = CheckpointOrigin(job="killed-1", name="checkpoint-0-0", sha256=marker_digest(marker))
    assert job.checkpoint == Checkpoint(path="checkpoints", origin=origin)
    assert job.set["checkpoint.from"] == "job:killed-1"
    assert here.code == 2
    assert (
        f"checkpoint.from: the job killed-1 is in {record.store.url}, but this job would be in file:"
        in here.stderr
    )
