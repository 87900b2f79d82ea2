"""A submission killed before its launch was recorded: commands do not wait for it for ever, and repeating it continues it."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from cli_harness import CliHarness
from moto.s3.models import s3_backends
from moto_aws import HELLO, MotoAws
from sandbox.fake_aws.calls import Call


@pytest.fixture
def cli(moto_aws: MotoAws, tmp_path: Path) -> CliHarness:
    (tmp_path / "b.toml").write_text(HELLO)
    (tmp_path / "tmp").mkdir()
    mine = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
    return CliHarness(tmp_path, {**os.environ, **moto_aws.environment(), **mine})


def kill_after(moto_aws: MotoAws, cli: CliHarness, key: str) -> None:
    """Submit cut-1, and kill the submitter when it has written `key` and has not heard of it."""
    running: list[subprocess.Popen[str]] = []

    def kill(call: Call) -> None:
        if call.action == "PutObject" and call.resource.endswith(key):
            running[0].send_signal(signal.SIGKILL)

    moto_aws.answered = kill
    running.append(cli.start("submit", "b.toml", "--job-id", "cut-1", stdout=subprocess.DEVNULL, stderr=None))
    assert running[0].wait(timeout=120) == -signal.SIGKILL
    moto_aws.answered = lambda call: None


def age(moto_aws: MotoAws, by: timedelta) -> None:
    """Let all objects of the job be so much older."""
    for key in s3_backends[moto_aws.account]["aws"].buckets[moto_aws.bucket].keys.values():
        if key.name.startswith("jobs/cut-1/"):
            key.last_modified -= by


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("job.toml", "The submission was interrupted "),
        ("attempts/0/launch.json", "The launch was interrupted "),
    ],
)
def test_waiting_for_a_job_whose_submission_was_killed_ends_with_advice(
    moto_aws: MotoAws, tmp_path: Path, cli: CliHarness, written: str, said: str
) -> None:
    # given a submitter that was killed a while ago
    kill_after(moto_aws, cli, f"cut-1/{written}")
    age(moto_aws, timedelta(minutes=15))
    advice = "nothing runs; submit the job again with --job-id cut-1, and the job continues"

    # when somebody waits for the job, follows it, or follows its log
    commands = (("status", "--wait", "--json"), ("resume", "-f"), ("logs", "-f"))
    with ThreadPoolExecutor() as pool:
        waited, followed, log = pool.map(lambda words: cli.bai(*words, "cut-1"), commands)

    # then all of them end, and say what to do
    (found,) = waited.objects
    assert (waited.code, found["status"], found["result"]) == (5, "UNLAUNCHED", None), waited.stderr
    assert found["machine"].startswith(said)
    assert advice in found["machine"]
    for answer in (followed, log):
        assert answer.code == 5
        assert advice in answer.stderr.splitlines()[-1]
    assert [each["status"] for each in cli.bai("list", "--json").objects] == ["UNLAUNCHED"]
    # and the job can still be launched, once
    again = cli.bai("submit", "b.toml", "--job-id", "cut-1")
    assert again.code == 0, again.stderr
    assert len(moto_aws.instances()) == 1


def test_a_job_submitted_minutes_ago_and_not_launched_yet_is_still_pending(
    moto_aws: MotoAws, tmp_path: Path, cli: CliHarness
) -> None:
    kill_after(moto_aws, cli, "cut-1/job.toml")
    age(moto_aws, timedelta(minutes=5))

    (found,) = cli.bai("status", "cut-1", "--json").objects

    assert (found["status"], found["machine"]) == (
        "PENDING",
        "The job is recorded, but not launched yet.",
    )
