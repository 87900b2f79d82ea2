"""The watcher: the Lambda function's archive, called with the queue's messages under its own policy, while no other command runs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import watcher_calls
from account_jobs import ELASTIC, NEVER, Account
from botocore.exceptions import ClientError
from moto.ssm.models import ssm_backends
from moto_aws import HELLO, REGION, MotoAws
from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.control_plane.images import DEBIAN, new_ec2, register
from sandbox.fake_aws.iam.identities import SETUP
from watcher_calls import WatcherCall, own_archive, scheduled, state_change

from bai_agent.job.record import JobRecord
from bai_agent.light_dataclass import replace
from executor.backends.ec2.launch.launch_record import read_decision, read_launch
from executor.backends.ec2.watched_jobs import watch_job, watched_jobs

pytestmark = pytest.mark.usefixtures("moto_environment")

PROFILE = "bai-instance"
_UNUSED = (
    "rich",
    "typer",
    "click",
    "scipy",
    "numpy",
    "jinja2",
    "kafka",
    "prometheus_client",
    "psutil",
    "pathspec",
    "ahocorasick_rs",
)
_ROOMS = (
    "executor.commands",
    "executor.service",
    "executor.view",
    "executor.documents",
    "executor.report",
    "executor.jobs",
)


class WatchedAccount(Account):
    """An account with a watcher."""

    def __init__(self, aws: MotoAws, folder: Path) -> None:
        super().__init__(aws, folder, config=f'instance_profile = "{PROFILE}"\n')
        self._code = watcher_calls.unpack(folder)
        self.limits = {
            "BAI_WATCHER_PROFILE": PROFILE,
            "BAI_WATCHER_GROUPS": "sg-1",
            "BAI_WATCHER_SUBNETS": ",".join(aws.subnets.values()),
            "BAI_WATCHER_OWNERS": "amazon",
            "BAI_WATCHER_TYPES": "t3.*,c7i.large",
            "BAI_WATCHER_USD_A_DAY": "50",
        }
        iam = aws.client("iam", SETUP)
        iam.create_instance_profile(InstanceProfileName=PROFILE)
        watcher_calls.grant(
            aws.policies, PROFILE, subnets=list(aws.subnets.values()), types=["t3.*", "c7i.large"]
        )

    def watch(self, event: Any = None, **more: str) -> WatcherCall:
        """Have the watcher called, by the schedule if no event is given."""
        return watcher_calls.call(self._code, event or scheduled(), {**self._environment(), **more})

    def start(self, who: str) -> subprocess.Popen[str]:
        """Begin a look of `bai status` or of the watcher."""
        if who == "user":
            return self.cli.start("status", "job", stdout=subprocess.DEVNULL, stderr=None)
        return watcher_calls.start(self._code, scheduled(), self._environment())

    def _environment(self) -> dict[str, str]:
        environment = self.aws.environment("watcher")
        mine = {"AWS_REGION": REGION, "BAI_BUCKET": self.aws.bucket, "BAI_CONFIG": "/dev/null"}
        kept = {key: value for key, value in environment.items() if key.startswith("AWS_")}
        return {**kept, **mine, **self.limits}

    def lost(self, job_id: str = "job", more: str = ELASTIC) -> str:
        """Submit a job whose machine is lost; return that."""
        machine, _ = self.submit(job_id, more)
        self.begin(machine, job_id)
        self.lose(machine)
        return machine

    def plant(self, identity: str, keys: Sequence[str], content: bytes = b"") -> list[str]:
        """Write objects with the rights of an identity's policy; return those that it may write."""
        self.aws.policies.attach(identity)
        s3, written = self.aws.client("s3", identity), []
        for key in keys:
            once = {"IfNoneMatch": "*"} if key.endswith(("/job.toml", "/result.json")) else {}
            try:
                s3.put_object(Bucket=self.aws.bucket, Key=key, Body=content, **once)
            except ClientError as error:
                if error.response["Error"]["Code"] not in ("AccessDenied", "PreconditionFailed"):
                    raise
            else:
                written.append(key)
        self.aws.policies.take_refused()
        return written

    def submit_otherwise(self, job_id: str = "job", **request: Any) -> None:
        """Have a job's mark and its stored launch, with these parameters, fit together, as a user's policy allows it."""
        record = JobRecord(self.store, job_id)
        file = read_launch(record)
        assert file is not None
        changed = replace(file, request={**file.request, **request}).sealed()
        content = json.dumps(changed.as_table()).encode()
        [written] = self.plant("user", [f"jobs/{job_id}/attempts/0/launch.json"], content)
        assert written
        watch_job(self.store, job_id, token=changed.token)


@pytest.fixture
def account(moto_aws: MotoAws, tmp_path: Path) -> WatchedAccount:
    return WatchedAccount(moto_aws, tmp_path)


def test_the_watchers_archive_is_within_lambdas_size_limits() -> None:
    archive = own_archive()
    with zipfile.ZipFile(archive.path) as content:
        unpacked = sum(each.file_size for each in content.infolist())

    assert archive.size < 45_000_000
    assert unpacked < 250_000_000


def test_the_watchers_archive_of_the_same_code_has_the_same_bytes() -> None:
    assert own_archive().sha256 == own_archive().sha256


def test_a_cold_start_of_the_watcher_imports_only_what_a_check_needs(tmp_path: Path) -> None:
    code = watcher_calls.unpack(tmp_path)

    found = watcher_calls.call(code, None, {})

    assert not {each for each in found.imported if each.partition(".")[0] in _UNUSED}
    assert not {each for each in found.imported if each.startswith(_ROOMS)}
    # Lambda gives up after 10 s: https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtime-environment.html
    assert found.cold_s < 10


def test_a_check_of_jobs_uses_less_than_half_of_the_functions_memory(account: WatchedAccount) -> None:
    account.lost("job-1")
    account.lost("job-2", more="")
    account.submit("job-3")

    done = account.watch()

    assert len(account.machines()) == 2
    assert account.outcome("job-2") == "interrupted"
    assert done.peak < watcher_calls.MEMORY / 2


def test_an_event_about_a_terminated_machine_launches_a_replacement(account: WatchedAccount) -> None:
    machine = account.lost()

    done = account.watch(state_change(machine, "terminated", region=REGION, account=account.aws.account))

    [new] = account.machines()
    assert done.answer == {"batchItemFailures": []}
    assert f"{new} was launched for it" in done.log
    assert len(account.aws.calls("RunInstances")) == 2


def test_jobs_that_hang_or_never_boot_are_ended_within_fifteen_minutes(account: WatchedAccount) -> None:
    # Given a job whose machine hangs in its power-off, and one whose machine boots without its user data
    short = '\n[limits]\nmax_runtime = "1m"\n'
    hangs, _ = account.submit("hangs", more=short)
    account.begin(hangs, "hangs")
    account.end("hangs")
    account.submit("boots-not", more=short)
    account.aws.show_console(NEVER)
    account.watch()
    assert len(account.machines()) == 2

    # When the watcher alone looks again, a little more than 15 minutes after the launch of the later one
    account.age(timedelta(minutes=15, seconds=5))
    account.watch()

    assert account.machines() == []
    assert account.outcome("hangs") == "succeeded"
    assert account.outcome("boots-not") == "boot_failed"
    # Neither has cost more than its plan allows.
    planned = account.cli.bai("plan", "b.toml", "--on", "ec2", "--json").objects[0]
    found = account.aws.client("ec2", SETUP).describe_instances()["Reservations"]
    ages = [
        datetime.now(timezone.utc) - each["LaunchTime"]
        for reservation in found
        for each in reservation["Instances"]
    ]
    assert len(ages) == 2
    assert timedelta(minutes=15) < max(ages) <= timedelta(hours=planned["cost"]["instance_hours"])


def test_a_completely_hanging_machine_is_ended_within_fifteen_minutes_and_replaced_once(
    account: WatchedAccount,
) -> None:
    # Given a machine that gives no more signs of life, and EC2 says that it runs
    hung, _ = account.submit()
    account.begin(hung)
    account.watch()
    assert account.machines() == [hung]

    # When the watcher alone looks again, 15 minutes after the last sign
    account.age(timedelta(minutes=15))
    account.watch()

    assert account.machines() == []
    account.watch()
    [other] = account.machines()
    account.watch()
    assert account.machines() == [other]
    assert other != hung
    assert account.outcome() is None


def test_a_silent_machine_is_terminated_only_if_ec2s_reachability_check_fails_too(
    account: WatchedAccount,
) -> None:
    # Given two jobs of one machine that give no more signs of life; EC2's own check reaches one of the machines
    unreachable, _ = account.submit("hangs", more="")
    account.begin(unreachable, "hangs")
    reachable, _ = account.submit("cut-off", more="")
    account.begin(reachable, "cut-off")
    account.age(timedelta(minutes=16))
    now = datetime.now(timezone.utc)
    account.aws.cut_off(unreachable, since=now - timedelta(minutes=5))
    account.watch()
    assert set(account.machines()) == {unreachable, reachable}

    account.aws.cut_off(unreachable, since=now - timedelta(minutes=16))
    denied = {"code": "UnauthorizedOperation", "status": 403, "identity": "user", "times": None}
    account.aws.fail("DescribeInstanceStatus", **denied)
    assert "describing the status of the instances" in account.cli.bai("status", "hangs").stdout
    assert set(account.machines()) == {unreachable, reachable}
    done = account.watch()

    assert account.machines() == [reachable]
    assert (account.outcome("hangs"), account.outcome("cut-off")) == ("lost", None)
    assert re.search(rf"{unreachable} has given no sign of life for \d+m", done.log), done.log


def test_a_silent_boot_is_ended_at_its_limit(account: WatchedAccount) -> None:
    account.submit("no-words", more="")
    account.aws.show_console(b"")
    account.age(timedelta(minutes=59))
    account.watch()
    assert len(account.machines()) == 1

    account.age(timedelta(minutes=1, seconds=5))
    account.watch()

    assert account.machines() == []
    assert account.outcome("no-words") == "boot_failed"


def test_the_watcher_writes_the_result_of_a_job_whose_machine_is_gone(account: WatchedAccount) -> None:
    account.lost(more="")

    account.watch()

    assert account.outcome() == "interrupted"


def test_two_concurrent_checks_launch_one_machine(account: WatchedAccount) -> None:
    account.lost()

    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda _: account.watch(), range(2)))

    assert len(account.machines()) == 1


@pytest.mark.parametrize(
    ("action", "resource"),
    [
        ("PutObject", "launches/1/launch.json"),
        ("RunInstances", ""),
        ("PutObject", "launches/1/launched.json"),
    ],
    ids=["claim", "launch", "answer"],
)
@pytest.mark.parametrize("is_done", [True, False], ids=["after", "before"])
@pytest.mark.parametrize(("killed", "other"), [("user", "watcher"), ("watcher", "user")])
def test_a_launch_of_a_killed_user_or_watcher_is_finished_once_by_the_other(
    account: WatchedAccount, killed: str, other: str, action: str, resource: str, is_done: bool
) -> None:
    account.lost()
    running: list[subprocess.Popen[str]] = []

    def kill(call: Call) -> bool:
        is_it = call.action == action and call.resource.endswith(resource) and call.identity == killed
        if is_it:
            running[0].send_signal(signal.SIGKILL)
        return is_it

    watch: Callable[[Call], Any] = kill
    if is_done:
        account.aws.answered = watch
    else:
        account.aws.prevents = watch
    running.append(account.start(killed))
    with running[0] as process:
        assert process.wait(timeout=120) == -signal.SIGKILL
    account.aws.answered, account.aws.prevents = (lambda call: None), (lambda call: False)

    # For a minute it is left to the one that has begun it.
    for age in (timedelta(), timedelta(seconds=65), timedelta()):
        account.age(age)
        with account.start(other) as process:
            assert process.wait(timeout=120) == 0

    [machine] = account.machines()
    record = JobRecord(account.store, "job")
    decision = read_decision(record, attempt=0, launch=1)
    assert (decision or {})["instances"] == [machine]
    assert read_launch(record, launch=2) is None
    sent = [each.parameters["ClientToken"] for each in account.aws.calls("RunInstances")]
    assert len(set(sent)) == 2
    assert "TerminateInstances" not in [
        each.action for each in account.aws.control_plane.calls if each.identity == other
    ]


def test_without_jobs_to_check_the_watcher_asks_ec2_less_often(account: WatchedAccount) -> None:
    account.watch()
    account.aws.control_plane.forget_calls()

    account.watch()
    assert not account.aws.calls("DescribeInstances")

    account.age(timedelta(minutes=6), below=".looks/")
    account.watch()
    assert account.aws.calls("DescribeInstances")


@pytest.mark.parametrize(
    ("limit", "value", "complaint"),
    [
        ("BAI_WATCHER_PROFILE", "another", 'the instance profile "bai-instance"'),
        ("BAI_WATCHER_SUBNETS", "subnet-1", "the subnet subnet-"),
        ("BAI_WATCHER_OWNERS", "111122223333", "the image ami-0deb1200000000001, which belongs to"),
        ("BAI_WATCHER_TYPES", "c7i.*,t3.small2", "the type t3.small"),
        ("BAI_WATCHER_USD_A_DAY", "0.1", "the watcher may spend 0.10 USD a day"),
    ],
)
def test_a_launch_beyond_the_watchers_limits_is_not_made(
    account: WatchedAccount, limit: str, value: str, complaint: str
) -> None:
    account.lost()

    done = account.watch(**{limit: value})

    assert account.machines() == []
    assert complaint in done.log
    assert len(account.aws.calls("RunInstances")) == 1


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        ({"SecurityGroupIds": ["sg-2"]}, "the security group sg-2"),
        ({"SecurityGroups": ["default"]}, "security groups by name"),
        ({"NetworkInterfaces": [{"DeviceIndex": 0, "Groups": ["sg-2"]}]}, "the security group sg-2"),
        ({"NetworkInterfaces": [{"DeviceIndex": 0, "SubnetId": "subnet-2"}]}, "the subnet subnet-2"),
        (
            {"NetworkInterfaces": [{"DeviceIndex": 0, "NetworkInterfaceId": "eni-2"}]},
            "the existing network interface eni-2",
        ),
    ],
)
def test_a_launch_in_a_subnet_or_security_group_beyond_the_watchers_limits_is_not_made(
    account: WatchedAccount, request_: dict[str, Any], complaint: str
) -> None:
    account.lost()
    account.submit_otherwise(**request_)

    done = account.watch()

    assert account.machines() == []
    assert complaint in done.log
    assert len(account.aws.calls("RunInstances")) == 1


def test_a_launch_with_tags_of_another_store_is_not_made(account: WatchedAccount) -> None:
    account.lost()
    file = read_launch(JobRecord(account.store, "job"))
    assert file is not None
    marked = json.loads(
        json.dumps(file.request["TagSpecifications"]).replace(account.store.url, "s3://another/jobs")
    )
    account.submit_otherwise(TagSpecifications=marked)

    done = account.watch()

    assert account.machines() == []
    assert 'may not launch with the tag bai:store="s3://another/jobs"' in done.log
    assert len(account.aws.calls("RunInstances")) == 1


def test_in_another_region_the_watcher_ends_machines_but_launches_none(
    account: WatchedAccount,
) -> None:
    # Given a region whose subnets are not the watcher's, with a machine that hangs after its job's end, and a lost one
    there, aws = "eu-west-1", account.aws
    far = new_ec2(aws.account, there)
    register(DEBIAN, ec2=far, ssm=ssm_backends[aws.account][there])
    for job_id, more in (("ended", ""), ("lost", ""), ("elastic", ELASTIC)):
        (account.cli.folder / "b.toml").write_text(f'{HELLO}region = "{there}"\n{more}')
        assert account.cli.bai("submit", "b.toml", "--job-id", job_id).code == 0
    ec2 = aws.client("ec2", SETUP, region=there)
    machines = {
        tag["Value"]: machine
        for reservation in ec2.describe_instances()["Reservations"]
        for machine in reservation["Instances"]
        for tag in machine["Tags"]
        if tag["Key"] == "bai:job-id"
    }
    for job_id, machine in machines.items():
        account.begin(machine["InstanceId"], job_id)
    account.end("ended")
    aws.policies.around = replace(aws.policies.around, tags={**aws.policies.around.tags, **far.tags})
    ec2.terminate_instances(InstanceIds=[machines[each]["InstanceId"] for each in ("lost", "elastic")])
    account.age(timedelta(minutes=15))
    launches = len(aws.calls("RunInstances"))

    done = account.watch()

    ids = [machines["ended"]["InstanceId"]]
    [ended] = ec2.describe_instances(InstanceIds=ids)["Reservations"][0]["Instances"]
    assert ended["State"]["Name"] == "terminated", done.log
    assert account.outcome("lost") == "interrupted"
    assert f"may not launch with the subnet {machines['elastic']['SubnetId']}" in done.log
    assert len(aws.calls("RunInstances")) == launches == 3


def test_objects_that_an_instance_can_write_launch_nothing(account: WatchedAccount) -> None:
    # Given a job that runs, and a machine of it that writes whatever it may, as a launch of its own and one of that job
    account.submit()
    file = read_launch(JobRecord(account.store, "job"))
    assert file is not None
    launch = json.dumps(replace(file, job_id="own").sealed().as_table()).encode()
    later = json.dumps(replace(file, number=1, first_node=1).sealed().as_table()).encode()
    token = replace(file, job_id="own").sealed().token.encode()
    job_toml = account.store.get("job/job.toml").replace(b'"job"', b'"own"')
    wanted = {
        "jobs/own/job.toml": job_toml,
        "jobs/own/request.json": account.store.get("job/request.json"),
        **{
            f"jobs/own/attempts/0/{each}": launch
            for each in ("launch.json", "nodes/launch.json", "launches/1/launch.json")
        },
        **{
            f"jobs/job/attempts/0/{each}": later
            for each in (
                "launches/1/launch.json",
                "nodes/launches/1/launch.json",
                "launches/nodes/launch.json",
            )
        },
        **{
            f"jobs/.watched/{each}": token
            for each in ("own", "own/attempts/0/nodes/own", "attempts/0/nodes/own")
        },
    }
    written = [each for key, content in wanted.items() for each in account.plant("instance", [key], content)]
    account.age(timedelta(minutes=5))
    assert list(watched_jobs(account.store)) == ["job"]

    done = account.watch()

    assert written == [
        "jobs/own/job.toml",
        "jobs/own/attempts/0/nodes/launch.json",
        "jobs/job/attempts/0/nodes/launches/1/launch.json",
        "jobs/job/attempts/0/launches/nodes/launch.json",
        "jobs/.watched/own/attempts/0/nodes/own",
        "jobs/.watched/attempts/0/nodes/own",
    ]
    assert len(account.aws.calls("RunInstances")) == 1
    assert "own" not in done.log


def test_hints_of_adaptdl_launch_machines_within_the_range_of_their_job_alone(
    account: WatchedAccount,
) -> None:
    adaptdl = (
        'strategy = "adaptdl"\n[hardware.distributed]\nnum_instances = "1:3"\n[elastic]\npolicy = "%s"\n'
    )
    for policy in ("goodput", "fixed"):
        machine, _ = account.submit(policy, hardware=adaptdl % policy + "nodes = 1\n", more="")
        account.begin(machine, policy)
    launched = len(account.aws.calls("RunInstances"))
    for number, size in enumerate((2, 9, 3, 4, 0)):
        keys = [f"jobs/{job}/attempts/0/signs/size-{number}.json" for job in ("goodput", "fixed")]
        assert account.plant("instance", keys, json.dumps({"desired": size}).encode()) == keys

    done = account.watch()
    account.watch()

    assert (launched, len(account.aws.calls("RunInstances"))) == (2, 4)
    assert len(account.machines()) == 4
    assert "goodput" in done.log
    assert "fixed" not in done.log


def test_a_launch_record_that_differs_from_the_submitted_one_launches_nothing(
    account: WatchedAccount,
) -> None:
    # Given a launch whose content has changed since the job was marked
    account.lost()
    watch_job(account.store, "job", token="0" * 64)

    done = account.watch()

    assert account.machines() == []
    assert "its launch.json differs from the submitted one" in done.log


def test_machines_launched_in_a_day_cost_no_more_than_the_daily_limit(account: WatchedAccount) -> None:
    account.lost("job-1")
    account.lost("job-2")

    # One of these costs more than half a dollar until its end.
    done = account.watch(BAI_WATCHER_USD_A_DAY="1")

    assert len(account.machines()) == 1
    assert "the machines of this day cost" in done.log


def test_launches_refused_by_ec2_do_not_count_towards_the_daily_limit(account: WatchedAccount) -> None:
    # Given a limit that one machine fits in, and no room at the first two launches
    account.lost()
    account.aws.fail("RunInstances", service="ec2", code="InsufficientInstanceCapacity", times=2)
    for _ in range(2):
        assert "may spend" not in account.watch(BAI_WATCHER_USD_A_DAY="1").log
        assert account.machines() == []
        account.age(timedelta(minutes=15))
    assert len(account.aws.calls("RunInstances")) == 3

    done = account.watch(BAI_WATCHER_USD_A_DAY="1")

    [new] = account.machines()
    assert f"{new} was launched for it" in done.log


def test_amounts_forged_by_instances_and_users_do_not_count_towards_the_daily_limit(
    account: WatchedAccount,
) -> None:
    # Given two jobs whose machines were lost, a limit that one machine fits in, and the policies of `bai` in force
    account.lost("job-1")
    account.lost("job-2")
    today = datetime.now(timezone.utc)
    days = [f"{today + timedelta(days=more):%Y-%m-%d}" for more in (0, 1)]
    below = ("jobs/.spent", "jobs/watcher/spent", "watcher/spent")
    names = ("attempts/0/nodes/x=999999999999", "job-1-0-1=0", "job-2-0-1=0")
    keys = [f"{each}/{day}/{name}" for each in below for day in days for name in names]
    written = [*account.plant("instance", keys), *account.plant("user", keys)]
    assert f"jobs/.spent/{days[0]}/{names[0]}" in written
    assert not [each for each in written if each.startswith("watcher/")]

    done = account.watch(BAI_WATCHER_USD_A_DAY="1")

    assert len(account.machines()) == 1
    assert "the machines of this day cost" in done.log


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        ({"Placement": {"Tenancy": "dedicated"}}, "another one 1.0"),
        ({"Placement": {"Tenancy": "host"}}, 'a host is paid for, not its instances (tenancy "host")'),
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/sdb", "Ebs": {"VolumeType": "standard"}}]},
            "the volume /dev/sdb",
        ),
    ],
)
def test_a_machine_costs_what_its_tenancy_and_volumes_cost(
    account: WatchedAccount, what: dict[str, Any], complaint: str
) -> None:
    # One on shared hardware costs 0.96 USD until its end.
    account.lost()
    account.submit_otherwise(**what)

    done = account.watch(BAI_WATCHER_USD_A_DAY="1")

    assert account.machines() == []
    assert complaint in done.log


def test_a_machine_costs_what_the_licences_of_its_image_cost(account: WatchedAccount) -> None:
    # Given an image with licences, as the price list has them for "RunInstances:0004"
    account.lost()
    account.aws.charge_for_images("RunInstances:0004")

    done = account.watch(BAI_WATCHER_USD_A_DAY="3")

    assert account.machines() == []
    assert "another one 4." in done.log


def test_a_paid_marketplace_image_is_not_launched(account: WatchedAccount) -> None:
    account.lost()
    account.aws.charge_for_images("RunInstances", is_sold=True)

    for _ in range(2):
        done = account.watch()
        account.age(timedelta(minutes=6))

    assert account.machines() == []
    assert "the software of ami-0deb1200000000001 may cost something of its own" in done.log
    assert len(account.aws.calls("RunInstances")) == 1


def test_the_watcher_fails_if_the_bucket_cannot_be_read_so_that_messages_are_redelivered(
    account: WatchedAccount,
) -> None:
    account.submit()
    account.aws.fail("ListObjectsV2", code="AccessDenied", status=403)

    with pytest.raises(RuntimeError, match="access denied"):
        account.watch()


def test_malformed_messages_in_the_queue_are_ignored(account: WatchedAccount) -> None:
    machine, _ = account.submit()

    for event in ({"Records": [{"body": "{"}, {}, 7]}, {"Records": "all"}, {}, "text"):
        assert account.watch(event).answer == {"batchItemFailures": []}

    assert account.machines() == [machine]
    assert list(watched_jobs(account.store)) == ["job"]
