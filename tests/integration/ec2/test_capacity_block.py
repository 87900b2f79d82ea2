"""A job in a capacity block is over before EC2 terminates the block's machines."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import tomli
from cli_harness import CliHarness
from moto_aws import HELLO, MotoAws
from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.iam.identities import SETUP
from sandbox.fake_aws.iam.policy import Policy

from bai_agent.job.schema.durations import parse_duration

_BLOCK = """\
[aws.ec2.run_instances]
InstanceMarketOptions = { MarketType = "capacity-block" }
CapacityReservationSpecification = { CapacityReservationTarget = { CapacityReservationId = "cr-1" } }
[limits]
max_runtime = "20h"
"""


@pytest.fixture
def cli(moto_aws: MotoAws, tmp_path: Path) -> CliHarness:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BAI_"))}
    (tmp_path / "b.toml").write_text(HELLO + _BLOCK)
    return CliHarness(tmp_path, {**environment, **moto_aws.environment()})


def ends_in(aws: MotoAws, hours: float) -> datetime:
    """Let the block end so many hours from now, and return the time from which EC2 terminates its machines."""
    end = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(hours=hours)
    aws.capacity_blocks.ends["cr-1"] = end
    return end - timedelta(minutes=30)


def said(text: str) -> str:
    return " ".join(text.split())


def expires_of(call: Call) -> datetime:
    names = [name for name, value in call.parameters.items() if value == "bai:expires"]
    value = call.parameters[names[0].replace(".Key", ".Value")]
    return datetime.strptime(value, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)


def runtime_of(aws: MotoAws, job_id: str) -> timedelta:
    """Return how long the agent lets the benchmark run."""
    found = aws.client("s3", SETUP).get_object(Bucket=aws.bucket, Key=f"jobs/{job_id}/job.toml")
    job = tomli.loads(found["Body"].read().decode())
    return parse_duration(str(job["limits"]["max_runtime"]))


def test_a_block_that_ends_too_early_shortens_the_job(moto_aws: MotoAws, cli: CliHarness) -> None:
    last = ends_in(moto_aws, 12)

    planned = cli.bai("plan", "b.toml")
    submitted = cli.bai("submit", "b.toml", "--job-id", "short-1")
    again = cli.bai("submit", "b.toml", "--job-id", "short-1")

    assert (planned.code, submitted.code, again.code) == (0, 0, 0), submitted.stderr + again.stderr
    sentence = f"warning: the capacity block cr-1 ends at {last + timedelta(minutes=30):%Y-%m-%d %H:%M} UTC"
    assert sentence in said(planned.stdout + planned.stderr)
    assert sentence in said(submitted.stderr)
    assert "instead of 20h; before and after it a machine may take" in said(submitted.stderr)
    [call] = moto_aws.calls("RunInstances")
    assert last - timedelta(minutes=2) < expires_of(call) <= last
    assert timedelta(hours=9) < runtime_of(moto_aws, "short-1") < timedelta(hours=10)


def test_an_interrupted_submission_is_repeated_with_its_original_time(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    ends_in(moto_aws, 12)
    moto_aws.prevents = lambda call: call.action == "PutObject" and "launch.json" in call.resource
    failed = cli.bai("submit", "b.toml", "--job-id", "cut-1")
    before = runtime_of(moto_aws, "cut-1")
    moto_aws.prevents = lambda call: False
    last = ends_in(moto_aws, 11.9)

    repeated = cli.bai("submit", "b.toml", "--job-id", "cut-1")

    assert failed.code != 0
    assert repeated.code == 0, repeated.stderr
    assert runtime_of(moto_aws, "cut-1") == before
    assert expires_of(moto_aws.calls("RunInstances")[-1]) <= last


def test_a_job_that_fits_its_block_is_not_changed(moto_aws: MotoAws, cli: CliHarness) -> None:
    ends_in(moto_aws, 48)

    submitted = cli.bai("submit", "b.toml", "--job-id", "fits-1")

    assert submitted.code == 0
    assert "capacity block" not in submitted.stderr
    assert runtime_of(moto_aws, "fits-1") == timedelta(hours=20)


def test_a_machine_without_a_block_requests_no_reservation(moto_aws: MotoAws, cli: CliHarness) -> None:
    (cli.folder / "b.toml").write_text(HELLO)

    assert cli.bai("submit", "b.toml").code == 0
    assert moto_aws.calls("DescribeCapacityReservations") == []


@pytest.mark.parametrize(
    ("hours", "state", "sentence"),
    [
        (2.0, "active", "no time is left for the benchmark"),
        (12.0, "expired", "the capacity block cr-1 is expired; correct CapacityReservationId"),
        (None, "active", "there is no cr-1 in eu-central-1; correct CapacityReservationId"),
    ],
)
def test_a_block_without_time_is_refused(
    moto_aws: MotoAws, cli: CliHarness, hours: float | None, state: str, sentence: str
) -> None:
    if hours is not None:
        ends_in(moto_aws, hours)
    moto_aws.capacity_blocks.state = state

    for command in ("plan", "submit"):
        refused = cli.bai(command, "b.toml")

        assert refused.code == 2, refused.stderr
        assert sentence in said(refused.stderr)
    assert moto_aws.calls("RunInstances") == []


def test_a_submission_warns_if_it_may_not_look_up_the_end_of_a_capacity_block(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    kept = [
        replace(each, actions=tuple(name for name in each.actions if "CapacityReservations" not in name))
        for each in moto_aws.policies.documented("user").statements
    ]
    moto_aws.policies.attach("user", Policy(tuple(kept)))

    submitted = cli.bai("submit", "b.toml", "--job-id", "unknown-1")
    found = {each["check"]: each for each in cli.bai("doctor", "b.toml", "--json").objects}

    assert submitted.code == 0, submitted.stderr
    assert "warning: the end of the capacity block cr-1 is not known" in said(submitted.stderr)
    assert runtime_of(moto_aws, "unknown-1") == timedelta(hours=20)
    assert found["capacity block"]["health"] == "unknown"
    assert "ec2:DescribeCapacityReservations" in found["capacity block"]["sentence"]
    moto_aws.policies.take_refused()


def test_doctor_says_when_the_block_ends(moto_aws: MotoAws, cli: CliHarness) -> None:
    last = ends_in(moto_aws, 12)

    found = {each["check"]: each for each in cli.bai("doctor", "b.toml", "--json").objects}

    assert found["capacity block"]["health"] == "ok"
    assert f"from {last:%H:%M} on" in found["capacity block"]["sentence"]
