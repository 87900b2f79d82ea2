"""A job that waits for capacity is launched once, as soon as there is capacity, even if its submitter is killed meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cli_harness import CliHarness
from moto_aws import HELLO, MotoAws
from sandbox.fake_aws.calls import Call

from bai_agent.job.outcome import Outcome
from bai_agent.job.record import JobRecord
from executor.backends.backend import CapacityWait, SubmitListener
from executor.backends.ec2.bucket_store import bucket_store
from executor.backends.ec2.launch.ec2_submission import submit
from executor.backends.ec2.monitor.ec2_job_status import make_monitor
from executor.configuration.config import read_settings
from executor.errors import LaunchError, UsageError
from executor.planning.request import JobRequest, read_request

pytestmark = pytest.mark.usefixtures("moto_environment")

_SECONDS = 180.0
SUBMIT = ("submit", "b.toml", "--job-id", "job-1", "--set", "limits.wait_for_capacity=3m")
REFUSED = "InsufficientInstanceCapacity"
SPOT = "InstanceMarketOptions.MarketType"
CANDIDATES = (
    'instance_types = ["t3.large"]',
    "on_demand_after_spot = true",
    'run_instances = { InstanceMarketOptions = { MarketType = "spot" } }',
)
"""Keys of `[aws.ec2]` by which t3.small and t3.large are asked for, on spot and then on demand."""


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.time = datetime.now(timezone.utc).replace(microsecond=0)
        self.on_sleep: Callable[[], None] = lambda: None

    def now(self) -> datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
        self.on_sleep()


class Submitter:
    """Submits job-1, which waits for two minutes."""

    def __init__(self, aws: MotoAws, folder: Path) -> None:
        self.aws, self.clock, self.waits = aws, Clock(), list[CapacityWait]()
        self.file = folder / "b.toml"
        self.file.write_text(f'{HELLO}[limits]\nwait_for_capacity = "2m"\n')

    def submit(self) -> JobRecord:
        job_request = JobRequest(file=self.file, on="ec2")
        descriptor, _ = read_request(job_request)
        listener = SubmitListener(on_wait=self.waits.append)
        clock = self.clock
        return submit(
            job_request,
            descriptor,
            read_settings(),
            job_id="job-1",
            listener=listener,
            sleep=clock.sleep,
            now=clock.now,
        ).record

    def asks_for(self, *lines: str, wait: str | None = "2m") -> None:
        """Write further keys into `[aws.ec2]`."""
        limits = "" if wait is None else f'[limits]\nwait_for_capacity = "{wait}"\n'
        self.file.write_text(HELLO + "".join(f"{each}\n" for each in lines) + limits)

    @property
    def record(self) -> JobRecord:
        return JobRecord(bucket_store(read_settings()), "job-1")

    def tags(self) -> list[dict[str, str]]:
        return [{each["Key"]: each["Value"] for each in found["Tags"]} for found in self.aws.instances()]


@pytest.fixture
def submitter(moto_aws: MotoAws, tmp_path: Path) -> Submitter:
    return Submitter(moto_aws, tmp_path)


@pytest.fixture
def cli(moto_aws: MotoAws, tmp_path: Path) -> CliHarness:
    (tmp_path / "b.toml").write_text(f'{HELLO}[limits]\nwait_for_capacity = "2m"\n')
    return CliHarness(tmp_path, {**os.environ, **moto_aws.environment(), "HOME": str(tmp_path)})


def no_room(aws: MotoAws, *, times: int | None = None) -> None:
    for zone in aws.subnets:
        aws.no_capacity(zone, times=times)


def _asked(call: Call) -> tuple[str, str | None]:
    return call.parameters["InstanceType"], call.parameters.get(SPOT)


def wait(done: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + _SECONDS
    while not (found := done()):
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.1)
    return found


def test_zones_are_tried_again_until_one_has_capacity(submitter: Submitter) -> None:
    # given zones that have no room in three rounds
    no_room(submitter.aws, times=3)

    record = submitter.submit()

    # then it runs once, and may be on as long as one that was submitted only then
    [tags] = submitter.tags()
    calls = submitter.aws.calls("RunInstances")
    assert len(calls) == 3 * len(submitter.aws.subnets) + 1
    assert len({each.parameters["ClientToken"] for each in calls}) == len(calls)
    assert [len(submitter.waits), record.result()] == [3, None]
    last = json.loads(record.store.get(record.key("attempts/0/rounds/3/launch.json")))
    assert tags["bai:expires"] == last["expires"]
    assert last["expires"] > json.loads(record.store.get(record.key("attempts/0/launch.json")))["expires"]
    # and each wait says what was tried, and what AWS answered
    for zone in submitter.aws.subnets:
        assert zone in submitter.waits[0].sentence
    assert REFUSED in submitter.waits[0].sentence
    assert len({each.key for each in submitter.waits}) == 1


def test_all_instance_types_are_tried_on_spot_before_on_demand(submitter: Submitter) -> None:
    # given two types without room on spot, of which the second one has room on demand in a later round
    submitter.asks_for(*CANDIDATES)
    aws, zones = submitter.aws, list(submitter.aws.subnets)
    aws.fail("RunInstances", match={SPOT: "spot"}, code=REFUSED, times=None)
    aws.fail("RunInstances", match={"InstanceType": "t3.small"}, code=REFUSED, times=None)
    aws.fail("RunInstances", match={"InstanceType": "t3.large"}, code=REFUSED, times=2 * len(zones))

    record = submitter.submit()

    # then each round asks in this order, every request with a token of its own, and one machine comes
    asked = [_asked(each) for each in aws.calls("RunInstances")]
    kinds = [("t3.small", "spot"), ("t3.large", "spot"), ("t3.small", None), ("t3.large", None)]
    one_round = [kind for kind in kinds for _ in zones]
    last = next(place for place, each in enumerate(reversed(asked)) if each == kinds[0])
    rounds = len(submitter.waits) + 1
    assert rounds > 1
    assert asked == (one_round * rounds)[: len(asked)]
    assert asked[-1] == kinds[-1]
    assert last < len(one_round)
    assert len({each.parameters["ClientToken"] for each in aws.calls("RunInstances")}) == len(asked)
    [found] = aws.instances()
    assert found["InstanceType"] == "t3.large"
    # and its round's record, and what was decided, say as what and where
    said = json.loads(record.store.get(record.key(f"attempts/0/rounds/{rounds - 1}/launch.json")))
    assert [(each["type"], each["market"]) for each in said["candidates"]] == [
        (kind, market or "on-demand") for kind, market in one_round
    ]
    decided = json.loads(record.store.get(record.key("attempts/0/launched.json")))
    assert (decided["type"], decided["market"], decided["az"]) == (
        "t3.large",
        "on-demand",
        found["Placement"]["AvailabilityZone"],
    )
    # and the wait says what was tried
    assert "no zone has room for t3.small or t3.large (" in submitter.waits[0].sentence
    for what in ("t3.small on spot in", "t3.large on demand in"):
        assert f"{what} {zones[0]}: " in submitter.waits[0].sentence


def test_an_exhausted_quota_of_one_instance_type_leaves_the_others(submitter: Submitter) -> None:
    # given a first type whose quota is used up, and no room for the other one, without waiting
    submitter.asks_for(*CANDIDATES[:1], wait=None)
    aws = submitter.aws
    aws.fail("RunInstances", match={"InstanceType": "t3.small"}, code="VcpuLimitExceeded", status=400)
    full = aws.fail("RunInstances", match={"InstanceType": "t3.large"}, code=REFUSED, times=1)

    record = submitter.submit()

    # then no other zone is asked for it, and the other type is
    assert full is not None
    asked = [_asked(each)[0] for each in aws.calls("RunInstances")]
    assert asked == ["t3.small", "t3.large", "t3.large"]
    assert [each["InstanceType"] for each in aws.instances()] == ["t3.large"]
    assert record.result() is None


def test_exhausted_quotas_of_all_types_end_the_wait_and_each_is_named(submitter: Submitter) -> None:
    submitter.asks_for(*CANDIDATES)
    submitter.aws.fail("RunInstances", code="VcpuLimitExceeded", status=400, times=None)

    with pytest.raises(LaunchError, match=r"For t3\.small on spot: .*; for t3\.large on demand: ") as caught:
        submitter.submit()

    assert caught.value.outcome is Outcome.QUOTA
    assert submitter.waits == []
    assert len(submitter.aws.calls("RunInstances")) == 4


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ('["t3.large", "t9.none"]', 'there is no instance type "t9.none".* aws.ec2.instance_types'),
        ('["t4g.small"]', "is for x86_64, but t4g.small is arm64; .* aws.ec2.instance_types"),
    ],
)
def test_unsuitable_instance_types_are_refused_before_a_launch_request(
    submitter: Submitter, types: str, said: str
) -> None:
    submitter.asks_for(f"instance_types = {types}")

    with pytest.raises(UsageError, match=said):
        submitter.submit()

    assert submitter.aws.calls("RunInstances") == []


def test_a_submission_overtaken_by_another_adopts_its_launch(submitter: Submitter) -> None:
    # given a submission that has found no job, and another one that is made before it looks for a launch
    def overtake(call: Call) -> None:
        if call.action == "ListObjectsV2" and call.parameters.get("prefix") == "jobs/job-1/":
            submitter.aws.answered = lambda call: None
            submitter.submit()

    submitter.aws.answered = overtake

    record = submitter.submit()

    assert record.result() is None
    assert len(submitter.aws.instances()) == 1


def test_a_wait_without_capacity_ends_with_the_error_of_aws(submitter: Submitter) -> None:
    only = submitter.aws.subnets["eu-central-1a"]
    written = submitter.file.read_text()
    submitter.file.write_text(written.replace("[limits]", f'subnets = ["{only}"]\n[limits]'))
    no_room(submitter.aws)
    began = submitter.clock.now()

    with pytest.raises(LaunchError) as caught:
        submitter.submit()

    assert caught.value.outcome is Outcome.CAPACITY
    assert submitter.clock.now() == began + timedelta(minutes=2)
    result = submitter.record.result()
    assert result is not None
    assert result["outcome"] == "capacity"
    assert result["sentence"].startswith("No zone had room for t3.small within 2m (eu-central-1a); ")
    assert REFUSED in result["sentence"]
    # and nothing was decided before
    assert len(submitter.waits) > 10


def test_a_cancel_ends_the_wait_at_once(submitter: Submitter) -> None:
    no_room(submitter.aws)
    submitter.clock.on_sleep = lambda: None if len(submitter.waits) < 2 else _cancel(submitter.record)

    with pytest.raises(LaunchError) as caught:
        submitter.submit()

    assert caught.value.outcome is Outcome.CANCELLED
    assert len(submitter.waits) == 2
    assert (submitter.record.result() or {})["exit_code"] == 4
    assert submitter.aws.instances() == []


def _cancel(record: JobRecord) -> None:
    record.cancel(by="test")


def test_an_error_that_waiting_cannot_fix_ends_the_wait(submitter: Submitter) -> None:
    no_room(submitter.aws, times=1)

    def use_up_the_quota() -> None:
        submitter.aws.fail("RunInstances", code="VcpuLimitExceeded", status=400)

    submitter.clock.on_sleep = use_up_the_quota

    with pytest.raises(LaunchError) as caught:
        submitter.submit()

    assert caught.value.outcome is Outcome.QUOTA
    assert len(submitter.waits) == 1


def test_a_stored_launch_request_of_another_process_is_not_sent(submitter: Submitter) -> None:
    # given a job that waits, and a later round of it with other user data
    no_room(submitter.aws)

    def plant() -> None:
        key = submitter.record.key("attempts/0/launch.json")
        table = json.loads(submitter.record.store.get(key))
        table["wait"]["round"] = 1
        table["request"]["UserData"] = "IyEvYmluL3No"
        planted = submitter.record.key("attempts/0/rounds/1/launch.json")
        submitter.record.store.put(planted, json.dumps(table).encode(), if_absent=True)

    submitter.clock.on_sleep = plant

    # when that round is due, and when the submission is repeated
    for _ in range(2):
        with pytest.raises(UsageError, match=r"rounds/1/launch.json does not match .* UserData"):
            submitter.submit()

    # then it is never sent
    assert len(submitter.aws.calls("RunInstances")) == len(submitter.aws.subnets)


def test_launch_records_forged_by_an_instance_change_nothing(submitter: Submitter) -> None:
    # Given a submission that is interrupted after its third round, and a machine of another job, which makes folders of rounds
    no_room(submitter.aws)

    def interrupt() -> None:
        if len(submitter.waits) == 3:
            raise KeyboardInterrupt

    submitter.clock.on_sleep = interrupt
    with pytest.raises(KeyboardInterrupt):
        submitter.submit()
    submitter.aws.policies.attach("instance")
    theirs = submitter.aws.client("s3", "instance")
    for name in ("3", "4", "5", "999999", "9" * 400, "-1", "\u0665", "007"):
        key = f"jobs/job-1/attempts/0/rounds/{name}/nodes/launch.json"
        theirs.put_object(Bucket=submitter.aws.bucket, Key=key, Body=b"{}")
    submitter.aws.policies.take_refused()
    monitor = make_monitor(submitter.record, read_settings())
    assert "The job waits for capacity: no zone has room" in monitor.observe().sentence
    third = json.loads(submitter.record.store.get("job-1/attempts/0/rounds/2/launch.json"))
    assert (monitor.launch or {})["expires"] == third["expires"]

    # When there is room, and it is submitted again
    submitter.aws.faults.clear()
    submitter.clock.on_sleep = lambda: None
    submitter.submit()

    # Then the next round launches it
    [tags] = submitter.tags()
    last = json.loads(submitter.record.store.get("job-1/attempts/0/rounds/3/launch.json"))
    assert tags["bai:expires"] == last["expires"] > third["expires"]
    assert len(submitter.aws.calls("RunInstances")) == 3 * len(submitter.aws.subnets) + 1


def test_a_submission_killed_while_waiting_for_capacity_launches_one_machine(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    # given a first round without room, and a submitter that is killed when EC2 has accepted a later candidate of the second
    written = (cli.folder / "b.toml").read_text()
    (cli.folder / "b.toml").write_text(written.replace("[limits]", "\n".join([*CANDIDATES, "[limits]"])))
    planned = cli.bai("plan", "b.toml").stdout
    turns = ["t3.small on spot", "t3.large on spot", "t3.small on demand", "t3.large on demand"]
    assert re.findall(r"^#.*: 1 × (\S+ on \S+) in", planned, re.MULTILINE) == turns
    no_room(moto_aws, times=4)
    moto_aws.fail("RunInstances", match={SPOT: "spot"}, code=REFUSED, times=None)
    moto_aws.fail("RunInstances", match={"InstanceType": "t3.small"}, code=REFUSED, times=None)
    running: list[subprocess.Popen[str]] = []

    def kill(call: Call) -> None:
        if call.action == "RunInstances" and moto_aws.instances():
            running[0].send_signal(signal.SIGKILL)

    moto_aws.answered = kill
    running.append(cli.start("submit", "b.toml", "--job-id", "job-1", stdout=subprocess.DEVNULL, stderr=None))
    assert running[0].wait(timeout=_SECONDS) == -signal.SIGKILL
    moto_aws.answered = lambda call: None
    [launched] = moto_aws.instances()

    # when it is submitted again
    done = cli.bai("submit", "b.toml", "--job-id", "job-1")

    # then it is that machine
    assert (done.code, done.stdout) == (0, "job-1\n"), done.stderr
    assert [each["InstanceId"] for each in moto_aws.instances()] == [launched["InstanceId"]]
    assert launched["InstanceType"] == "t3.large"
    asked = [_asked(each) for each in moto_aws.calls("RunInstances")]
    assert asked[-1] == ("t3.large", None)


def test_an_interrupted_wait_for_capacity_continues_where_it_stopped(
    moto_aws: MotoAws, cli: CliHarness
) -> None:
    # given a submitter that is interrupted while it waits, and `bai status`, which tells of it
    no_room(moto_aws)
    err = cli.folder / "err"
    with err.open("w") as stderr:
        waiting = cli.start(*SUBMIT, stdout=subprocess.DEVNULL, stderr=stderr)
        wait(lambda: _pauses(err.read_text()), "a pause between two rounds")
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(timeout=_SECONDS) == 130
    (status,) = cli.bai("status", "job-1", "--json").objects
    assert (status["status"], status["phase"]) == ("PENDING", "waiting")
    assert "The job waits for capacity: no zone has room for t3.small" in status["machine"]
    said = err.read_text().splitlines()
    assert REFUSED in err.read_text()
    assert "nothing of job-1 runs" in said[-1]
    assert "`--job-id job-1` continues the wait" in said[-1]
    begun = len(_rounds(moto_aws))

    # when there is room, and the same command is given again
    moto_aws.faults.clear()
    done = cli.bai(*SUBMIT)

    # then it goes on with the next round
    assert done.code == 0, done.stderr
    assert len(moto_aws.instances()) == 1
    assert len(_rounds(moto_aws)) == begun + 1


def test_bai_cancel_ends_a_wait(moto_aws: MotoAws, cli: CliHarness) -> None:
    no_room(moto_aws)
    err = cli.folder / "err"
    with err.open("w") as stderr:
        waiting = cli.start("run", *SUBMIT[1:], stdout=subprocess.DEVNULL, stderr=stderr)
        wait(lambda: "asking again at" in err.read_text(), "a first refusal")

        assert cli.bai("cancel", "job-1").code == 0

        assert waiting.wait(timeout=_SECONDS) == 4
    assert "cancelled before it was launched" in err.read_text()
    assert cli.bai("status", "job-1", "--json").objects[0]["outcome"] == "cancelled"
    assert moto_aws.instances() == []


def _pauses(said: str) -> bool:
    """Return whether the submitter that has `said` this asks again in some seconds only."""
    found = re.search(r"asking again at (\d\d:\d\d:\d\d) UTC.*\Z", said.rstrip())
    if found is None:
        return False
    soon = datetime.now(timezone.utc) + timedelta(seconds=3)
    return found[1] > f"{soon:%H:%M:%S}"


def _rounds(aws: MotoAws) -> list[str]:
    answer = aws.client("s3", "setup").list_objects_v2(Bucket=aws.bucket, Prefix="jobs/job-1/attempts/0/")
    return [each["Key"] for each in answer["Contents"] if each["Key"].endswith("/launch.json")]
