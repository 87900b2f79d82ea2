"""Jobs that were submitted and that no command follows: checked by `bai reap` again and again."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from account_jobs import NEVER, Account
from botocore.exceptions import ClientError
from moto_aws import MotoAws
from sandbox.fake_aws.calls import Call

from bai_agent.job.record import JobRecord
from executor.backends.ec2.watched_jobs import Looker, note_look, watched_jobs

pytestmark = pytest.mark.usefixtures("moto_environment")


@pytest.fixture
def account(moto_aws: MotoAws, tmp_path: Path) -> Account:
    return Account(moto_aws, tmp_path)


def test_a_lost_machine_of_an_unattended_job_is_replaced(account: Account) -> None:
    machine, _ = account.submit()
    account.begin(machine)
    account.lose(machine)

    announced = account.reap("--dry-run")
    assert account.machines() == []
    done = account.reap()

    [new] = account.machines()
    assert "nothing to reap" in announced.stderr
    assert f"job: {new} was launched for the job\n" in done.stdout
    assert "nothing to reap" in account.reap().stderr


def test_reap_writes_the_result_of_a_job_whose_machine_is_gone(account: Account) -> None:
    machine, _ = account.submit(more="")
    account.begin(machine)
    account.lose(machine)

    account.reap("--dry-run")
    assert account.outcome() is None
    done = account.reap("--json")

    assert account.outcome() == "interrupted"
    assert [each["job_id"] for each in done.objects] == ["job"]


def test_a_machine_that_never_boots_is_ended_and_its_job_fails(account: Account) -> None:
    machine, _ = account.submit(more="")
    account.aws.show_console(NEVER)
    account.age(timedelta(minutes=16))

    done = account.reap()

    assert account.machines() == []
    assert account.outcome() == "boot_failed"
    assert f"{machine}  t3.small" in done.stdout


def test_a_machine_that_hangs_in_its_power_off_is_terminated(account: Account) -> None:
    machine, _ = account.submit(more="")
    account.begin(machine)
    account.end()

    account.reap()
    assert account.machines() == [machine]
    account.age(timedelta(minutes=6))
    done = account.reap()

    assert account.machines() == []
    assert "the machine did not power itself off: terminated" in done.stdout


def test_a_job_is_checked_until_its_machines_are_gone(account: Account) -> None:
    machine, _ = account.submit(more="")
    account.begin(machine)
    account.end()
    assert list(watched_jobs(account.store)) == ["job"]

    account.reap()
    account.lose(machine)
    account.reap()  # EC2 may not show another machine yet
    assert list(watched_jobs(account.store)) == ["job"]
    account.age(timedelta(minutes=11))
    account.reap()

    assert list(watched_jobs(account.store)) == []


def test_a_deleted_job_is_no_longer_checked(account: Account) -> None:
    machine, _ = account.submit(more="")
    account.lose(machine)
    s3 = account.aws.client("s3", "setup")
    for each in account.store.find("job/"):
        s3.delete_object(Bucket=account.aws.bucket, Key=f"jobs/{each.key}")

    account.reap()

    assert list(watched_jobs(account.store)) == []


@pytest.mark.parametrize(
    ("action", "resource"),
    [
        ("PutObject", "launches/1/launch.json"),
        ("RunInstances", ""),
        ("PutObject", "launches/1/launched.json"),
        ("PutObject", ".looks/reap"),
    ],
)
@pytest.mark.parametrize("is_done", [True, False], ids=["after", "before"])
def test_a_check_killed_at_any_step_launches_only_one_machine(
    account: Account, action: str, resource: str, is_done: bool
) -> None:
    machine, _ = account.submit()
    account.begin(machine)
    account.lose(machine)
    _kill_at(account, lambda call: call.action == action and call.resource.endswith(resource), is_done)

    # For a minute it is left to the one that has begun it.
    account.reap()
    account.age(timedelta(seconds=65), below="job/attempts/0/launches/")
    account.reap()
    account.reap()

    [new] = account.machines()
    record = JobRecord(account.store, "job")
    launched = record.read_object(record.key("attempts/0/launches/1/launched.json"))
    assert launched is not None
    assert launched["instances"] == [new]
    assert not account.store.find("job/attempts/0/launches/2/")


@pytest.mark.parametrize(
    ("action", "resource"), [("TerminateInstances", ""), ("PutObject", "job/result.json")]
)
@pytest.mark.parametrize("is_done", [True, False], ids=["after", "before"])
def test_a_check_killed_at_any_step_ends_the_job_once(
    account: Account, action: str, resource: str, is_done: bool
) -> None:
    account.submit(more="")
    account.aws.show_console(NEVER)
    account.age(timedelta(minutes=16))
    _kill_at(account, lambda call: call.action == action and call.resource.endswith(resource), is_done)

    account.reap()

    assert account.machines() == []
    # Between the two steps the machine was ended by nobody that is known.
    assert account.outcome() in ("boot_failed", "interrupted")


def _kill_at(account: Account, is_it: Callable[[Call], bool], is_done: bool) -> None:
    running: list[subprocess.Popen[str]] = []

    def kill(call: Call) -> bool:
        found = bool(running) and is_it(call)
        if found:
            running[0].send_signal(signal.SIGKILL)
        return found

    watch: Callable[[Call], Any] = kill
    if is_done:
        account.aws.answered = watch
    else:
        account.aws.prevents = watch
    running.append(account.cli.start("reap", stdout=subprocess.DEVNULL, stderr=None))
    assert running[0].wait(timeout=120) == -signal.SIGKILL
    account.aws.answered, account.aws.prevents = (lambda call: None), (lambda call: False)


def test_only_one_of_two_concurrent_checks_launches_a_replacement(account: Account) -> None:
    machine, _ = account.submit()
    account.begin(machine)
    account.lose(machine)

    both = [account.cli.start("reap", stdout=subprocess.DEVNULL, stderr=None) for _ in range(2)]
    assert [each.wait(timeout=120) for each in both] == [0, 0]
    account.reap()

    assert len(account.machines()) == 1
    assert not account.store.find("job/attempts/0/launches/2/")


def test_reap_every_repeats_until_a_signal_ends_it(account: Account) -> None:
    machine, _ = account.submit()
    account.begin(machine)
    with account.cli.start("reap", "--every", "5s") as looking:
        try:
            _wait(lambda: bool(account.store.find(".looks/reap")))
            account.lose(machine)
            _wait(lambda: bool(account.machines()))
        finally:
            looking.send_signal(signal.SIGTERM)
            out, err = looking.communicate(timeout=60)

    assert looking.returncode == 143
    assert out == f"job: {account.machines()[0]} was launched for the job\n"
    assert err == "bai: no longer looking\n"


def _wait(happens: Callable[[], bool]) -> None:
    latest = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < latest
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("pause", "complaint"),
    [("soon", "is not a duration"), ("1s", "between 5s and 1d"), ("2d", "between 5s and 1d")],
)
def test_an_invalid_interval_of_reap_every_is_refused(account: Account, pause: str, complaint: str) -> None:
    done = account.reap("--every", pause, code=2)

    assert complaint in done.stderr


def test_submit_names_the_service_watcher_or_command_that_will_check_the_job(account: Account) -> None:
    _, alone = account.submit("job-1")
    note_look(account.store, Looker.SERVICE, every=timedelta(minutes=1))
    _, served = account.submit("job-2")
    account.reap()
    _, reaped = account.submit("job-3")
    note_look(account.store, Looker.WATCHER, every=timedelta(minutes=1))
    _, watched = account.submit("job-4")
    account.age(timedelta(minutes=21), below=".looks/")
    _, left = account.submit("job-5", more="")

    assert (
        "bai: nothing checks the job until you do, so a machine that hangs or never boots stays on, at about 0.5000 USD an hour, and lost "
        "machines are not replaced; `bai status job-1` checks the job and its machines\n"
    ) in alone.stderr
    assert "bai: `bai serve` checks the job every 1m, " in served.stderr
    assert "ago, without replacing lost machines\n" in served.stderr
    assert "bai: `bai reap` checks the job from time to time, " in reaped.stderr
    assert "bai: the watcher in the account checks the job every minute, most recently " in watched.stderr
    assert "stays on, at about 0.5000 USD an hour; `bai status job-5`" in left.stderr


def test_an_instance_cannot_add_jobs_to_the_list_of_checked_jobs(account: Account) -> None:
    account.submit(more="")
    plant = _planter(account)

    assert not plant(".watched/job-2")
    assert not plant(".looks/watcher")
    # A star in a policy matches slashes.
    assert plant(".watched/job-2/attempts/0/nodes/0/x")
    assert list(watched_jobs(account.store)) == ["job"]


@pytest.mark.parametrize(
    "key",
    [
        "job/attempts/9/nodes/0/heartbeat.json",
        "job/attempts/²/nodes/0/heartbeat.json",
        "job/attempts/0/nodes/0/../x",
        "job/attempts/0/nodes/../x",
        "job/attempts/0/nodes//x",
        "job/attempts/0/nodes/a\x7fb",
        "job/../attempts/0/nodes/0/x",
        ".watched/../attempts/0/nodes/0/x",
        ".regions/./attempts/0/nodes/0/x",
        "../attempts/0/nodes/0/x",
    ],
)
def test_objects_written_by_a_machine_do_not_keep_a_job_from_ending(account: Account, key: str) -> None:
    for job_id in ("job", "other"):
        machine, _ = account.submit(job_id, more="")
        account.begin(machine, job_id)
        account.lose(machine)
    assert _planter(account)(key)

    done = account.reap()

    assert {each: account.outcome(each) for each in ("job", "other")} == {
        "job": "interrupted",
        "other": "interrupted",
    }
    assert "look" not in done.stderr


def test_a_hanging_machine_is_terminated_even_if_it_writes_objects(account: Account) -> None:
    machine, _ = account.submit(more="")
    account.begin(machine)
    account.end()
    plant = _planter(account)
    for key in ("job/attempts/9/nodes/0/heartbeat.json", "job/attempts/0/nodes/0/../x"):
        assert plant(key)
    account.age(timedelta(minutes=6))

    account.reap()

    assert account.machines() == []


def _planter(account: Account) -> Callable[[str], bool]:
    """Return what puts an object in an instance's name, with its policy in force, and returns whether that was allowed."""
    account.aws.policies.attach("instance")
    s3 = account.aws.client("s3", "instance")

    def plant(key: str) -> bool:
        try:
            s3.put_object(Bucket=account.aws.bucket, Key=f"jobs/{key}", Body=b"token")
        except ClientError as error:
            if error.response["Error"]["Code"] != "AccessDenied":
                raise
            account.aws.policies.take_refused()
            return False
        return True

    return plant
