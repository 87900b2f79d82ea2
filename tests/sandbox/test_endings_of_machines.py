"""However a machine goes, it ends, and `bai status` says how it was. As in test_endings, each test names who ends it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest

from sandbox.ends import RUN, WAITS, ended, outcome, wait_inside
from sandbox.fake_aws import MachineShape, hide_python
from sandbox.sandbox_cli import SandboxCli


def test_an_image_without_python_is_powered_off(cli: SandboxCli) -> None:
    """Guardian: powers off where no Python is found, and none can be installed within 300 s."""
    cli.aws.shape = hide_python(MachineShape())
    machine = cli.submit(cli.descriptor(WAITS))

    status = ended(cli, machine, "no-python")

    assert outcome(status) == ("ERROR", "boot_failed", 5)
    assert "no Python 3.10 or newer" in status["sentence"]


def test_the_agent_starts_once_the_clock_was_set_after_the_boot(cli: SandboxCli) -> None:
    """No layer has to act: the guardian waits, nothing is refused and nothing runs at a wrong time."""
    cli.aws.shape = MachineShape(clock=datetime(2001, 1, 1, tzinfo=timezone.utc))
    machine = cli.submit(cli.descriptor("date +%Y >/var/year"))
    machine.wait_for("job job")
    machine.run(["sh", "-c", "until pgrep -f '[f]etch_agent.py clock'; do sleep 0.1; done"], seconds=120)
    now = datetime.now(timezone.utc)
    machine.set_clock(now)

    assert outcome(ended(cli, machine, "done 0")) == ("SUCCEEDED", "succeeded", 0)
    assert machine.read("/var/year") == f"{now.year}\n".encode()


def test_a_machine_whose_clock_is_never_set_powers_off(cli: SandboxCli) -> None:
    """Guardian: powers off where the clock is not S3's within 300 s; five here."""
    clock = datetime(2001, 1, 1, tzinfo=timezone.utc)
    cli.aws.shape = MachineShape(clock=clock, environment={"BAI_FETCH_SECONDS": "5"})
    machine = cli.submit(cli.descriptor("echo begun >/var/begun"))

    status = ended(cli, machine, "clock-wrong")

    assert outcome(status) == ("ERROR", "boot_failed", 5)
    assert "the machine's clock was wrong" in status["sentence"]
    assert "this machine's clock says Mon, 01 Jan 2001" in machine.console()
    with pytest.raises(FileNotFoundError):
        machine.read("/var/begun")


def test_a_network_without_a_route_to_s3_ends_the_machine(cli: SandboxCli) -> None:
    """Guardian: powers off when S3 cannot be reached for 600 s; five here."""
    cli.aws.shape = MachineShape(environment={"BAI_FETCH_SECONDS": "5"})
    cli.aws.hide(cli.aws.control_plane.port)
    machine = cli.submit(cli.descriptor(WAITS))

    status = ended(cli, machine, "fetch-failed")

    assert outcome(status) == ("ERROR", "boot_failed", 5)
    assert "S3 cannot be reached" in status["sentence"]


def test_a_network_that_disappears_after_the_user_data_ends_the_machine(cli: SandboxCli) -> None:
    """Guardian: powers off when the metadata service does not answer for 600 s; five here."""
    cli.aws.shape = MachineShape(environment={"BAI_FETCH_SECONDS": "5"})
    machine = cli.submit(cli.descriptor(WAITS))
    machine.wait_for("boot 1 of at most 3")
    machine.plug(False)

    status = ended(cli, machine, "no-metadata")

    assert outcome(status) == ("ERROR", "boot_failed", 5)
    assert "the instance metadata service did not answer" in status["sentence"]


def test_a_machine_without_a_network_is_ended(cli: SandboxCli) -> None:
    """`bai reap`: without the metadata service there is no user data, and nothing of ours on the machine."""
    cli.aws.shape = MachineShape(network_after=timedelta(days=1))
    machine = cli.submit(cli.descriptor(WAITS))
    machine.wait_for("cloud-init")
    _let_time_pass(cli, machine.instance_id)

    assert f"{machine.instance_id}  t3.small  running  job" in cli.bai("reap").stdout
    machine.wait_off()

    assert "BAI" not in machine.console()
    assert cli.aws.state(machine.instance_id) == "terminated"
    assert outcome(cli.status()) == ("ERROR", "lost", 5)


def test_a_reboot_loop_is_powered_off_at_the_fourth_boot(cli: SandboxCli) -> None:
    """Boothook: powers off at the fourth boot."""
    machine = cli.submit(cli.descriptor(WAITS, ec2='init_commands = ["reboot -ff; sleep 60"]'))

    status = ended(cli, machine, "too-many-boots")

    assert outcome(status) == ("ERROR", "boot_failed", 5)
    assert "rebooted too often" in status["sentence"]
    assert machine.exit_codes == [133, 133, 133, 0]


def test_a_boot_that_hangs_before_runcmd_is_powered_off_by_the_deadman(cli: SandboxCli) -> None:
    """Deadman: powers off at its deadline, which is five seconds after the boot here; there is no guardian to do it."""
    hang = "[Service]\nExecStartPre=/bin/sleep infinity\n"
    cli.aws.shape = MachineShape(files={"/etc/systemd/system/cloud-final.service.d/hang.conf": hang})
    machine = cli.submit(cli.descriptor(WAITS))
    machine.wait_for("boot 1 of at most 3")
    machine.write("/var/lib/bai/boot/limit", "5\n")

    status = ended(cli, machine, "deadline")

    assert outcome(status) == ("ERROR", "boot_failed", 5)
    assert " guardian\n" not in machine.console()


def test_a_shutdown_that_fails_three_times_is_repeated(cli: SandboxCli) -> None:
    """Guardian: asks again, after 5, 10, 20 seconds and so on, until the machine is off."""
    deaf = '#!/bin/sh\necho asked >>/var/asked\n[ "$(wc -l </var/asked)" -lt 4 ] || exec systemctl poweroff\n'
    cli.aws.shape = MachineShape(files={"/usr/sbin/shutdown": deaf})
    machine = cli.submit(cli.descriptor("echo begun"))

    assert outcome(ended(cli, machine, "done 0")) == ("SUCCEEDED", "succeeded", 0)
    assert machine.read("/var/asked") == b"asked\n" * 4


def test_a_terminated_machine_is_reported(cli: SandboxCli) -> None:
    """EC2; guardian and agent do not hold that up, and nobody takes the job for a running one afterwards."""
    aws = cli.aws
    machine = cli.submit(cli.descriptor(WAITS))
    wait_inside(machine, f"grep -q begun {RUN}/output.log")

    aws.client("ec2", "somebody").terminate_instances(InstanceIds=[machine.instance_id])
    machine.wait_off()

    assert machine.exit_codes == [0]
    assert outcome(cli.status()) == ("ERROR", "interrupted", 5)


def test_a_completely_hanging_machine_is_terminated_by_bai_reap(cli: SandboxCli) -> None:
    """`bai reap`: terminates it when its time was up fifteen minutes ago; the machine itself does nothing any more."""
    aws = cli.aws
    aws.fleet.power_off_grace = 1.0
    machine = cli.submit(cli.descriptor(WAITS))
    machine.wait_for("agent start 1")
    machine.hang()
    assert "there is nothing to reap" in cli.bai("reap").stderr
    assert aws.state(machine.instance_id) == "running"

    _let_time_pass(cli, machine.instance_id)
    assert cli.bai("reap", "--dry-run").code == 0
    assert aws.state(machine.instance_id) == "running"
    assert f"{machine.instance_id}  t3.small  running  job" in cli.bai("reap").stdout
    machine.wait_off()

    assert machine.exit_codes[-1] != 0
    assert aws.state(machine.instance_id) == "terminated"
    [ended] = [call for call in aws.calls if call.action == "TerminateInstances"]
    assert ended.identity == "user"
    status = cli.status()
    assert outcome(status) == ("ERROR", "lost", 5)
    assert "hung" in status["sentence"]


def _let_time_pass(cli: SandboxCli, instance_id: str) -> None:
    """Let the job's time have been up for long, as if it had been launched earlier."""
    past = f"{datetime.now(timezone.utc) - timedelta(minutes=20):%Y-%m-%dT%H:%M:%SZ}"
    cli.aws.client("ec2", "setup").create_tags(
        Resources=[instance_id], Tags=[{"Key": "bai:expires", "Value": past}]
    )
    launch = json.loads(cli.objects("jobs/job/attempts/0/")["launch.json"])
    cli.aws.client("s3", "setup").put_object(
        Bucket=cli.aws.bucket,
        Key="jobs/job/attempts/0/launch.json",
        Body=json.dumps({**launch, "expires": past}).encode(),
    )
