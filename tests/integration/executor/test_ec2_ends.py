"""Cancelling, releasing and reaping: machines end, and only those that should."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ec2_desk import Ec2Desk, moment

from executor.backends.ec2.monitor.reaper import reap
from executor.backends.ec2.regions import name_region
from executor.backends.ec2.session import AwsSession

LONG_AGO = timedelta(hours=-2)


def test_cancel_marks_the_job_and_leaves_its_machine_to_its_agent(desk: Ec2Desk) -> None:
    (instance,) = desk.launch()
    record = desk.bring(desk.handmade(), launched=[instance])

    assert desk.bai("cancel", "digits-1").out == "digits-1: cancelling\n"
    assert "asked before" in desk.bai("cancel", "digits-1").out

    assert record.cancelled()
    assert desk.state(instance) == "running"
    assert record.result() is None


def test_cancel_now_terminates_the_machines_of_this_job_alone(desk: Ec2Desk) -> None:
    mine = desk.launch(count=2)
    (other,) = desk.launch("digits-12")
    record = desk.bring(desk.handmade(), launched=mine)
    desk.bring(desk.handmade("digits-12"), launched=[other])

    answer = desk.bai("cancel", "digits-1", "--now", "--json")

    assert answer.code == 0, answer.err
    assert all(each in answer.objects[0]["message"] for each in mine)
    assert [desk.state(each) for each in (*mine, other)] == ["terminated", "terminated", "running"]
    assert (record.result() or {})["outcome"] == "cancelled"
    assert "ended before" in desk.bai("cancel", "digits-1", "--now").out


def test_release_leaves_word_for_the_machine(desk: Ec2Desk) -> None:
    record = desk.bring(desk.handmade(keeps=True), launched=desk.launch())

    assert desk.bai("release", "digits-1").out == "digits-1: released\n"
    assert desk.bai("release", "digits-1").out == "digits-1: it was released before\n"

    assert json.loads(record.store.get(record.key("release.json")))["by"] == "bai release"


def test_a_job_that_keeps_no_machine_has_nothing_to_release(desk: Ec2Desk) -> None:
    # Given a job that keeps none, and one that ended and whose machine is gone
    never = desk.bring(desk.handmade("never-1"), launched=desk.launch("never-1"))
    ended = desk.handmade("ended-1", keeps=True)
    ended.ends("failed", 1)
    machines = desk.launch("ended-1")
    gone = desk.bring(ended, launched=machines)
    desk.ec2.terminate_instances(InstanceIds=machines)

    answers = [desk.bai("release", each) for each in ("never-1", "ended-1")]

    assert [each.code for each in answers] == [0, 0]
    assert "nothing to release: it keeps no machine to look into" in answers[0].out
    assert "nothing to release: it has ended, and none of its machines is there" in answers[1].out
    for record in (never, gone):
        assert not record.store.find(record.key("release.json"))


def test_a_machine_that_stays_is_named_and_not_for_release(desk: Ec2Desk) -> None:
    made = desk.handmade()  # whose job descriptor says nothing of the power
    made.ends()
    (machine,) = desk.launch()
    desk.bring(made, launched=[machine])

    (found,) = desk.bai("status", "digits-1", "--json").objects

    assert found["machine"] == f'{machine} is still there, as [end] power = "stay" has it'


def test_a_job_on_this_machine_is_neither_released_nor_terminated(desk: Ec2Desk) -> None:
    desk.handmade().ends()
    here = ("--store", desk.folder / "handmade")

    for wrong in (
        ("release", "digits-1", *here),
        ("cancel", "digits-1", "--now", *here),
        ("logs", "--boot", "digits-1", *here),
    ):
        answer = desk.bai(*wrong)
        assert (answer.code, answer.out) == (2, "")


def test_reap_ends_what_is_overdue_whoever_launched_it_and_nothing_else(desk: Ec2Desk) -> None:
    # Given machines of two people whose time is up, one that has time, one just over it, and others that are not ours
    (late,) = desk.launch("late-1", expires=moment(LONG_AGO))
    (theirs,) = desk.launch("late-2", expires=moment(LONG_AGO), client="somebody else")
    (stopped,) = desk.launch("late-3", expires=moment(LONG_AGO))
    desk.ec2.stop_instances(InstanceIds=[stopped])
    (in_time,) = desk.launch("digits-1")
    (just_over,) = desk.launch("digits-2", expires=moment(timedelta(minutes=-5)))
    (unreadable,) = desk.launch("digits-3", expires="tomorrow")
    (foreign,) = desk.launch(None)
    desk.ec2.create_tags(Resources=[foreign], Tags=[{"Key": "bai:expires", "Value": moment(LONG_AGO)}])

    # When it is said first what would be done
    announced = desk.bai("reap", "--dry-run", "--json")
    assert {each["instance_id"] for each in announced.objects} == {late, theirs, stopped, unreadable}
    assert not any(each["terminated"] for each in announced.objects)
    assert desk.state(late) == "running"
    # And then done
    answer = desk.bai("reap")

    assert {each: desk.state(each) for each in (late, theirs, stopped)} == dict.fromkeys(
        (late, theirs, stopped), "terminated"
    )
    assert {desk.state(each) for each in (in_time, just_over, unreadable, foreign)} == {"running"}
    assert "end it by hand" in answer.out
    assert answer.code == 5
    desk.ec2.terminate_instances(InstanceIds=[unreadable])
    assert desk.bai("reap").err == "bai: there is nothing to reap\n"


def test_what_another_reaper_was_faster_with_is_no_trouble(
    desk: Ec2Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = desk.launch("late-1", expires=moment(LONG_AGO), count=3)
    now = datetime.now(timezone.utc)
    ec2 = AwsSession("us-east-1").ec2()

    # When another one ends all of them as soon as the first was ended
    reaped = reap(ec2, now=now, told=lambda each: desk.ec2.terminate_instances(InstanceIds=machines) and None)

    assert [each.trouble for each in reaped] == ["", "", ""]
    assert reap(ec2, now=now) == []


def test_many_machines_come_in_pages(desk: Ec2Desk) -> None:
    for _ in range(11):
        desk.launch("late-1", expires=moment(LONG_AGO), count=100)

    reaped = reap(AwsSession("us-east-1").ec2(), now=datetime.now(timezone.utc), dry_run=True)

    assert len({each.instance.id for each in reaped}) == 1100


def test_a_proxy_that_answers_in_awss_place_is_named(desk: Ec2Desk) -> None:
    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<p>Please log in")

        def log_message(self, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever).start()
        answer = desk.bai("reap", env={"AWS_ENDPOINT_URL_EC2": f"http://127.0.0.1:{server.server_port}"})
        server.shutdown()

    assert answer.code == 5
    assert answer.err == (
        "bai: us-east-1: describing the instances failed: what answered is not AWS; check the region, the proxy and AWS_ENDPOINT_URL\n"
    )


FAR = "eu-west-1"


def test_machines_end_in_every_region_in_which_jobs_were_launched(desk: Ec2Desk) -> None:
    # Given overdue machines in the configured region and in another one, and one that nobody can reach
    far = desk.in_region(FAR)
    (near,) = desk.launch("late-1", expires=moment(LONG_AGO))
    (away,) = far.launch("late-2", expires=moment(LONG_AGO))
    (theirs,) = far.launch("late-3", expires=moment(LONG_AGO), client="somebody else")
    desk.bring(desk.handmade(), launched=desk.launch())
    for region in (FAR, "xx-nowhere-1", "no region"):
        name_region(desk.store, region)

    # When a command looks at EC2, and when somebody reaps
    assert desk.bai("status", "digits-1").code == 0
    passing = desk.state(near), far.state(away), far.state(theirs)
    reaped = desk.bai("reap", "--json")

    assert passing == ("terminated", "terminated", "running")
    assert [each["instance_id"] for each in reaped.objects] == [theirs]
    assert far.state(theirs) == "terminated"
    assert desk.bai("reap", "--region", FAR).err == "bai: there is nothing to reap\n"


def test_every_look_at_ec2_reaps_ones_own_in_passing(desk: Ec2Desk) -> None:
    (mine,) = desk.launch("late-1", expires=moment(LONG_AGO))
    (theirs,) = desk.launch("late-2", expires=moment(LONG_AGO), client="somebody else")
    desk.bring(desk.handmade(), launched=desk.launch())

    assert desk.bai("status", "digits-1").code == 0

    assert (desk.state(mine), desk.state(theirs)) == ("terminated", "running")
