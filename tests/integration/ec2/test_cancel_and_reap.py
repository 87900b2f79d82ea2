"""Cancelling, releasing and reaping: machines end, and only those that should."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ec2_cli import Ec2Cli, moment

from executor.backends.ec2.bucket_store import name_region
from executor.backends.ec2.monitor.reaper import reap
from executor.backends.ec2.session import AwsSession

LONG_AGO = timedelta(hours=-2)


def test_cancel_marks_the_job_and_lets_the_agent_end_the_machine(cli: Ec2Cli) -> None:
    (instance,) = cli.launch()
    record = cli.bring(cli.handmade(), launched=[instance])

    assert cli.bai("cancel", "digits-1").stdout == "digits-1: cancelling\n"
    assert "already being cancelled" in cli.bai("cancel", "digits-1").stdout

    assert record.cancelled()
    assert cli.state(instance) == "running"
    assert record.result() is None


def test_cancel_now_terminates_only_the_machines_of_this_job(cli: Ec2Cli) -> None:
    mine = cli.launch(count=2)
    (other,) = cli.launch("digits-12")
    record = cli.bring(cli.handmade(), launched=mine)
    cli.bring(cli.handmade("digits-12"), launched=[other])

    answer = cli.bai("cancel", "digits-1", "--now", "--json")

    assert answer.code == 0, answer.stderr
    assert all(each in answer.objects[0]["message"] for each in mine)
    assert [cli.state(each) for each in (*mine, other)] == ["terminated", "terminated", "running"]
    assert (record.result() or {})["outcome"] == "cancelled"
    assert "has already ended" in cli.bai("cancel", "digits-1", "--now").stdout


def test_bai_release_writes_the_object_that_releases_a_kept_machine(cli: Ec2Cli) -> None:
    record = cli.bring(cli.handmade(keeps=True), launched=cli.launch())

    assert cli.bai("release", "digits-1").stdout == "digits-1: released\n"
    assert cli.bai("release", "digits-1").stdout == "digits-1: it was released before\n"

    assert json.loads(record.store.get(record.key("release.json")))["by"] == "bai release"


def test_release_of_a_job_without_a_kept_machine_changes_nothing(cli: Ec2Cli) -> None:
    # Given a job that keeps none, and one that ended and whose machine is gone
    never = cli.bring(cli.handmade("never-1"), launched=cli.launch("never-1"))
    ended = cli.handmade("ended-1", keeps=True)
    ended.ends("failed", 1)
    machines = cli.launch("ended-1")
    gone = cli.bring(ended, launched=machines)
    cli.ec2.terminate_instances(InstanceIds=machines)

    answers = [cli.bai("release", each) for each in ("never-1", "ended-1")]

    assert [each.code for each in answers] == [0, 0]
    assert "nothing to release: the job keeps no machine for inspection" in answers[0].stdout
    assert "nothing to release: the job has ended, and its machines are gone" in answers[1].stdout
    for record in (never, gone):
        assert not record.store.find(record.key("release.json"))


def test_status_names_a_machine_left_on_by_power_stay(cli: Ec2Cli) -> None:
    made = cli.handmade()  # whose job descriptor says nothing of the power
    made.ends()
    (machine,) = cli.launch()
    cli.bring(made, launched=[machine])

    (found,) = cli.bai("status", "digits-1", "--json").objects

    assert found["machine"] == f'{machine} is still on, because of [end] power = "stay"'


def test_ec2_commands_are_refused_for_a_local_job(cli: Ec2Cli) -> None:
    cli.handmade().ends()
    here = ("--store", cli.folder / "handmade")

    for wrong in (
        ("release", "digits-1", *here),
        ("cancel", "digits-1", "--now", *here),
        ("logs", "--boot", "digits-1", *here),
    ):
        answer = cli.bai(*wrong)
        assert (answer.code, answer.stdout) == (2, "")


def test_reap_terminates_only_machines_past_their_expiry_whoever_launched_them(cli: Ec2Cli) -> None:
    # Given machines of two people whose time is up, one that has time, one just over it, and others that are not ours
    (late,) = cli.launch("late-1", expires=moment(LONG_AGO))
    (theirs,) = cli.launch("late-2", expires=moment(LONG_AGO), client="somebody else")
    (stopped,) = cli.launch("late-3", expires=moment(LONG_AGO))
    cli.ec2.stop_instances(InstanceIds=[stopped])
    (in_time,) = cli.launch("digits-1")
    (just_over,) = cli.launch("digits-2", expires=moment(timedelta(minutes=-5)))
    (unreadable,) = cli.launch("digits-3", expires="tomorrow")
    (foreign,) = cli.launch(None)
    cli.ec2.create_tags(Resources=[foreign], Tags=[{"Key": "bai:expires", "Value": moment(LONG_AGO)}])

    # When it is said first what would be done
    announced = cli.bai("reap", "--dry-run", "--json")
    assert {each["instance_id"] for each in announced.objects} == {late, theirs, stopped, unreadable}
    assert not any(each["terminated"] for each in announced.objects)
    assert cli.state(late) == "running"
    # And then done
    answer = cli.bai("reap")

    assert {each: cli.state(each) for each in (late, theirs, stopped)} == dict.fromkeys(
        (late, theirs, stopped), "terminated"
    )
    assert {cli.state(each) for each in (in_time, just_over, unreadable, foreign)} == {"running"}
    assert "terminate the machine by hand" in answer.stdout
    assert answer.code == 5
    cli.ec2.terminate_instances(InstanceIds=[unreadable])
    assert cli.bai("reap").stderr == "bai: there is nothing to reap\n"


def test_a_machine_already_terminated_by_another_reaper_causes_no_error(
    cli: Ec2Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = cli.launch("late-1", expires=moment(LONG_AGO), count=3)
    now = datetime.now(timezone.utc)
    ec2 = AwsSession("us-east-1").ec2()

    # When another one ends all of them as soon as the first was ended
    reaped = reap(
        ec2, now=now, on_reaped=lambda each: cli.ec2.terminate_instances(InstanceIds=machines) and None
    )

    assert [each.trouble for each in reaped] == ["", "", ""]
    assert reap(ec2, now=now) == []


def test_many_machines_are_listed_in_pages(cli: Ec2Cli) -> None:
    # A page has a hundred launches.
    for _ in range(101):
        cli.launch("late-1", expires=moment(LONG_AGO))
    assert cli.ec2.describe_instances()["NextToken"]

    reaped = reap(AwsSession("us-east-1").ec2(), now=datetime.now(timezone.utc), dry_run=True)

    assert len({each.instance.id for each in reaped}) == 101


def test_a_proxy_that_answers_in_place_of_aws_is_named(cli: Ec2Cli) -> None:
    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<p>Please log in")

        def log_message(self, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever).start()
        answer = cli.bai("reap", env={"AWS_ENDPOINT_URL_EC2": f"http://127.0.0.1:{server.server_port}"})
        server.shutdown()

    assert answer.code == 5
    assert answer.stderr == (
        "bai: us-east-1: describing the instances failed: the server that answered is not AWS; check the region, the proxy and AWS_ENDPOINT_URL\n"
    )


FAR = "eu-west-1"


def test_overdue_machines_are_terminated_in_every_region_used_by_jobs(cli: Ec2Cli) -> None:
    # Given overdue machines in the configured region and in another one, and one that nobody can reach
    far = cli.in_region(FAR)
    (near,) = cli.launch("late-1", expires=moment(LONG_AGO))
    (away,) = far.launch("late-2", expires=moment(LONG_AGO))
    (theirs,) = far.launch("late-3", expires=moment(LONG_AGO), client="somebody else")
    cli.bring(cli.handmade(), launched=cli.launch())
    for region in (FAR, "xx-nowhere-1", "no region"):
        name_region(cli.store, region)

    # When a command looks at EC2, and when somebody reaps
    assert cli.bai("status", "digits-1").code == 0
    passing = cli.state(near), far.state(away), far.state(theirs)
    reaped = cli.bai("reap", "--json")

    assert passing == ("terminated", "terminated", "running")
    assert [each["instance_id"] for each in reaped.objects] == [theirs]
    assert far.state(theirs) == "terminated"
    assert cli.bai("reap", "--region", FAR).stderr == "bai: there is nothing to reap\n"


def test_every_command_that_queries_ec2_reaps_the_users_own_machines(cli: Ec2Cli) -> None:
    (mine,) = cli.launch("late-1", expires=moment(LONG_AGO))
    (theirs,) = cli.launch("late-2", expires=moment(LONG_AGO), client="somebody else")
    cli.bring(cli.handmade(), launched=cli.launch())

    assert cli.bai("status", "digits-1").code == 0

    assert (cli.state(mine), cli.state(theirs)) == ("terminated", "running")


@pytest.mark.parametrize("lost", [[1], [0, 1]])
def test_reap_terminates_the_hanging_machine_of_a_multi_node_job(cli: Ec2Cli, lost: list[int]) -> None:
    # Given a job whose time is up: a node made its result and has gone, or all hang and there is none
    made = cli.handmade("gang-1", nodes=2)
    if lost == [1]:
        made.ends("peer_lost", 5, lost=lost)
    machines = cli.launch("gang-1", expires=moment(LONG_AGO), count=2)
    record = cli.bring(made, launched=machines, expires=LONG_AGO)
    left = [machines[rank] for rank in lost]
    for gone in set(machines) - set(left):
        cli.ec2.terminate_instances(InstanceIds=[gone])
    before = record.result()

    reaped = cli.bai("reap", "--json")
    (seen,) = cli.bai("status", "gang-1", "--json").objects

    assert sorted(each["instance_id"] for each in reaped.objects) == sorted(left)
    assert [cli.state(each) for each in machines] == ["terminated"] * 2
    after = record.result() or {}
    assert (seen["exit_code"], after["exit_code"]) == (5, 5)
    assert after == before if before else after["on_behalf"]
