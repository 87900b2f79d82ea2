"""`--like JOB` for a job on EC2 whose local scripts have changed or are deleted."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_harness import CliHarness, CliResult
from moto_aws import MotoAws, open_moto_aws

_DESCRIPTOR = """
spec_version = "0.1.0"
[info]
description = "d"
execution_engine = "aws.ec2"
[hardware]
instance_type = "t3.small"
[aws.ec2]
image = "ami-0deb1200000000001"
[host_metrics]
enabled = false
[ml]
benchmark_code = "sh $(BAI_SCRIPTS_PATH)/run.sh"
[ml.script]
path = "."
"""


@pytest.fixture(scope="module")
def moto_aws() -> Iterator[MotoAws]:
    with open_moto_aws() as aws:
        yield aws


@pytest.fixture
def cli(moto_aws: MotoAws, tmp_path: Path) -> CliHarness:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BAI_"))}
    (tmp_path / "tmp").mkdir()
    (tmp_path / "bench" / "lib").mkdir(parents=True)
    (tmp_path / "bench" / "b.toml").write_text(_DESCRIPTOR)
    # Content of its own, so that no test meets the objects of another one.
    (tmp_path / "bench" / "lib" / "name").write_text(f"{tmp_path.name}\n")
    (tmp_path / "bench" / "run.sh").write_text("echo hello $(cat $BAI_SCRIPTS_PATH/lib/name)\n")
    return CliHarness(tmp_path, {**kept, **moto_aws.environment(), "TMPDIR": str(tmp_path / "tmp")})


def submitted(cli: CliHarness, *arguments: str) -> CliResult:
    answer = cli.bai("submit", *arguments)
    assert answer.code == 0, answer.stderr
    return answer


def objects(moto_aws: MotoAws, prefix: str) -> dict[str, bytes]:
    s3 = moto_aws.client("s3", "setup")
    found = s3.list_objects_v2(Bucket=moto_aws.bucket, Prefix=prefix).get("Contents", [])
    return {
        each["Key"]: s3.get_object(Bucket=moto_aws.bucket, Key=each["Key"])["Body"].read() for each in found
    }


def scripts_of(moto_aws: MotoAws, job_id: str) -> list[str]:
    """Return the keys of the scripts that a job uses."""
    job = objects(moto_aws, f"jobs/{job_id}/job.toml")[f"jobs/{job_id}/job.toml"].decode()
    return [key for key in objects(moto_aws, "scripts/") if key in job]


def test_like_reuses_the_scripts_of_the_job(moto_aws: MotoAws, cli: CliHarness, tmp_path: Path) -> None:
    submitted(cli, "bench/b.toml", "--job-id", "first")
    (tmp_path / "bench" / "run.sh").write_text("exit 1\n")

    submitted(cli, "--like", "first", "--job-id", "again")
    shutil.rmtree(tmp_path / "bench")
    home = {"HOME": str(tmp_path / "home")}
    answer = cli.bai("run", "--like", "first", "--on", "local", "--json", env=home)

    [scripts] = scripts_of(moto_aws, "first")
    assert scripts_of(moto_aws, "again") == [scripts]
    # Here too they are what is run, and nothing of theirs stays behind.
    assert answer.code == 0, answer.stderr
    [log] = (tmp_path / "home" / ".bai" / "jobs").glob("*/attempts/0/nodes/0/output.log")
    assert log.read_text() == f"hello {tmp_path.name}\n"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_like_fetches_a_deleted_script_from_the_job(
    moto_aws: MotoAws, cli: CliHarness, tmp_path: Path
) -> None:
    text = _DESCRIPTOR.partition("[ml.script]")[0]
    (tmp_path / "one.toml").write_text(text)
    (tmp_path / "run.sh").write_text("echo one\n")
    submitted(cli, "one.toml", "--script", "run.sh", "--job-id", "one-first")
    (tmp_path / "run.sh").unlink()

    submitted(cli, "--like", "one-first", "--job-id", "one-again")

    assert scripts_of(moto_aws, "one-again") == scripts_of(moto_aws, "one-first") != []


def test_a_script_without_a_descriptor_is_launched_and_its_uploaded_copy_runs_here(
    moto_aws: MotoAws, cli: CliHarness, tmp_path: Path
) -> None:
    # given a script with a module beside it, which runs on EC2 without a descriptor
    folder = tmp_path / "train"
    folder.mkdir()
    (folder / "main.py").write_text(
        "import sys\nfrom values import LOSS\nprint(f'loss: {LOSS}', sys.argv[1:])\n"
    )
    (folder / "values.py").write_text(f"LOSS = 0.5  # {tmp_path.name}\n")
    options = ("--instance-type", "t3.small", "--set", "aws.ec2.image=ami-0deb1200000000001")
    metric = ("--metric", r"loss=loss: (\S+)", "--set", "host_metrics.enabled=false")
    submitted(cli, "train/main.py", *options, *metric, "--job-id", "by-script", "--", "--name", "a b", "${X}")

    # when the folder is gone, and the job is repeated here
    shutil.rmtree(folder)
    more = ("--on", "local", "--set", "hardware.instance_type=local")
    answer = cli.bai("run", "--like", "by-script", *more, "--json", env={"HOME": str(tmp_path / "home")})

    # then the delivered copy has run with the same arguments
    assert len(scripts_of(moto_aws, "by-script")) == 1
    assert objects(moto_aws, "jobs/by-script/attempts/0/launched.json")
    assert answer.code == 0, answer.stderr
    [log] = (tmp_path / "home" / ".bai" / "jobs").glob("*/attempts/0/nodes/0/output.log")
    assert log.read_text() == "loss: 0.5 ['--name', 'a b', '${X}']\n"


def _tar(*members: tuple[str, str]) -> bytes:
    """Return a tar of files, or of links where the content begins with an arrow."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, text in members:
            member = tarfile.TarInfo(name)
            if text.startswith("->"):
                member.type, member.linkname = tarfile.SYMTYPE, text[2:]
                archive.addfile(member)
            else:
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
    return content.getvalue()


def test_like_refuses_a_forged_archive_of_scripts(moto_aws: MotoAws, cli: CliHarness, tmp_path: Path) -> None:
    submitted(cli, "bench/b.toml", "--job-id", "forged")
    [key] = scripts_of(moto_aws, "forged")
    (tmp_path / "bench" / "run.sh").write_text("exit 1\n")
    original, name = objects(moto_aws, key)[key], "jobs/forged/job.toml"
    job = objects(moto_aws, name)[name].decode()
    s3, bucket = moto_aws.client("s3", "setup"), moto_aws.bucket

    def refusal(content: bytes | None, *, fits: bool = False, path: str = ".") -> str:
        """Return what is said where the object is `content`. fits: the job's descriptor has its sum, as one who writes to the bucket could do."""
        if content is None:
            s3.delete_object(Bucket=bucket, Key=key)
        else:
            s3.put_object(Bucket=bucket, Key=key, Body=content)
        forged = job.replace('path = "."', f'path = "{path}"')
        if fits and content is not None:
            forged = forged.replace(Path(key).stem + '"\n', hashlib.sha256(content).hexdigest() + '"\n')
            forged = forged.replace(f"size = {len(original)}", f"size = {len(content)}")
        s3.put_object(Bucket=bucket, Key=name, Body=forged.encode())
        answer = cli.bai("submit", "--like", "forged", "--job-id", "not-launched")
        assert (answer.code, answer.stdout) == (2, ""), answer.stderr
        told = " ".join(answer.stderr.split())
        start = "--like forged: the job's scripts are not available (they have changed since), and the job's copy cannot be fetched:"
        assert start in told
        # Nothing of it lies anywhere.
        assert not list(tmp_path.rglob("evil"))
        assert list((tmp_path / "tmp").iterdir()) == []
        return told.partition(start)[2]

    assert "sha256" in refusal(original.replace(b"hello", b"hallo"))
    assert f"is larger than the {len(original):,} bytes" in refusal(original + b"\0" * 512)
    assert 'member "../../evil" is refused' in refusal(_tar(("run.sh", "x"), ("../../evil", "x")), fits=True)
    assert "is refused" in refusal(_tar(("lib", f"->{tmp_path}"), ("lib/evil", "x")), fits=True)
    assert "leads out of the scripts' folder" in refusal(original, path=f"{tmp_path}/evil")
    assert "differs from the job's record" in refusal(_tar(("run.sh", "exit 0\n")), fits=True)
    assert key in refusal(None)
    assert objects(moto_aws, "jobs/not-launched/") == {}
