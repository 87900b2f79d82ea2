"""`bai plan`, `bai submit` and `bai run` on EC2, as a person calls them, against real APIs whose instances never boot."""

from __future__ import annotations

import base64
import gzip
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from cli_harness import CliHarness
from moto_aws import REGION, MotoAws, open_moto_aws
from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.control_plane.price_list import HOURLY

_DESCRIPTOR = """
spec_version = "0.1.0"
[info]
description = "d"
execution_engine = "aws.ec2"
[info.labels]
task_name = "hello"
[hardware]
instance_type = "t3.small"
[aws.ec2]
image = "ssm:/aws/service/debian/release/12/latest/amd64"
init_commands = ["touch /ready"]
[env.secrets]
HF_TOKEN = "ssm:/team/token"
[ml]
benchmark_code = "$(BAI_SCRIPTS_PATH)/run.sh"
[ml.script]
path = "scripts"
[[data.sources]]
src = "d.csv"
path = "/data/d.csv"
[[data.sources]]
src = "folder/"
path = "/data/folder"
[[data.sources]]
src = "https://example.com/x.npz"
path = "x.npz"
"""

_SMALL = """
spec_version = "0.1.0"
[info]
description = "d"
[hardware]
instance_type = "t3.small"
[aws.ec2]
image = "ami-0deb1200000000001"
[ml]
benchmark_code = "true"
"""


@pytest.fixture(scope="module")
def moto_aws() -> Iterator[MotoAws]:
    with open_moto_aws() as aws:
        yield aws


@pytest.fixture(autouse=True)
def _undisturbed(moto_aws: MotoAws) -> Iterator[None]:
    yield
    moto_aws.faults.clear()
    moto_aws.answered = lambda call: None
    for each in moto_aws.instances():
        moto_aws.client("ec2", "setup").terminate_instances(InstanceIds=[each["InstanceId"]])


@pytest.fixture
def cli(moto_aws: MotoAws, tmp_path: Path) -> CliHarness:
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "run.sh"
    script.write_text("#!/bin/sh\necho hello\n")
    script.chmod(0o755)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("a")
    (tmp_path / "d.csv").write_text("1,2\n")
    (tmp_path / "b.toml").write_text(_DESCRIPTOR)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BAI_"))}
    # What it is killed over stays in the test's folder.
    (tmp_path / "tmp").mkdir()
    return CliHarness(tmp_path, {**kept, **moto_aws.environment(), "TMPDIR": str(tmp_path / "tmp")})


def stored(moto_aws: MotoAws, key: str) -> bytes:
    content: bytes = moto_aws.client("s3", "setup").get_object(Bucket=moto_aws.bucket, Key=key)["Body"].read()
    return content


def keys(moto_aws: MotoAws, prefix: str) -> list[str]:
    answer = moto_aws.client("s3", "setup").list_objects_v2(Bucket=moto_aws.bucket, Prefix=prefix)
    return [each["Key"] for each in answer.get("Contents", [])]


def user_data(moto_aws: MotoAws, instance_id: str) -> str:
    answer = moto_aws.client("ec2", "setup").describe_instance_attribute(
        InstanceId=instance_id, Attribute="userData"
    )
    return gzip.decompress(base64.b64decode(answer["UserData"]["Value"])).decode()


def test_a_submission_launches_one_instance_with_everything_it_needs(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    done = cli.bai("submit", "b.toml", "--job-id", "all-1")

    assert (done.code, done.stdout) == (0, "all-1\n"), done.stderr
    [instance] = moto_aws.instances()
    tags = {each["Key"]: each["Value"] for each in instance["Tags"]}
    assert tags["bai:job-id"] == "all-1"
    assert tags["bai:store"] == f"s3://{moto_aws.bucket}/jobs"
    assert instance["InstanceType"] == "t3.small"
    told = user_data(moto_aws, instance["InstanceId"])
    assert "touch /ready" in told
    job = stored(moto_aws, "jobs/all-1/job.toml").decode()
    assert 'max_runtime = "1d"' in job
    assert 'power = "off"' in job
    assert "inherit_env" not in job
    assert "file:" not in job
    for key in (*keys(moto_aws, "scripts/"), *keys(moto_aws, "data/")):
        assert f"s3://{moto_aws.bucket}/{key}" in job
    agent = [each for each in keys(moto_aws, "agent/") if each in told]
    assert len(agent) == 1
    # Where `bai reap`, and every command in passing, looks for what should be gone.
    assert keys(moto_aws, "jobs/.regions/") == [f"jobs/.regions/{REGION}"]


def test_folders_are_uploaded_as_archives_with_file_modes(moto_aws: MotoAws, cli: CliHarness) -> None:
    assert cli.bai("submit", "b.toml", "--job-id", "tar-1").code == 0

    [scripts] = keys(moto_aws, "scripts/")
    with tarfile.open(fileobj=BytesIO(stored(moto_aws, scripts))) as archive:
        assert [(each.name, each.mode) for each in archive] == [("run.sh", 0o755)]
    assert len(keys(moto_aws, "data/")) == 2


def test_submitting_twice_with_the_same_id_launches_one_job(moto_aws: MotoAws, cli: CliHarness) -> None:
    first, second = (cli.bai("submit", "b.toml", "--job-id", "twice-1") for _ in range(2))

    assert (first.code, second.code) == (0, 0)
    assert "exists already" in second.stderr
    assert len(moto_aws.instances()) == 1

    others = {cli.bai("submit", "b.toml").stdout for _ in range(2)}

    assert len(others) == 2
    assert len(moto_aws.instances()) == 3


def test_the_same_id_for_another_job_is_refused(moto_aws: MotoAws, cli: CliHarness) -> None:
    assert cli.bai("submit", "b.toml", "--job-id", "other-1").code == 0

    again = cli.bai("submit", "b.toml", "--job-id", "other-1", "--", "--more")

    assert again.code == 2
    assert "runs something else" in again.stderr
    assert len(moto_aws.instances()) == 1


def test_options_that_set_keys_change_the_launch_and_the_jobs_identity(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    options = ("--job-id", "set-1", "--instance-type", "t3.medium", "--set", "ml.args=--batch 64")

    first = cli.bai("submit", "b.toml", *options)
    other = cli.bai("submit", "b.toml", *options[:-1], "ml.args=--batch 65")

    assert (first.code, other.code) == (0, 2), first.stderr
    assert "something else than b.toml and the options say now" in other.stderr
    [instance] = moto_aws.instances()
    assert instance["InstanceType"] == "t3.medium"
    [status] = cli.bai("status", "set-1", "--json").objects
    assert status["set"] == {"ml.args": "--batch 64", "hardware.instance_type": "t3.medium"}


def test_a_submission_killed_at_any_call_and_repeated_launches_once(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    """Each round kills the submitter when AWS has carried out its next call, before it hears of that."""
    (cli.folder / "b.toml").write_text(_SMALL)
    assert cli.bai("submit", "b.toml", "--job-id", "warm-up").code == 0
    killed_at: list[str] = []
    while True:
        job_id = f"killed-{len(killed_at)}"
        count = 0
        running: list[subprocess.Popen[str]] = []

        def kill(call: Call, running: list[subprocess.Popen[str]] = running) -> None:
            nonlocal count
            if count == len(killed_at):
                killed_at.append(call.action)
                running[0].send_signal(signal.SIGKILL)
                count = -1
            elif count >= 0:
                count += 1

        moto_aws.answered = kill
        running.append(cli.start("submit", "b.toml", "--job-id", job_id))
        running[0].communicate(timeout=120)
        moto_aws.answered = lambda call: None
        if running[0].returncode == 0:
            break
        assert running[0].returncode == -signal.SIGKILL

        repeated = cli.bai("submit", "b.toml", "--job-id", job_id)

        assert repeated.code == 0, repeated.stderr
        mine = moto_aws.instances({"Name": "tag:bai:job-id", "Values": [job_id]})
        assert len(mine) == 1, killed_at
        decided = json.loads(stored(moto_aws, f"jobs/{job_id}/attempts/0/launched.json"))
        assert decided["instances"] == [mine[0]["InstanceId"]]
    assert {"DescribeImages", "PutObject", "RunInstances"} <= set(killed_at)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["submit", "run"])
def test_an_interruption_during_the_launch_reports_what_may_run(
    moto_aws: MotoAws, cli: CliHarness, command: str, number: signal.Signals
) -> None:
    (cli.folder / "b.toml").write_text(_SMALL)
    running: list[subprocess.Popen[str]] = []

    def interrupt(call: Call) -> None:
        if call.action == "RunInstances":
            running[0].send_signal(number)
            # The answer comes too late.
            running[0].wait(timeout=120)

    moto_aws.answered = interrupt
    running.append(cli.start(command, "b.toml", *(("--on", "ec2") if command == "run" else ())))
    _, err = running[0].communicate(timeout=120)

    assert running[0].returncode == 128 + number, err
    job_id = next(
        tag["Value"] for each in moto_aws.instances() for tag in each["Tags"] if tag["Key"] == "bai:job-id"
    )
    assert f"`bai status {job_id}` shows the job" in err
    assert f"--job-id {job_id}" in err
    assert "possibly running, and costs" in err
    # And the command that it names ends the machine.
    assert f"`bai cancel {job_id} --now`" in err
    assert cli.bai("cancel", job_id, "--now").code == 0
    assert moto_aws.instances() == []


def test_an_interruption_before_the_launch_reports_that_nothing_runs(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    (cli.folder / "b.toml").write_text(_SMALL)
    running: list[subprocess.Popen[str]] = []

    def interrupt(call: Call) -> None:
        if call.action == "DescribeImages":
            running[0].send_signal(signal.SIGINT)
            running[0].wait(timeout=120)

    moto_aws.answered = interrupt
    running.append(cli.start("submit", "b.toml"))
    out, err = running[0].communicate(timeout=120)

    assert running[0].returncode == 130, err
    assert f"before the start: nothing of {out.strip()} runs" in err
    assert "may run" not in err
    assert moto_aws.instances() == []


def test_commands_that_are_too_large_are_refused_with_advice(moto_aws: MotoAws, cli: CliHarness) -> None:
    noise = base64.b64encode(os.urandom(30_000)).decode()
    text = _DESCRIPTOR.replace('["touch /ready"]', f'["touch /ready", "echo {noise}"]')
    (cli.folder / "b.toml").write_text(text)

    done = cli.bai("submit", "b.toml")

    assert done.code == 2, done.stderr
    assert "init_commands[1]" in done.stderr
    assert "[ml.script]" in done.stderr
    assert moto_aws.instances() == []


def test_the_launch_request_shown_by_plan_is_the_one_sent(moto_aws: MotoAws, cli: CliHarness) -> None:
    planned = json.loads(cli.bai("plan", "b.toml", "--job-id", "plan-1", "--json").stdout)
    calls = len(moto_aws.calls("RunInstances"))
    assert cli.bai("submit", "b.toml", "--job-id", "plan-1").code == 0

    launch = json.loads(stored(moto_aws, "jobs/plan-1/attempts/0/launch.json"))
    assert planned["request"]["UserData"] == launch["request"]["UserData"]
    assert _without_times(planned["request"]) == _without_times(launch["request"])
    assert planned["candidates"] == launch["candidates"]
    assert len(moto_aws.calls("RunInstances")) == calls + 1
    [instance] = moto_aws.instances()
    assert user_data(moto_aws, instance["InstanceId"]) == planned["user_data"]


def _without_times(request: dict[str, Any]) -> dict[str, Any]:
    """Return a request without the tag that holds when it was made."""
    tags = [
        {**each, "Tags": [tag for tag in each["Tags"] if tag["Key"] != "bai:expires"]}
        for each in request["TagSpecifications"]
    ]
    return {**request, "TagSpecifications": tags}


def test_a_plan_without_credentials_shows_placeholders_for_unknown_values(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    before = len(moto_aws.control_plane.calls)
    unset = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "BAI_BUCKET"}
    assert unset <= cli.environment.keys()
    bare = {name: value for name, value in cli.environment.items() if name not in unset}

    done = replace(cli, environment=bare).bai("plan", "b.toml")

    assert done.code == 0, done.stderr
    assert "<resolved at submission: the AMI that ssm:/aws/service/debian" in done.stdout
    assert "<resolved at submission: the bucket>" in done.stdout
    assert "at most 25.8 instance hours; the price is unknown" in done.stdout
    assert len(moto_aws.control_plane.calls) == before


def test_a_submission_without_credentials_fails_and_prints_no_job_id(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    nobody = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_CONFIG_FILE": "/nowhere"}

    done = cli.bai("submit", "b.toml", env=nobody)

    assert (done.code, done.stdout) == (2, "")
    assert "credentials" in done.stderr


@pytest.mark.parametrize(
    ("overrides", "code", "words"),
    [
        ("hardware.instance_type=local", 2, '"local" is not an EC2 instance type'),
        ("hardware.instance_type=${TYPE}", 2, '"${TYPE}" is not an EC2 instance type'),
        ("hardware.instance_type=t3.smal", 0, 'did you mean "t3.small"?'),
        ("aws.ec2.region=eu-centrall-1", 0, 'did you mean "eu-central-1"?'),
    ],
)
def test_names_unknown_to_ec2_are_reported_by_validate_and_plan(
    moto_aws: MotoAws, cli: CliHarness, overrides: str, code: int, words: str
) -> None:
    bare = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_CONFIG_FILE": "/nowhere"}
    for command in ("validate", "plan"):
        done = cli.bai(command, "b.toml", "--on", "ec2", "--set", overrides, env=bare)
        said = " ".join((done.stdout + done.stderr).split())
        assert (done.code, words in said) == (code, True), said


def test_a_plan_uses_the_price_in_the_configuration(moto_aws: MotoAws, cli: CliHarness) -> None:
    config = cli.folder / "config.toml"
    config.write_text('[prices]\n"t3.small" = 0.1\n[limits]\nmax_runtime = "1h"\npull_timeout = "30m"\n')

    done = cli.bai("plan", "b.toml", "--json", env={"BAI_CONFIG": str(config)})

    cost = json.loads(done.stdout)["cost"]

    assert cost["instance_hours"] == pytest.approx(2.275)
    assert cost["usd_an_hour"] == 0.1
    assert cost["usd_an_hour_of_volumes"] > 0
    assert cost["usd"] == pytest.approx(2.275 * (0.1 + cost["usd_an_hour_of_volumes"]))


def test_an_unknown_price_is_looked_up_in_the_price_list(cli: CliHarness) -> None:
    cost = json.loads(cli.bai("plan", "b.toml", "--json").stdout)["cost"]

    hourly = HOURLY["t3.small"] + cost["usd_an_hour_of_volumes"]
    assert cost["usd"] == pytest.approx(cost["instance_hours"] * hourly)


def test_without_a_price_list_the_price_is_unknown(moto_aws: MotoAws, cli: CliHarness) -> None:
    moto_aws.fail("GetProducts", code="AccessDeniedException", status=400)

    done = cli.bai("plan", "b.toml")

    assert done.code == 0, done.stderr
    assert "the price is unknown (the price list does not answer: AccessDeniedException)" in done.stdout


def test_plan_user_data_prints_base64_for_the_ec2_console(moto_aws: MotoAws, cli: CliHarness) -> None:
    done = cli.bai("plan", "b.toml", "--user-data")

    content = base64.b64decode(done.stdout.strip(), validate=True)
    assert len(content) <= 16_384
    assert gzip.decompress(content).startswith(b"Content-Type: multipart/mixed")
    assert moto_aws.instances() == []


def test_no_secret_is_in_user_data_or_tags_or_the_store(moto_aws: MotoAws, cli: CliHarness) -> None:
    planted = [
        "planted-secret",
        moto_aws.identities.of("user").secret_key,
        moto_aws.identities.of("user").access_key,
    ]

    done = cli.bai("submit", "b.toml", "--job-id", "secret-1", env={"HF_TOKEN": "planted-secret"})

    [instance] = moto_aws.instances()
    told = [
        done.stdout,
        done.stderr,
        user_data(moto_aws, instance["InstanceId"]),
        json.dumps(instance["Tags"]),
    ]
    told += [stored(moto_aws, key).decode() for key in keys(moto_aws, "jobs/secret-1/")]
    assert len(told) >= 7
    for text in told:
        assert not [each for each in planted if each in text]


@pytest.mark.parametrize(
    ("line", "replacement", "said"),
    [
        ('HF_TOKEN = "ssm:/team/token"', 'HF_TOKEN = "env:HF_TOKEN"', "is read on this machine"),
        (
            "https://example.com/x.npz",
            "https://example.com/x.npz?X-Amz-Signature=abc",
            "a password or a signature",
        ),
        (
            "ssm:/aws/service/debian/release/12/latest/amd64",
            "ami-0123456789abcdef0",
            "does not exist in eu-central-1",
        ),
        ("ssm:/aws/service/debian/release/12/latest/amd64", "ssm:/aws/service/none", "there is no parameter"),
        (
            "ssm:/aws/service/debian/release/12/latest/amd64",
            "ami-0d1a0000000000003",
            "is for arm64, but t3.small",
        ),
        ('instance_type = "t3.small"', 'instance_type = "t3.smal"', 'no instance type "t3.smal"'),
        (
            'instance_type = "t3.small"',
            'instance_type = "t3.small"\navailability_zone = "eu-central-1z"',
            'no subnet is in "eu-central-1z"',
        ),
    ],
)
def test_a_mistake_is_reported_before_anything_is_written(
    moto_aws: MotoAws, cli: CliHarness, line: str, replacement: str, said: str
) -> None:
    (cli.folder / "b.toml").write_text(_DESCRIPTOR.replace(line, replacement))
    jobs = keys(moto_aws, "jobs/")

    done = cli.bai("submit", "b.toml")

    assert done.code == 2, done.stderr
    assert said in done.stderr
    assert moto_aws.instances() == []
    assert keys(moto_aws, "jobs/") == jobs


def test_a_zone_is_honoured_by_name_and_by_id(moto_aws: MotoAws, cli: CliHarness) -> None:
    zones = moto_aws.client("ec2", "setup").describe_availability_zones()["AvailabilityZones"]
    by_name = {each["ZoneName"]: each["ZoneId"] for each in zones}
    wanted = f"{REGION}b"
    for number, line in enumerate((f'availability_zone = "{wanted}"', f'aws_zone_id = "{by_name[wanted]}"')):
        file = cli.folder / f"zone-{number}.toml"
        file.write_text(_DESCRIPTOR.replace('"t3.small"', f'"t3.small"\n{line}'))
        assert cli.bai("submit", file.name).code == 0

    assert [each["Placement"]["AvailabilityZone"] for each in moto_aws.instances()] == [wanted, wanted]


def test_a_server_and_its_client_are_planned_and_launched_in_one_zone(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    server = f"""
[server.hardware]
instance_type = "t3.medium"
availability_zone = "{REGION}b"
[server.env]
start_command = "serve"
ports = [8080]
"""
    file = cli.folder / "inference.toml"
    file.write_text(_DESCRIPTOR.replace('"t3.small"', '"t3.small"\nstrategy = "inference"') + server)

    planned = cli.bai("plan", file.name).stdout
    done = cli.bai("submit", file.name, "--job-id", "two-types")

    assert f"# Launches 1 × t3.small and 1 × t3.medium as its server in {REGION}" in planned
    assert "with InstanceType t3.medium; both or none are launched." in planned
    assert "(2 + 2)" in planned
    assert done.code == 0, done.stderr
    assert "launching 1 × t3.small and 1 × t3.medium as its server" in done.stderr
    machines = moto_aws.instances()
    assert [each["InstanceType"] for each in machines] == ["t3.small", "t3.medium"]
    assert {each["Placement"]["AvailabilityZone"] for each in machines} == {f"{REGION}b"}
    client, served = (user_data(moto_aws, each["InstanceId"]) for each in machines)
    assert "first_node=1" not in client
    assert "first_node=1" in served
    # and a repeat sends the same two requests, which EC2 answers with the same machines
    launched = "jobs/two-types/attempts/0/launched.json"
    moto_aws.client("s3", "setup").delete_object(Bucket=moto_aws.bucket, Key=launched)
    assert cli.bai("submit", file.name, "--job-id", "two-types").code == 0
    assert len(moto_aws.instances()) == 2


def test_a_large_descriptor_is_read_from_the_store(moto_aws: MotoAws, cli: CliHarness) -> None:
    noise = base64.b64encode(os.urandom(30_000)).decode()
    text = _DESCRIPTOR.replace('"$(BAI_SCRIPTS_PATH)/run.sh"', f"'''\necho {noise}\necho 2\n'''")
    (cli.folder / "b.toml").write_text(text)

    done = cli.bai("submit", "b.toml", "--job-id", "large-1")

    assert done.code == 0, done.stderr
    [instance] = moto_aws.instances()
    told = user_data(moto_aws, instance["InstanceId"])
    assert f"s3://{moto_aws.bucket}/jobs/large-1/job.toml" in told
    assert noise not in told


def test_a_run_without_capacity_in_any_zone_ends_with_an_explanation(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    for zone in moto_aws.subnets:
        moto_aws.no_capacity(zone)

    done = cli.bai("run", "b.toml", "--job-id", "full-1")

    assert done.code == 5
    assert "launching 1 × t3.small in eu-central-1: at most 25.8 instance hours" in done.stderr
    assert "No zone had room for t3.small" in done.stderr
    assert json.loads(stored(moto_aws, "jobs/full-1/result.json"))["outcome"] == "capacity"


def gang(cli: CliHarness, *, processes: str = "1", more: str = "", machines: str = "2") -> None:
    """Write the descriptor of a job of several machines."""
    text = _SMALL.replace(
        '"t3.small"\n',
        '"t3.small"\nstrategy = "torchrun"\n[hardware.distributed]\n'
        f'num_instances = {machines}\nprocesses_per_instance = "{processes}"\n',
    )
    (cli.folder / "b.toml").write_text(text + more)


def test_all_machines_of_a_job_are_launched_by_one_call(moto_aws: MotoAws, cli: CliHarness) -> None:
    gang(cli)
    planned = cli.bai("plan", "b.toml", "--on", "ec2")

    done = cli.bai("submit", "b.toml", "--job-id", "gang-1")

    assert (planned.code, done.code) == (0, 0), planned.stderr + done.stderr
    assert planned.stdout.startswith(f"# Launches 2 × t3.small in {REGION} from the image ami-")
    assert planned.stdout.splitlines()[1].startswith("# Costs at most ")
    assert f"# RunInstances: 2 × t3.small in {REGION}" in planned.stdout
    assert '# CreateSecurityGroup "bai ' in planned.stdout
    # A day, and what comes before and after it, the wait for each other too.
    assert "at most 52.2 instance hours" in " ".join(planned.stdout.split())
    machines = moto_aws.instances()
    ranks = {each["AmiLaunchIndex"]: each["InstanceId"] for each in machines}
    launched = json.loads(stored(moto_aws, "jobs/gang-1/attempts/0/launched.json"))["instances"]
    assert [ranks[0], ranks[1]] == launched
    assert len({each["SubnetId"] for each in machines}) == 1


def test_an_elastic_job_starts_with_as_many_machines_as_ec2_can_launch(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    gang(cli, machines='"2:4"', more="[elastic]\nnodes = 3\n")
    planned = cli.bai("plan", "b.toml", "--on", "ec2")
    moto_aws.room(2)

    done = cli.bai("submit", "b.toml", "--job-id", "elastic-1")

    assert (planned.code, done.code) == (0, 0), planned.stderr + done.stderr
    assert planned.stdout.startswith(f"# Launches 2 to 3 × t3.small in {REGION} from the image ami-")
    # The bound is that of four machines: `bai scale` may launch another one, which may be on until the `bai:expires` of all.
    assert "at most 106.4 instance hours" in " ".join(planned.stdout.split())
    assert f"# RunInstances: 2 to 3 × t3.small in {REGION}" in planned.stdout
    assert "# Takes 6 vCPUs of the account's quota (3 × 2)" in planned.stdout
    assert f"launching 2 to 3 × t3.small in {REGION}" in done.stderr
    assert "EC2 had room for 2 of 3 machines" in " ".join(done.stderr.split())
    launched = json.loads(stored(moto_aws, "jobs/elastic-1/attempts/0/launched.json"))["instances"]
    assert len(launched) == len(moto_aws.instances()) == 2
    # No machine has reported yet, and a job can be scaled within its range.
    status = cli.bai("status", "elastic-1", "--json")
    more, fewer = cli.bai("scale", "elastic-1", "4"), cli.bai("scale", "elastic-1", "2")
    assert status.objects[0]["status"] == "PENDING", status.stderr
    assert (more.code, fewer.code) == (0, 0), more.stderr + fewer.stderr
    # The machines that are missing are launched at once, as nodes with numbers that the first launch did not ask for.
    assert len(moto_aws.instances()) == 4
    later = [
        json.loads(stored(moto_aws, f"jobs/elastic-1/attempts/0/launches/{number}/launched.json"))
        for number in (1, 2)
    ]
    assert [(each["first_node"], each["replaces"]) for each in later] == [(3, []), (4, [])]
    desired = [
        json.loads(stored(moto_aws, f"jobs/elastic-1/attempts/0/requests/{number}.json"))["desired"]
        for number in (0, 1)
    ]
    assert desired == [4, 2]


def test_plan_shows_user_data_in_clear_only_when_asked(moto_aws: MotoAws, cli: CliHarness) -> None:
    short = cli.bai("plan", "b.toml", "--on", "ec2")
    whole = cli.bai("plan", "b.toml", "--on", "ec2", "--show-user-data")
    local = cli.bai("plan", "b.toml", "--on", "local", "--show-user-data")

    assert (short.code, whole.code) == (0, 0), short.stderr + whole.stderr
    assert "boothook" not in short.stdout
    assert "`--show-user-data` prints the user data in plain text" in short.stdout
    assert "boothook" in whole.stdout
    assert (local.code, local.stdout) == (2, "")
    assert "--show-user-data is for instances" in local.stderr


def test_a_thousand_machines_are_planned_and_one_more_is_refused(moto_aws: MotoAws, cli: CliHarness) -> None:
    gang(cli)

    most = cli.bai("plan", "b.toml", "--on", "ec2", "--nodes", "1000")
    one_more = cli.bai("plan", "b.toml", "--on", "ec2", "--nodes", "1001")

    assert most.code == 0, most.stderr
    assert f"# RunInstances: 1,000 × t3.small in {REGION}" in most.stdout
    assert '"MaxCount": 1000' in most.stdout
    assert "# Takes 2,000 vCPUs of the account's quota (1,000 × 2)" in most.stdout
    assert "at most 26,108.3 instance hours" in " ".join(most.stdout.split())
    assert (one_more.code, one_more.stdout) == (2, "")
    assert "hardware.distributed.num_instances" in one_more.stderr
    assert "1,001 machines are more than EC2 starts in one launch" in " ".join(one_more.stderr.split())


def test_processes_per_gpu_are_refused_for_an_instance_type_without_gpus(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    gang(cli, processes="gpus")

    nobody = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_CONFIG_FILE": "/nowhere"}
    for command, more in (
        (("plan", "b.toml", "--on", "ec2"), {}),
        (("plan", "b.toml", "--on", "ec2"), nobody),
        (("run", "b.toml", "--on", "ec2"), {}),
        (("submit", "b.toml"), {}),
    ):
        done = cli.bai(*command, env=more)
        assert done.code == 2, done.stderr
        assert "hardware.distributed.processes_per_instance" in done.stderr
        assert "t3.small has no NVIDIA GPU" in " ".join(done.stderr.split())
    assert moto_aws.instances() == []


def test_the_job_descriptor_has_the_number_of_gpus_of_the_instance_type(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    gang(cli, processes="gpus")
    text = (cli.folder / "b.toml").read_text()
    (cli.folder / "b.toml").write_text(text.replace('"t3.small"', '"g4dn.12xlarge"'))

    done = cli.bai("submit", "b.toml", "--job-id", "gpus-1")
    again = cli.bai("submit", "b.toml", "--job-id", "gpus-1")

    assert (done.code, again.code) == (0, 0), done.stderr + again.stderr
    assert "gpus = 4" in stored(moto_aws, "jobs/gpus-1/job.toml").decode()
    assert len(moto_aws.instances()) == 2
