"""What a machine of another job, with the rights of its instance profile, puts into a job: read as a record, never acted on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from cli_harness import CliHarness
from moto_aws import HELLO, MotoAws

_CHANGES = (
    "CreateTags", "DeleteTags", "RunInstances", "StartInstances", "StopInstances", "TerminateInstances",
)  # fmt: skip
_NODE = "attempts/0/nodes/0"
_FORGED = {
    "result.json": {
        "version": 1, "outcome": "cancelled", "status": "failed", "exit_code": 1, "sentence": "forged\u001b[2J",
        "instances": ["i-00000000000000bad"], "benchmark": {"lost": 1}, "phases": {"run": "long"},
    },
    f"{_NODE}/result.json": {"version": 1, "outcome": "succeeded", "sentence": "forged", "exit_code": "0"},
    f"{_NODE}/ready.json": {"instance_id": "i-00000000000000bad", "time": "soon"},
    f"{_NODE}/heartbeat.json": {"time": -1, "instance_id": "i-00000000000000bad"},
    "attempts/0/control/stop.json": {"reason": "cancelled", "rank": 99},
    "attempts/0/control/peers.json": {"peers": "all"},
    "attempts/0/ended/0.json": {"rank": 1},
    "attempts/0/joined/0.json": {"address": "169.254.169.254", "rank": 0},
    "artifacts/../../other/job.toml": {},
}  # fmt: skip
_NO_RECORDS = (b"\xff\xfe", b"[" * 100_000)


@pytest.fixture
def cli(moto_aws: MotoAws, tmp_path: Path) -> CliHarness:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BAI_"))}
    (tmp_path / "hello.toml").write_text(HELLO)
    return CliHarness(tmp_path, {**kept, **moto_aws.environment()})


class Intruder:
    """A machine of another job."""

    def __init__(self, aws: MotoAws) -> None:
        self._aws = aws
        aws.policies.attach("instance")
        self._s3 = aws.client("s3", "instance")

    def put(self, key: str, content: bytes) -> bool:
        """Write an object of the job "hello"; return whether that was allowed."""
        once = {"IfNoneMatch": "*"} if key in ("job.toml", "result.json") else {}
        try:
            self._s3.put_object(Bucket=self._aws.bucket, Key=f"jobs/hello/{key}", Body=content, **once)
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("AccessDenied", "PreconditionFailed"):
                raise
            self._aws.policies.take_refused()
            return False
        return True


@pytest.mark.parametrize(
    "key",
    [
        "job.toml",
        "request.json",
        "cancel.json",
        "attempts/0/launch.json",
        "attempts/0/launched.json",
        "attempts/0/refused/0.json",
        "attempts/1/launch.json",
    ],
)
def test_an_instance_cannot_write_objects_that_launch_or_cancel(
    moto_aws: MotoAws, cli: CliHarness, key: str
) -> None:
    assert cli.bai("submit", "hello.toml", "--job-id", "hello").code == 0

    assert not Intruder(moto_aws).put(key, b"{}")


@pytest.mark.parametrize("content", [None, *_NO_RECORDS])
def test_forged_records_are_shown_and_change_no_machine(
    moto_aws: MotoAws, cli: CliHarness, content: bytes | None
) -> None:
    # Given a job whose machine has only just been launched, and another one's records in its place
    assert cli.bai("submit", "hello.toml", "--job-id", "hello").code == 0
    machines = moto_aws.instances()
    intruder = Intruder(moto_aws)
    for key, record in _FORGED.items():
        assert intruder.put(key, json.dumps(record).encode() if content is None else content), key
    for stream in ("log", "events", "metrics"):
        assert intruder.put(f"{_NODE}/{stream}/{0:020d}", b"{]\n")
    changes = {each: len(moto_aws.calls(each)) for each in _CHANGES}

    for looks in (
        ("status", "hello"),
        ("status", "hello", "--json"),
        ("list",),
        ("list", "--json"),
        ("logs", "hello"),
        ("metrics", "hello"),
        ("report", "hello", "-o", "report.html"),
        ("reap",),
        ("prune", "--older-than", "1d"),
        ("fetch", "hello", "-o", "fetched"),
    ):
        done = cli.bai(*looks)
        said = done.stdout + done.stderr
        assert "Traceback" not in said, (looks, said)
        assert "defect" not in said, (looks, said)
        assert "\x1b" not in said, (looks, said)

    assert {each: len(moto_aws.calls(each)) for each in _CHANGES} == changes
    assert moto_aws.instances() == machines
    again = cli.bai("submit", "hello.toml", "--job-id", "hello")
    assert "Traceback" not in again.stderr
    assert moto_aws.instances() == machines
    assert [each for each in cli.folder.parent.rglob("*") if each.name == "other"] == []
