"""Launches that meet trouble, from `bai submit` to what becomes of the machines."""

from __future__ import annotations

import json

from sandbox.fake_aws import FakeAws
from sandbox.sandbox_cli import SandboxCli


def test_with_two_full_zones_and_a_lost_answer_one_machine_is_launched(aws: FakeAws, cli: SandboxCli) -> None:
    """The third zone is used, and asked again for the answer; a repeat of the submission launches nothing."""
    first, second, third = aws.subnets
    full = [aws.no_capacity(zone) for zone in (first, second)]
    lost = aws.fail("RunInstances", zone=third, then="drop")
    file = cli.descriptor("echo begun")

    machine = cli.submit(file)
    again = cli.bai("submit", file, "--job-id", "job")
    machine.wait_off()
    after = cli.bai("submit", file, "--job-id", "job")

    assert (again.code, after.code) == (0, 0), again.stderr + after.stderr
    assert aws.machines == [machine]
    assert aws.instance(machine.instance_id)["Placement"]["AvailabilityZone"] == third
    assert [fault.hits for fault in (*full, lost)] == [1, 1, 1]
    assert cli.status()["status"] == "SUCCEEDED"


def test_a_file_submitted_twice_is_two_jobs(aws: FakeAws, cli: SandboxCli) -> None:
    file = cli.descriptor("echo begun")

    ids = {cli.bai("submit", file).stdout.strip() for _ in range(2)}

    assert len(ids) == 2
    tags = [aws.instance(each.instance_id)["Tags"] for each in aws.machines]
    assert {tag["Value"] for each in tags for tag in each if tag["Key"] == "bai:job-id"} == ids
    for machine in aws.machines:
        machine.wait_off()
    assert [cli.status(each)["status"] for each in ids] == ["SUCCEEDED"] * 2


def test_a_machine_that_dies_while_pending_says_why(aws: FakeAws, cli: SandboxCli) -> None:
    aws.die_in_pending(
        0, code="Client.VolumeLimitExceeded", message="The maximum number of gibibytes is exceeded"
    )
    done = cli.bai("submit", cli.descriptor("echo begun"), "--job-id", "job")
    assert done.code == 0, done.stderr
    [instance_id] = json.loads(cli.objects("jobs/job/attempts/0/")["launched.json"])["instances"]
    aws.wait_state(instance_id, "terminated")

    status = cli.status()

    assert (status["status"], status["outcome"], status["exit_code"]) == ("ERROR", "quota", 5)
    assert "The maximum number of gibibytes is exceeded" in status["sentence"]
    assert aws.machines == []
