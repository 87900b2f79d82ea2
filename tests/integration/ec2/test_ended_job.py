"""Machines that are still on after the end of their job: any command terminates them once they write no more objects."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from ec2_cli import Ec2Cli

from bai_agent.job.record import JobRecord

HUNG = timedelta(minutes=6)


def ended(
    cli: Ec2Cli,
    job_id: str = "digits-1",
    *,
    keeps: bool = False,
    failed: bool = False,
    count: int = 1,
    end: str = "",
) -> tuple[JobRecord, list[str]]:
    """Bring a job that has just ended and whose machines are still on; return it and them. end: more of `[end]`."""
    made = cli.handmade(job_id, keeps=keeps, nodes=count)
    if not keeps:
        file = made.store.folder / job_id / "job.toml"
        file.write_text(f'{file.read_text()}\n[end]\npower = "off"\n{end}\n')
    made.ends(*(("failed", 1) if failed else ()))
    machines = cli.launch(job_id, count=count)
    record = cli.bring(made, launched=machines)
    for rank in range(count):
        record.store.put(record.node(rank).key("heartbeat.json"), b"{}")
    return record, machines


@pytest.mark.parametrize("looks", [("status", "digits-1"), ("reap",), ("list",)])
def test_status_reap_and_list_terminate_a_machine_whose_power_off_hangs(
    cli: Ec2Cli, looks: tuple[str, ...]
) -> None:
    # Given a machine that is on minutes after the last that came from it, and one of a job that has only just ended
    record, (hung,) = ended(cli)
    _, (fresh,) = ended(cli, "digits-2")
    cli.age(record, HUNG)

    answer = cli.bai(*looks)

    assert answer.code == 0, answer.stderr
    assert (cli.state(hung), cli.state(fresh)) == ("terminated", "running")


def test_status_and_reap_say_why_they_terminate_a_machine(cli: Ec2Cli) -> None:
    record, (first,) = ended(cli)
    other, (second,) = ended(cli, "digits-2")
    for each in (record, other):
        cli.age(each, HUNG)

    announced = cli.bai("reap", "--dry-run", "--json").objects
    (seen,) = cli.bai("status", "digits-1", "--json").objects

    assert {each["instance_id"]: each["reason"] for each in announced} == dict.fromkeys(
        (first, second), "the job has ended, but the machine did not power itself off"
    )
    assert seen["machine"].startswith(f"{first} is still on, ")
    assert seen["machine"].endswith("and is being terminated: the power-off hangs")
    # The look of `status` has ended the other one in passing.
    assert cli.state(second) == "terminated"


@pytest.mark.parametrize(
    "moves", ["attempts/0/nodes/0/heartbeat.json", "attempts/0/nodes/0/log/", "artifacts/"]
)
def test_a_machine_that_still_writes_objects_after_the_result_is_not_terminated(
    cli: Ec2Cli, moves: str
) -> None:
    # Given a result that is long there, as another machine may have forged it, and a machine that works or drains
    record, (machine,) = ended(cli)
    record.store.put(record.key(f"{moves}more" if moves.endswith("/") else moves), b"{}")
    cli.age(record, timedelta(minutes=30), but=moves)

    (seen,) = cli.bai("status", "digits-1", "--json").objects
    reaped = cli.bai("reap")

    assert "nothing to reap" in reaped.stderr
    assert cli.state(machine) == "running"
    assert f"{machine} still sends heartbeats 30m" in seen["machine"]
    assert "`bai cancel digits-1 --now` terminates the job's machines" in seen["machine"]


def test_a_machine_that_never_wrote_an_object_is_terminated_an_hour_after_the_result(cli: Ec2Cli) -> None:
    record, (machine,) = ended(cli)
    record.store.delete(record.key("attempts/0/nodes/"))
    cli.age(record, timedelta(minutes=30))

    before = cli.bai("reap")
    cli.age(record, timedelta(minutes=31))
    after = cli.bai("reap")

    assert "nothing to reap" in before.stderr
    assert machine in after.stdout
    assert cli.state(machine) == "terminated"


def test_a_kept_machine_is_terminated_after_its_time_or_release(cli: Ec2Cli) -> None:
    # Given failed jobs that keep their machines for an hour, of which one is released
    kept, (first,) = ended(cli, "kept-1", keeps=True, failed=True)
    released, (second,) = ended(cli, "released-1", keeps=True, failed=True)
    assert cli.bai("release", "released-1").code == 0
    for each in (kept, released):
        cli.age(each, timedelta(minutes=20))

    assert cli.bai("reap").code == 0
    early = cli.state(first), cli.state(second)
    cli.age(kept, timedelta(minutes=46))
    assert cli.bai("reap").code == 0

    assert early == ("running", "terminated")
    assert cli.state(first) == "terminated"


def test_status_names_a_machine_kept_after_a_success_which_is_terminated_later(cli: Ec2Cli) -> None:
    record, (machine,) = ended(cli, end='keep_after = "1h"')
    cli.age(record, timedelta(minutes=20))

    (seen,) = cli.bai("status", "digits-1", "--json").objects
    assert cli.bai("reap").code == 0
    early = cli.state(machine)
    cli.age(record, timedelta(minutes=46))
    assert cli.bai("reap").code == 0

    assert f"{machine} is kept for inspection until " in seen["machine"]
    assert (early, cli.state(machine)) == ("running", "terminated")


def test_a_refused_termination_does_not_prevent_that_of_other_machines(cli: Ec2Cli) -> None:
    record, machines = ended(cli, count=3)
    cli.ec2.modify_instance_attribute(InstanceId=machines[0], DisableApiTermination={"Value": True})
    cli.age(record, HUNG)

    (seen,) = cli.bai("status", "digits-1", "--json").objects

    assert [cli.state(each) for each in machines] == ["running", "terminated", "terminated"]
    assert "OperationNotPermitted" in seen["machine"]


def test_reap_ends_a_machine_that_never_ran_its_user_data(cli: Ec2Cli) -> None:
    # Given a job whose machine boots without us, and that nobody asks about
    made = cli.handmade(written=False)
    (machine,) = cli.launch()
    record = cli.bring(made, launched=[machine])
    cli.age(record, timedelta(minutes=61))

    reaped = cli.bai("reap", "--json")

    assert [each["instance_id"] for each in reaped.objects] == [machine]
    assert "never ran its user data" in reaped.objects[0]["reason"]
    assert cli.state(machine) == "terminated"
    assert json.loads(record.store.get(record.key("result.json")))["outcome"] == "boot_failed"


def test_machines_of_another_store_or_without_tags_are_not_touched(cli: Ec2Cli) -> None:
    # Given a machine whose tags name another store, and somebody's own that a job says is its
    record, (machine,) = ended(cli)
    cli.ec2.create_tags(Resources=[machine], Tags=[{"Key": "bai:store", "Value": "s3://another/jobs"}])
    other, (own,) = ended(cli, "digits-2")
    cli.ec2.delete_tags(Resources=[own], Tags=[{"Key": "bai:job-id"}])
    for each in (record, other):
        cli.age(each, HUNG)

    assert cli.bai("reap").code == 0
    assert cli.bai("status", "digits-2").code == 0

    assert (cli.state(machine), cli.state(own)) == ("running", "running")
