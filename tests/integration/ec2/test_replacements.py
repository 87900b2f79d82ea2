"""Machines that replace lost ones: launched once, although several processes check the job and any of them may be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from account_jobs import NEVER
from botocore.exceptions import ClientError
from cli_harness import CliHarness
from moto.s3.models import s3_backends
from moto_aws import HELLO, REGION, MotoAws
from sandbox.fake_aws.calls import Call

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.generation_records import DecisionKind, Ledger, NextGeneration, Sign
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Peer
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import NodeOutcome
from bai_agent.job.run_directory import now_ms
from bai_agent.light_dataclass import replace
from executor.backends.ec2.bucket_store import bucket_store
from executor.backends.ec2.monitor.ec2_job_status import make_monitor
from executor.backends.ec2.monitor.ec2_watcher import EVERY, InstanceWatcher
from executor.backends.ec2.monitor.machine_needs import LEAST_TIME
from executor.backends.ec2.tags import parse_timestamp
from executor.configuration.config import read_settings

pytestmark = pytest.mark.usefixtures("moto_environment")

SPOT = 'run_instances = { InstanceMarketOptions = { MarketType = "spot" } }\n'


TWO = HELLO.replace(
    "[ml]", 'strategy = "torchrun"\n[hardware.distributed]\nnum_instances = "1:2"\n[ml]'
).replace('"echo hello"', '"train.py"')


class Job:
    """A job of one machine, in whose place two others may be launched, and its user."""

    def __init__(
        self, aws: MotoAws, folder: Path, *, base: str = HELLO, more: str = "", replacements: int = 2
    ) -> None:
        self.aws = aws
        (folder / "b.toml").write_text(f"{base}{more}\n[elastic]\nreplacements = {replacements}\n")
        self.cli = CliHarness(folder, {**os.environ, **aws.environment(), "HOME": str(folder)})
        self.record = JobRecord(bucket_store(read_settings()), "job")
        self.attempt = AttemptRecord(self.record)

    def submit(self) -> str:
        """Submit it, and have its machine begin; return the machine."""
        [machine] = self.submit_all()
        return machine

    def submit_all(self) -> list[str]:
        """Submit it, and have its machines begin; return them, by node."""
        done = self.cli.bai("submit", "b.toml", "--job-id", "job")
        assert done.code == 0, done.stderr
        machines = [str(each) for each in self.decided()["instances"]]
        for node, machine in enumerate(machines):
            self.begin(node, machine)
        members = list(range(len(machines)))
        first = NextGeneration(
            kind=DecisionKind.RUN, members=members, why="start", ledger=Ledger(began=now_ms())
        )
        self.attempt.settle_generation(0, first)
        return machines

    def begin(self, node: int, machine: str) -> None:
        """Do what the agent of a node does."""
        for name in ("ready.json", "heartbeat.json"):
            key = self.record.node(node).key(name)
            self.record.store.put(key, json.dumps({"instance_id": machine}).encode())
        self.attempt.join(Peer(rank=node, address="10.0.0.1", instance_id=machine))
        self.attempt.give_sign(node, Sign())

    def machines(self) -> list[str]:
        return [each["InstanceId"] for each in self.aws.instances()]

    def lose(self, machine: str) -> None:
        self.aws.client("ec2", "setup").terminate_instances(InstanceIds=[machine])

    def look(self) -> dict[str, Any]:
        """Return what `bai status` says, which does what is due."""
        done = self.cli.bai("status", "job", "--json")
        assert done.code == 0, done.stderr
        found: dict[str, Any] = done.objects[0]
        return found

    def age(self, by: timedelta, *, below: str = "attempts/0/launches/") -> None:
        """Let these objects be so much older."""
        for key in s3_backends[self.aws.account]["aws"].buckets[self.aws.bucket].keys.values():
            if key.name.startswith(f"jobs/job/{below}"):
                key.last_modified -= by

    def launched(self, number: int) -> dict[str, Any]:
        return self.decided(f"launches/{number}/")

    def decided(self, launch: str = "") -> dict[str, Any]:
        found = self.record.read_object(self.record.key(f"attempts/0/{launch}launched.json"))
        assert found is not None
        return found

    def ends(self) -> list[str]:
        """Return what was asked of EC2 that begins or ends machines, in its order."""
        actions = ("RunInstances", "TerminateInstances")
        return [each.action for each in self.aws.control_plane.calls if each.action in actions]

    def part_ends(self, node: int, *, exit_code: int = 0) -> None:
        """Do what the agent of a node does when its part has ended while the job goes on."""
        result = {"outcome": "succeeded", "exit_code": exit_code}
        self.record.store.put(self.record.node(node).key("result.json"), json.dumps(result).encode())

    def has(self, name: str) -> bool:
        return bool(self.record.store.find(self.record.key(f"attempts/0/launches/{name}")))


@pytest.fixture
def job(moto_aws: MotoAws, tmp_path: Path) -> Job:
    return Job(moto_aws, tmp_path)


def tags(aws: MotoAws, machine: str) -> dict[str, str]:
    [found] = [each for each in aws.instances() if each["InstanceId"] == machine]
    return {each["Key"]: each["Value"] for each in found["Tags"]}


def test_a_replacement_machine_is_a_node_with_a_new_number(job: Job) -> None:
    lost = job.submit()
    expires = tags(job.aws, lost)["bai:expires"]
    job.lose(lost)

    job.look()
    status = job.look()

    [machine] = job.machines()
    assert status["machine"].endswith(f"desired 1: 0 members, 1 booting ({machine}, replaces node 0).")
    found = job.launched(1)
    assert (found["instances"], found["first_node"], found["replaces"]) == ([machine], 1, [0])
    assert {key: tags(job.aws, machine)[key] for key in ("bai:expires", "bai:launch", "bai:first-node")} == {
        "bai:expires": expires,
        "bai:launch": "1",
        "bai:first-node": "1",
    }

    job.begin(1, machine)
    job.lose(machine)
    job.look()
    [third] = job.machines()
    job.begin(2, third)
    job.lose(third)
    job.look()

    # Two were allowed.
    assert job.machines() == []
    assert len(job.aws.calls("RunInstances")) == 3


@pytest.mark.parametrize("name", ["ended/1.json", "nodes/1/result.json"])
def test_a_node_with_an_unreadable_end_record_is_replaced(
    moto_aws: MotoAws, tmp_path: Path, name: str
) -> None:
    job = Job(moto_aws, tmp_path, base=TWO, more='keep_on_failure = "1h"\n')
    _, lost = job.submit_all()
    job.record.store.put(job.record.key(f"attempts/0/{name}"), b'{"outcome": "succ')
    job.lose(lost)

    status = job.look()

    assert status["status"] == "RUNNING"
    assert job.launched(1)["replaces"] == [1]


@pytest.mark.parametrize(
    ("action", "resource"),
    [
        ("PutObject", "launches/1/launch.json"),
        ("RunInstances", ""),
        ("PutObject", "launches/1/launched.json"),
    ],
)
@pytest.mark.parametrize("is_done", [True, False], ids=["after", "before"])
def test_a_check_killed_at_any_step_launches_one_machine(
    job: Job, action: str, resource: str, is_done: bool
) -> None:
    job.lose(job.submit())
    running: list[subprocess.Popen[str]] = []

    def kill(call: Call) -> bool:
        is_it = call.action == action and call.resource.endswith(resource) and bool(running)
        if is_it:
            running[0].send_signal(signal.SIGKILL)
        return is_it

    watch: Callable[[Call], Any] = kill
    if is_done:
        job.aws.answered = watch
    else:
        job.aws.prevents = watch
    running.append(job.cli.start("status", "job", stdout=subprocess.DEVNULL, stderr=None))
    assert running[0].wait(timeout=120) == -signal.SIGKILL
    job.aws.answered, job.aws.prevents = (lambda call: None), (lambda call: False)

    # For a minute it is left to the one that has begun it.
    job.look()
    job.age(timedelta(seconds=65))
    job.look()
    job.look()

    [machine] = job.machines()
    assert job.launched(1)["instances"] == [machine]
    assert not job.has("2/")


def test_only_one_of_two_simultaneous_checks_launches_a_replacement(job: Job) -> None:
    job.lose(job.submit())

    both = [job.cli.start("status", "job", stdout=subprocess.DEVNULL, stderr=None) for _ in range(2)]
    assert [each.wait(timeout=120) for each in both] == [0, 0]
    job.look()

    assert len(job.machines()) == 1
    assert not job.has("2/")


def test_a_machine_launched_by_a_concurrent_check_is_not_terminated(
    moto_aws: MotoAws, tmp_path: Path
) -> None:
    job = Job(moto_aws, tmp_path, base=TWO)
    _, lost = job.submit_all()
    job.lose(lost)
    looks: list[dict[str, Any]] = []

    def other_looks(call: Call) -> bool:
        """The store was read, and EC2 is not asked yet."""
        if call.action == "DescribeInstances" and not looks:
            looks.append({})
            looks[0] = job.look()
        return False

    job.aws.prevents = other_looks
    job.look()

    [launched] = job.launched(1)["instances"]
    assert looks[0]["status"] == "RUNNING"
    assert launched in job.machines()
    assert job.ends() == ["RunInstances", "RunInstances"]


def test_a_replacement_launch_whose_answer_is_lost_is_not_launched_again(job: Job) -> None:
    job.lose(job.submit())
    dropped = job.aws.fail("RunInstances", then="drop")

    job.look()
    job.look()

    assert dropped.hits == 1

    [machine] = job.machines()
    assert job.launched(1)["instances"] == [machine]
    assert not job.has("2/")


def test_an_unfinished_launch_is_not_sent_after_ten_minutes(job: Job) -> None:
    job.lose(job.submit())
    job.aws.prevents = lambda call: call.action == "RunInstances"
    job.look()
    job.aws.prevents = lambda call: False
    assert job.has("1/launch.json")
    assert not job.has("1/launched.json")

    job.age(timedelta(minutes=11))
    job.look()

    assert job.machines() == []
    assert job.launched(1)["error"]["code"] == "Expired"


def test_a_replacement_refused_for_lack_of_capacity_is_requested_again_later(job: Job) -> None:
    job.lose(job.submit())
    for zone in job.aws.subnets:
        job.aws.no_capacity(zone, times=1)

    job.look()
    status = job.look()

    assert "no room for node 1 since " in status["machine"]
    assert "(InsufficientInstanceCapacity); asked again at " in status["machine"]
    assert status["status"] == "PARKED"
    assert len(job.aws.calls("RunInstances")) == 2
    job.age(timedelta(minutes=5, seconds=5))
    job.look()
    [machine] = job.machines()
    assert job.launched(2)["instances"] == [machine]


def test_a_launch_refused_for_image_terms_is_tried_three_times(job: Job) -> None:
    # Given an image of the Marketplace whose subscription has ended since the first launch
    job.lose(job.submit())
    said = "In order to use this AWS Marketplace product you need to accept terms and subscribe."
    job.aws.fail("RunInstances", code="OptInRequired", message=said, status=401, times=None)

    job.look()
    status = job.look()
    assert "EC2 refuses node 1 since " in status["machine"]
    assert "the image's terms must be accepted in the AWS Marketplace" in status["machine"]
    assert "(OptInRequired); asked again at " in status["machine"]
    assert "no room" not in status["machine"]
    for minutes in (5, 10):
        job.age(timedelta(minutes=minutes, seconds=5))
        job.look()
    assert job.ends() == ["RunInstances"] * 4

    # When hours pass
    for _ in range(3):
        job.age(timedelta(hours=1))
        status = job.look()

    assert job.ends() == ["RunInstances"] * 4
    assert "no other machine is launched: EC2 has refused the launch 3 times (" in status["machine"]
    assert "the image's terms must be accepted in the AWS Marketplace" in status["machine"]


def test_a_replacement_lost_before_it_joined_counts_and_is_replaced_after_a_pause(job: Job) -> None:
    job.lose(job.submit())
    job.look()
    job.lose(job.machines()[0])

    job.look()
    assert job.machines() == []
    job.age(timedelta(minutes=5, seconds=5))
    job.look()

    [machine] = job.machines()
    assert job.launched(2)["replaces"] == [1]
    job.begin(2, machine)
    job.lose(machine)
    job.look()
    assert job.machines() == []


def test_a_replacement_that_never_boots_counts_once_and_is_replaced_after_a_pause(job: Job) -> None:
    job.lose(job.submit())
    job.look()
    [second] = job.machines()
    job.aws.show_console(NEVER)
    job.aws.age(timedelta(minutes=16))

    job.look()
    assert job.ends() == ["RunInstances", "RunInstances", "TerminateInstances"]
    assert job.machines() == []
    for _ in range(2):
        job.look()
    assert not job.has("2/")
    job.age(timedelta(minutes=5))
    status = job.look()

    [third] = job.machines()
    assert third != second
    assert job.launched(2)["replaces"] == [1]
    assert status["status"] == "PARKED"
    # Both of two are used up: the third machine is lost as a node, and no other one follows.
    job.begin(2, third)
    job.lose(third)
    job.age(timedelta(minutes=5))
    job.look()
    assert job.machines() == []
    assert not job.has("3/")


@pytest.mark.parametrize("console", ["empty", "denied"])
@pytest.mark.parametrize("others", ["gone", "alive"])
def test_a_replacement_without_a_readable_console_is_terminated_at_its_boot_limit(
    moto_aws: MotoAws, tmp_path: Path, console: str, others: str
) -> None:
    job = Job(moto_aws, tmp_path, base=HELLO if others == "gone" else TWO)
    *_, lost = machines = job.submit_all()
    job.lose(lost)
    job.look()
    [second] = job.launched(1)["instances"]
    if console == "empty":
        moto_aws.show_console(b"")
    else:
        moto_aws.fail("GetConsoleOutput", code="UnauthorizedOperation", status=403, times=None)
    moto_aws.age(timedelta(minutes=59))
    job.look()
    assert second in job.machines()

    # When an hour is over, in which a machine that boots sends a heartbeat or powers itself off
    moto_aws.age(timedelta(minutes=2))
    said = job.look()["machine"]

    why = "its console is empty" if console == "empty" else "its console cannot be read ("
    assert f"{second} was launched 1h1m" in said
    assert f"ago and has sent no heartbeat, and {why}" in said
    assert job.ends() == ["RunInstances", "RunInstances", "TerminateInstances"]
    for _ in range(2):
        job.look()
    assert not job.has("2/")
    job.age(timedelta(minutes=5, seconds=5))
    job.look()
    [third] = job.launched(2)["instances"]
    assert job.machines() == [*machines[:-1], third]
    assert job.launched(2)["replaces"] == [job.launched(1)["first_node"]]
    assert job.record.result() is None


def test_a_replacement_that_cannot_pull_counts_once_and_is_replaced_after_a_pause(
    moto_aws: MotoAws, tmp_path: Path
) -> None:
    job = Job(moto_aws, tmp_path, base=TWO)
    _, lost = job.submit_all()
    job.lose(lost)
    job.look()
    [failed] = job.launched(1)["instances"]
    for name in ("ready.json", "heartbeat.json"):
        key = job.record.node(2).key(name)
        job.record.store.put(key, json.dumps({"instance_id": failed}).encode())
    now = now_ms()
    outcome = NodeOutcome(
        rank=2, outcome=Outcome.PULL_FAILED.value, sentence="No such object.", failed=now, ended=now
    )
    job.attempt.end(outcome)
    job.part_ends(2, exit_code=5)

    # It hangs in its power-off.
    job.look()
    job.age(timedelta(minutes=6), below="attempts/0/nodes/2/")
    job.look()
    assert job.ends() == ["RunInstances", "RunInstances", "TerminateInstances"]
    assert failed not in job.machines()
    for _ in range(2):
        job.look()
    assert not job.has("2/")
    job.age(timedelta(minutes=5))
    status = job.look()

    assert job.launched(2)["replaces"] == [2]
    assert len(job.machines()) == 2
    assert status["status"] == "RUNNING"
    job.look()
    assert not job.has("3/")


def test_a_check_with_another_configuration_launches_no_replacement_and_says_why(
    job: Job, tmp_path: Path
) -> None:
    job.lose(job.submit())
    other = {"BAI_INSTANCE_PROFILE": "another"}

    done = job.cli.bai("status", "job", "--json", env=other)

    assert job.machines() == []
    assert not job.has("1/")
    assert "No machine is launched for the job" in done.objects[0]["machine"]
    assert "IamInstanceProfile differs" in done.objects[0]["machine"]


def test_a_stored_replacement_launch_that_was_changed_is_not_sent(job: Job) -> None:
    job.lose(job.submit())
    job.aws.prevents = lambda call: call.action == "RunInstances"
    job.look()
    job.aws.prevents = lambda call: False
    key = job.record.key("attempts/0/launches/1/launch.json")
    planted = json.loads(job.record.store.get(key))
    planted["request"]["InstanceType"] = "p5.48xlarge"
    job.record.store.put(key, json.dumps(planted).encode())
    job.age(timedelta(seconds=65))

    status = job.look()

    assert job.machines() == []
    assert "does not match the first launch: InstanceType" in status["machine"]

    # It does not keep others from being launched for ever.
    job.age(timedelta(minutes=11))
    job.look()
    assert job.launched(1)["error"]["code"] == "Expired"
    job.age(timedelta(minutes=11))
    job.look()
    assert job.launched(2)["instances"] == job.machines()


def test_a_cancelled_job_gets_no_replacement(job: Job) -> None:
    machine = job.submit()
    assert job.cli.bai("cancel", "job").code == 0
    job.lose(machine)

    job.look()

    assert job.machines() == []
    assert (job.record.result() or {})["outcome"] == "cancelled"


def test_a_lost_machine_of_a_job_without_replacements_is_not_replaced(
    moto_aws: MotoAws, tmp_path: Path
) -> None:
    job = Job(moto_aws, tmp_path, replacements=0)
    done = job.cli.bai("submit", "b.toml", "--job-id", "job")
    assert done.code == 0, done.stderr
    job.begin(0, job.machines()[0])
    job.lose(job.machines()[0])

    job.look()

    assert job.machines() == []
    assert not job.has("1/")


def test_a_replacement_is_on_demand_if_spot_has_no_capacity(moto_aws: MotoAws, tmp_path: Path) -> None:
    job = Job(moto_aws, tmp_path, more=f"on_demand_after_spot = true\n{SPOT}")
    lost = job.submit()
    zone = next(each["Placement"]["AvailabilityZone"] for each in moto_aws.instances())
    job.lose(lost)
    moto_aws.no_capacity(zone, times=1)

    job.look()

    [found] = moto_aws.instances()
    assert found.get("InstanceLifecycle") != "spot"
    assert found["Placement"]["AvailabilityZone"] == zone
    assert job.launched(1)["market"] == "on-demand"
    assert moto_aws.calls("RunInstances")[-1].parameters.get("Placement.AvailabilityZone") in (None, REGION)


def test_a_hanging_machine_is_terminated_before_its_replacement_is_requested(
    moto_aws: MotoAws, tmp_path: Path
) -> None:
    job = Job(moto_aws, tmp_path, base=TWO)
    _, hung = job.submit_all()

    # The others have given it up, and EC2 has not: nothing is launched, and if it comes back, it joins again.
    job.age(timedelta(minutes=2), below="attempts/0/nodes/1/")
    assert "node 1" in job.look()["machine"]
    job.begin(1, hung)
    job.look()
    assert job.ends() == ["RunInstances"]
    assert not job.has("1/")

    job.age(timedelta(minutes=20), below="attempts/0/nodes/1/")
    job.look()
    assert job.ends() == ["RunInstances", "TerminateInstances"]
    assert not job.has("1/")
    job.look()

    assert job.ends() == ["RunInstances", "TerminateInstances", "RunInstances"]
    assert hung not in job.machines()
    assert job.launched(1)["replaces"] == [1]


def test_a_job_whose_only_machine_hangs_continues_on_a_replacement(job: Job) -> None:
    hung = job.submit()

    job.age(timedelta(minutes=20), below="attempts/0/nodes/0/")
    status = job.look()
    assert job.ends() == ["RunInstances", "TerminateInstances"]
    assert f"Node 0 ({hung}) has sent no heartbeat for 20m" in status["machine"]
    job.look()

    assert job.ends() == ["RunInstances", "TerminateInstances", "RunInstances"]
    assert job.launched(1)["replaces"] == [0]
    assert job.record.result() is None


def test_a_node_that_left_and_does_not_power_off_is_terminated_and_then_replaced(
    moto_aws: MotoAws, tmp_path: Path
) -> None:
    job = Job(moto_aws, tmp_path, base=TWO)
    _, left = job.submit_all()
    job.part_ends(1)
    job.look()
    assert job.ends() == ["RunInstances"]

    job.age(timedelta(minutes=6), below="attempts/0/nodes/1/")
    status = job.look()
    assert job.ends() == ["RunInstances", "TerminateInstances"]
    assert f"{left} (t3.small) is still on, and no longer part of the job: terminated." in status["machine"]
    job.look()

    assert job.ends() == ["RunInstances", "TerminateInstances", "RunInstances"]


def test_a_node_that_failed_and_is_kept_for_inspection_stays_on(moto_aws: MotoAws, tmp_path: Path) -> None:
    job = Job(moto_aws, tmp_path, base=TWO, more='keep_on_failure = "1h"\n')
    job.submit_all()
    job.part_ends(1, exit_code=3)

    job.age(timedelta(minutes=50), below="attempts/0/nodes/1/")
    job.look()
    assert job.ends() == ["RunInstances"]

    job.age(timedelta(minutes=16), below="attempts/0/nodes/1/")
    job.look()
    assert job.ends() == ["RunInstances", "TerminateInstances"]


def test_objects_written_with_an_instances_rights_launch_no_replacement(job: Job) -> None:
    """With the shipped policy of instances in force, in which a `*` matches slashes."""
    machine = job.submit()
    job.aws.policies.attach("instance")
    theirs = job.aws.client("s3", "instance")
    decided = {"instances": [machine], "first_node": 1, "replaces": [0]}
    planted = {
        "requests/0.json": {"desired": 2},
        "launches/1/launch.json": {},
        "launches/1/launched.json": decided,
    }
    refused, kept = [], []
    for name, content in planted.items():
        for folder in ("", "joined/", "signs/", "control/", "ended/", "nodes/1/"):
            key = f"jobs/{job.record.key(f'attempts/0/{folder}{name}')}"
            try:
                theirs.put_object(Bucket=job.aws.bucket, Key=key, Body=json.dumps(content).encode())
                kept.append(folder)
            except ClientError as error:
                refused.append((folder, error.response["Error"]["Code"]))
    # It says that it is a node, under its own name and that of a machine that exists.
    for node, claims in ((1, machine), (2, "i-0123456789abcdef0")):
        joined = {"rank": node, "address": "10.0.0.9", "instance_id": claims}
        key = f"jobs/{job.record.key(f'attempts/0/joined/{node}.json')}"
        theirs.put_object(Bucket=job.aws.bucket, Key=key, Body=json.dumps(joined).encode())

    status = job.look()
    machines = job.attempt.machines()

    job.aws.policies.take_refused()
    assert refused == [("", "AccessDenied")] * 3
    assert "nodes/1/" in kept
    assert job.ends() == ["RunInstances"]
    assert status["generation"]["desired"] == 1
    assert machines is not None
    assert [machines.has(1, machine, first=1), machines.has(2, "i-0123456789abcdef0", first=1)] == [False] * 2
    job.lose(machine)
    job.look()
    # What it planted is neither taken for a launch nor in the way of one.
    assert job.launched(1)["first_node"] == 1
    assert len(job.machines()) == 1


def test_no_replacement_is_launched_if_less_than_ten_minutes_of_the_job_are_left(
    moto_aws: MotoAws, tmp_path: Path
) -> None:
    job = Job(moto_aws, tmp_path)
    machine = job.submit()
    end = parse_timestamp(tags(moto_aws, machine)["bai:expires"])
    assert end is not None
    job.lose(machine)
    limits = job.record.job().limits
    needed = limits.grace + limits.drain + LEAST_TIME

    def look(left: timedelta) -> str:
        """Look when so much time is left; return what is said."""
        at = round(1000 * (end - left).timestamp())
        monitor = replace(make_monitor(job.record, read_settings()), clock=lambda url: at)
        return monitor.reconcile().sentence

    # The nodes have decided only now to wait for others.
    waits = Ledger(waiting_since=round(1000 * (end - needed).timestamp()))
    parks = NextGeneration(kind=DecisionKind.PARK, members=[], why="lost", nodes=[0], ledger=waits)
    job.attempt.settle_generation(1, parks)
    said = look(needed - timedelta(seconds=1))
    assert job.ends() == ["RunInstances"]
    assert said.endswith("no other machine is launched: too little time is left.")
    assert not job.has("1/")
    look(needed)

    assert len(job.machines()) == 1


def test_an_exhausted_quota_is_reported_once(job: Job) -> None:
    job.lose(job.submit())
    job.aws.fail("RunInstances", code="VcpuLimitExceeded", status=400)
    job.age(timedelta(minutes=2), below="attempts/0/nodes/")
    follower = InstanceWatcher(make_monitor(job.record, read_settings()), clock=count(step=EVERY).__next__)

    said = [follower.observe(news=False, cancelling=False) for _ in range(5)]

    told = [each for each in said if each is not None]
    assert sum("(VcpuLimitExceeded); asked again at " in each for each in told) == 1
    assert job.ends().count("RunInstances") == 2
    assert job.machines() == []


def test_the_planned_maximum_cost_covers_a_machine_and_its_replacements(job: Job) -> None:
    planned = job.cli.bai("plan", "b.toml", "--on", "ec2", "--json").objects[0]
    begun = datetime.now(timezone.utc)
    machine = job.submit()
    job.lose(machine)
    job.look()
    job.look()
    [other] = job.machines()

    end = parse_timestamp(tags(job.aws, other)["bai:expires"])
    assert end is not None
    bound = timedelta(hours=planned["cost"]["instance_hours"])
    assert bound >= end - begun
