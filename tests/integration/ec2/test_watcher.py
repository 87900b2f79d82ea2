"""The watcher: the Lambda function's archive, called with the queue's messages under its own policy, while no other command runs."""

from __future__ import annotations

import re
import signal
import subprocess
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import watcher_calls
from account_jobs import NEVER
from moto_aws import REGION, MotoAws
from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.iam.identities import SETUP
from watched_account import WatchedAccount
from watcher_calls import own_archive, state_change

from bai_agent.job.record import JobRecord
from executor.backends.ec2.launch.launch_record import read_decision, read_launch

pytestmark = pytest.mark.usefixtures("moto_environment")

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


def test_a_check_of_jobs_uses_less_than_half_of_the_functions_memory(
    account: WatchedAccount, tmp_path: Path
) -> None:
    account.code = watcher_calls.unpack(tmp_path)  # not compiled: in Lambda, each cold start compiles
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
    assert f"{new} was launched for the job" in done.log
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
    # Given a machine that sends no more heartbeats, and EC2 says that it runs
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
    # Given two jobs of one machine that send no more heartbeats; EC2's own check reaches one of the machines
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
    assert re.search(rf"{unreachable} has sent no heartbeat for \d+m", done.log), done.log


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
