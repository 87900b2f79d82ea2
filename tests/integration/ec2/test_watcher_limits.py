"""What the watcher refuses: launches beyond its limits and its daily amount, and records and messages that others have written."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from account_jobs import ELASTIC
from moto.ec2.models import ec2_backends
from moto.ssm.models import ssm_backends
from moto_aws import HELLO, MotoAws
from sandbox.fake_aws.control_plane.images import DEBIAN, register
from sandbox.fake_aws.iam.identities import SETUP
from watched_account import WatchedAccount

from bai_agent.job.record import JobRecord
from bai_agent.light_dataclass import replace
from executor.backends.ec2.launch.launch_record import read_launch
from executor.backends.ec2.watched_jobs import watch_job, watched_jobs

pytestmark = pytest.mark.usefixtures("moto_environment")


@pytest.fixture
def account(moto_aws: MotoAws, tmp_path: Path) -> WatchedAccount:
    return WatchedAccount(moto_aws, tmp_path)


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
    far = ec2_backends[aws.account][there]
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
    assert "the job's launch.json differs from the submitted launch" in done.log


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
    assert f"{new} was launched for the job" in done.log


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
        ({"Placement": {"Tenancy": "dedicated"}}, "another machine 1.0"),
        (
            {"Placement": {"Tenancy": "host"}},
            'AWS charges for the host, not for its instances (tenancy "host")',
        ),
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
    assert "another machine 4." in done.log


def test_a_paid_marketplace_image_is_not_launched(account: WatchedAccount) -> None:
    account.lost()
    account.aws.charge_for_images("RunInstances", is_sold=True)

    for _ in range(2):
        done = account.watch()
        account.age(timedelta(minutes=6))

    assert account.machines() == []
    assert "the software of ami-0deb1200000000001 may have its own price" in done.log
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
