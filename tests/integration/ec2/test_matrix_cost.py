"""The cost of a matrix of jobs on EC2: it is reserved before each launch, and nothing is launched beyond max_cost."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from cli_harness import CliHarness
from moto.s3.models import s3_backends
from moto_aws import HELLO, MotoAws
from sandbox.fake_aws.calls import Call

MATRIX = """
[env.vars]
SIZE = "0"
[matrix]
max_parallel = 3
max_cost = {max_cost}
"env.vars.SIZE" = ["1", "2", "3"]
"""
PATIENCE = 120.0


@pytest.fixture
def cli(moto_aws: MotoAws, tmp_path: Path) -> CliHarness:
    (tmp_path / "config.toml").write_text('[prices]\n"t3.small" = 0.1\n')
    mine = {"HOME": str(tmp_path), "BAI_CONFIG": str(tmp_path / "config.toml")}
    return CliHarness(tmp_path, {**os.environ, **moto_aws.environment(), **mine})


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def age(moto_aws: MotoAws, job_id: str, by: timedelta) -> None:
    """Let the machines of a job have been launched so much earlier."""
    for key in s3_backends[moto_aws.account]["aws"].buckets[moto_aws.bucket].keys.values():
        if key.name == f"jobs/{job_id}/attempts/0/launched.json":
            key.last_modified -= by


def test_a_group_that_reaches_max_cost_starts_no_further_job_and_reports_it_once(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    # given three combinations, and money for one job at its maximum and a little more
    (cli.folder / "b.toml").write_text(HELLO)
    bound = float(json.loads(cli.bai("plan", "b.toml", "--json").stdout)["cost"]["usd"])
    (cli.folder / "b.toml").write_text(HELLO + MATRIX.format(max_cost=bound + 0.02))
    planned = cli.bai("plan", "b.toml")
    assert planned.code == 0, planned.stderr
    assert f"all jobs together: at most {3 * bound:,.2f} USD" in planned.stdout

    def jobs() -> list[str]:
        found = cli.bai("status", "sizes", "--json").objects
        return [
            each["job_id"] for each in found[0]["jobs"] if each["status"] not in ("NOT STARTED", "REFUSED")
        ]

    with cli.start("run", "b.toml", "--job-id", "sizes") as running:
        # when the first job ends, having cost little
        until(lambda: len(moto_aws.instances()) == 1, "no job was launched")
        until(lambda: len(jobs()) == 1, "the job has no status")
        (first,) = jobs()
        assert cli.bai("cancel", first, "--now").code == 0
        # and the second one after an hour
        until(lambda: len(jobs()) == 2, "the second job was not launched")
        until(lambda: len(moto_aws.instances()) == 1, "the second job has no machine")
        (second,) = [each for each in jobs() if each != first]
        age(moto_aws, second, timedelta(hours=1))
        assert cli.bai("cancel", second, "--now").code == 0
        out, err = running.communicate(timeout=PATIENCE)

    # then the third one is not launched, which is said once
    assert running.returncode == 4, err
    assert len(moto_aws.calls("RunInstances")) == 2
    assert err.count("max_cost allows") == 1
    assert "1 job is not started" in err
    assert out.count("NOT STARTED") == 1
    # and the cost is that of what ran
    (compared,) = cli.bai("compare", "sizes", "--json").objects
    assert 0.1 < compared["usd"] < 0.2


@pytest.mark.parametrize("written", ["starts/000000.json", "launch.json"])
def test_a_matrix_killed_during_a_launch_continues_and_launches_each_job_once(
    moto_aws: MotoAws, cli: CliHarness, written: str
) -> None:
    # given `bai` that is killed when it has written an object and has not heard of it
    (cli.folder / "b.toml").write_text(HELLO + MATRIX.format(max_cost=100))
    with cli.start("run", "b.toml", "--job-id", "sizes") as running:

        def kill(call: Call) -> None:
            if call.action == "PutObject" and call.resource.endswith(written):
                running.send_signal(signal.SIGKILL)

        moto_aws.answered = kill
        running.communicate(timeout=PATIENCE)
        moto_aws.answered = lambda call: None
    assert running.returncode == -signal.SIGKILL

    # when it is resumed
    with cli.start("resume", "sizes") as resumed:
        until(lambda: len(moto_aws.instances()) == 3, "not all jobs were launched")
        assert cli.bai("cancel", "sizes", "--now").code == 0
        _, err = resumed.communicate(timeout=PATIENCE)

    # then there is one machine for each job
    assert resumed.returncode == 4, err
    jobs = [f"sizes.{number:03}" for number in (1, 2, 3)]
    assert sorted(each["job_id"] for each in cli.bai("list", "--json").objects) == jobs
    instances = moto_aws.client("ec2", "user").describe_instances()["Reservations"]
    assert sum(len(each["Instances"]) for each in instances) == 3
