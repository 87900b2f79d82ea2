"""Launches that meet trouble, from `bai submit` to what becomes of the machines."""

from __future__ import annotations

import json

from sandbox.desk import Desk
from sandbox.fake_aws import FakeAws


def test_two_zones_are_full_and_an_answer_gets_lost(aws: FakeAws, desk: Desk) -> None:
    """The third zone is used, and asked again for the answer; a repeat of the submission launches nothing."""
    first, second, third = aws.subnets
    full = [aws.no_capacity(zone) for zone in (first, second)]
    lost = aws.fail("RunInstances", zone=third, then="drop")
    file = desk.descriptor("echo begun")

    machine = desk.submit(file)
    again = desk.bai("submit", file, "--job-id", "job")
    machine.wait_off()
    after = desk.bai("submit", file, "--job-id", "job")

    assert (again.returncode, after.returncode) == (0, 0), again.stderr + after.stderr
    assert aws.machines == [machine]
    assert aws.instance(machine.instance_id)["Placement"]["AvailabilityZone"] == third
    assert [fault.hits for fault in (*full, lost)] == [1, 1, 1]
    assert desk.status()["status"] == "SUCCEEDED"


def test_one_file_twice_is_two_jobs(aws: FakeAws, desk: Desk) -> None:
    file = desk.descriptor("echo begun")

    ids = {desk.bai("submit", file).stdout.strip() for _ in range(2)}

    assert len(ids) == 2
    tags = [aws.instance(each.instance_id)["Tags"] for each in aws.machines]
    assert {tag["Value"] for each in tags for tag in each if tag["Key"] == "bai:job-id"} == ids
    for machine in aws.machines:
        machine.wait_off()
    assert [desk.status(each)["status"] for each in ids] == ["SUCCEEDED"] * 2


def test_a_machine_that_dies_while_pending_says_why(aws: FakeAws, desk: Desk) -> None:
    aws.die_in_pending(
        0, code="Client.VolumeLimitExceeded", message="The maximum number of gibibytes is exceeded"
    )
    done = desk.bai("submit", desk.descriptor("echo begun"), "--job-id", "job")
    assert done.returncode == 0, done.stderr
    [instance_id] = json.loads(desk.objects("jobs/job/attempts/0/")["launched.json"])["instances"]
    aws.wait_state(instance_id, "terminated")

    status = desk.status()

    assert (status["status"], status["outcome"], status["exit_code"]) == ("ERROR", "quota", 5)
    assert "The maximum number of gibibytes is exceeded" in status["sentence"]
    assert aws.machines == []
