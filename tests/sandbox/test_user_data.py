"""Our user data on real machines: cloud-init of three ages, boots and reboots, with an agent that does what a test says."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from instance_jobs import JOB, bundle

from cloud_init.user_data import Boot, Bundle, user_data
from executor.backends.ec2.console import read_console
from sandbox.deep_learning import with_newer_python
from sandbox.fake_aws import FakeAws, Machine, MachineShape, hide_python
from sandbox.fake_aws.control_plane.images import BULLSEYE, DEBIAN, TRIXIE, MachineImage
from sandbox.fake_aws.fake_aws import REGION
from sandbox.fake_aws.machine.roots import cloud_init, root
from sandbox.launches import launch

AGENT = 'print("BENCHMARK RUNS", file=open("/dev/console", "w")); end(0)'
GO = "exec('while not os.path.exists(\"/var/go\"): time.sleep(0.1)'); end(0)"
WAITS = f'print("BENCHMARK RUNS", file=open("/dev/console", "w")); {GO}'
ACCOUNT = "/var/lib/bai/boot/deadline"
"""What the deadman writes each time that it looks."""
STUCK = """
[Unit]
DefaultDependencies=no
Conflicts=shutdown.target
Before=shutdown.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=true
ExecStop=sleep infinity
TimeoutStopSec=infinity
"""
"""A service that no shutdown gets past."""
NOT_OURS = re.compile("install-hotplug|emit_upstart|apt_preserve_sources_list")
"""A namespace has no udev to talk to; and a newer cloud-init does not like all that Debian 11 has configured."""


def start(aws: FakeAws, *, agent: str = AGENT, image: MachineImage = DEBIAN, **given: Any) -> Machine:
    """Launch one instance with our user data."""
    content = bundle(agent)
    sha256 = hashlib.sha256(content).hexdigest()
    key = f"agent/{sha256}.tar.gz"
    aws.client("s3").put_object(Bucket=aws.bucket, Key=key, Body=content)
    settings: dict[str, Any] = {
        "job_id": JOB,
        "job_toml": "version = 1\n",
        "bundle": Bundle(url=f"s3://{aws.bucket}/{key}", sha256=sha256, size=len(content)),
        "region": REGION,
        "store_url": f"s3://{aws.bucket}/jobs",
        "s3_endpoint": aws.endpoint,
        "deadman": timedelta(hours=1),
    }
    content = user_data(Boot(**(settings | given)))
    return launch(aws, ImageId=image.image_id, UserData=content)[0]


@pytest.fixture(params=[BULLSEYE, DEBIAN, TRIXIE], ids=lambda image: image.variant)
def image(request: pytest.FixtureRequest, aws: FakeAws) -> MachineImage:
    """An image whose machines can run an agent."""
    found: MachineImage = request.param
    root(found.variant)  # made before anybody waits for a machine of it
    if found is BULLSEYE:
        aws.shape = with_newer_python(MachineShape())
    return found


def test_a_job_runs_without_cloud_init_errors_and_its_machine_shuts_itself_down(
    aws: FakeAws, image: MachineImage
) -> None:
    """cloud-init has finished and found no fault in what it was given; nothing waits for us."""
    machine = start(aws, agent=WAITS, image=image)
    machine.wait_for("BENCHMARK RUNS")
    machine.run(["cloud-init", "status", "--wait"])
    stages = json.loads(machine.run(["cat", "/run/cloud-init/status.json"]).stdout)["v1"].values()
    faults = [fault for stage in stages if isinstance(stage, dict) for fault in stage["errors"]]
    faults += re.findall(
        r".*\[(?:WARNING|ERROR|CRITICAL)\].*", machine.read("/var/log/cloud-init.log").decode()
    )
    assert [fault for fault in faults if not NOT_OURS.search(fault)] == []
    # "degraded" where that failed; "starting" would be for as long as something waits for us.
    running = machine.run(["systemctl", "is-system-running", "--wait"]).stdout
    assert running in ("running\n", "degraded\n")
    assert "masked" in machine.run(["systemctl", "is-enabled", "apt-daily.timer"]).stdout
    assert "inactive" in machine.run(["systemctl", "is-active", "apt-daily.timer"]).stdout

    machine.write("/var/go", "")
    machine.wait_off()

    console = machine.console()
    assert f"Cloud-init v. {cloud_init(image.variant)}" in console
    steps = ["boot 1 of at most 3", "guardian", "agent start 1", "BENCHMARK RUNS", "BAI-END done 0"]
    assert [console.index(step) for step in steps] == sorted(console.index(step) for step in steps)
    assert aws.instance(machine.instance_id)["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert machine.exit_codes == [0]
    assert read_console(console).end == "done"


def test_a_termination_of_the_instance_is_not_delayed(aws: FakeAws) -> None:
    machine = start(aws, agent="signal.signal(15, lambda *_: end(5)); time.sleep(600)")
    machine.wait_for("agent start 1")
    aws.client("ec2", "executor").terminate_instances(InstanceIds=[machine.instance_id])
    machine.wait_off()
    assert machine.exit_codes == [0]
    assert "BAI-END terminated" in machine.console()


def test_a_job_continues_after_a_reboot(aws: FakeAws, image: MachineImage) -> None:
    machine = start(
        aws, image=image, agent="os.system('reboot') or time.sleep(600) if starts == 1 else end(0)"
    )
    machine.wait_off()
    assert machine.exit_codes == [133, 0]
    assert "boot 2 of at most 3" in machine.console()
    assert "BAI-END done 0" in machine.console()


def test_a_reboot_loop_is_ended_by_the_boothook(aws: FakeAws, image: MachineImage) -> None:
    machine = start(aws, image=image, agent="os.system('reboot'); time.sleep(600)")
    machine.wait_off()
    assert machine.exit_codes == [133, 133, 133, 0]
    assert "BAI-END too-many-boots" in machine.console()


def test_a_boot_without_guardian_is_ended_by_the_deadman(aws: FakeAws) -> None:
    aws.shape = MachineShape(prepare="sed -i 's/^ - runcmd/ - never/' /etc/cloud/cloud.cfg")
    machine = start(aws, deadman=timedelta(seconds=5))
    machine.wait_off()
    assert "BAI-END deadline" in machine.console()
    assert "guardian" not in machine.console()


@pytest.mark.parametrize(
    ("image", "shape"),
    [(DEBIAN, hide_python(MachineShape())), (BULLSEYE, MachineShape())],
    ids=["none", "old"],
)
def test_a_machine_without_a_python_for_the_agent_reports_that_and_powers_off(
    aws: FakeAws, image: MachineImage, shape: MachineShape
) -> None:
    """Neither on the image nor, as no repository can be reached, from the distribution."""
    root(image.variant)
    aws.shape = shape
    machine = start(aws, image=image)
    machine.wait_off()
    console = machine.console()
    assert console.index("no Python of version 3.10") < console.index("BAI-END no-python")
    assert b"Err:" in machine.read("/var/log/bai-guardian.log")


def test_a_job_runs_with_a_late_network_and_a_read_only_tmp(aws: FakeAws) -> None:
    aws.shape = MachineShape(network_after=timedelta(seconds=30), tmp_read_only=True)
    machine = start(aws)
    machine.wait_off()
    assert "BAI-END done 0" in machine.console()


def test_a_clock_that_jumps_ahead_ends_no_job(aws: FakeAws) -> None:
    now = datetime.now(timezone.utc)
    aws.shape = MachineShape(clock=now)
    machine = start(aws, agent=GO)
    machine.wait_for("agent start 1")
    machine.set_clock(now + timedelta(days=3650))
    before = machine.read(ACCOUNT).decode().rstrip("\n")
    machine.run(["sh", "-c", f'until [ "$(cat {ACCOUNT})" != "$0" ]; do sleep 0.1; done', before])
    machine.write("/var/go", "")
    machine.wait_off()
    assert "BAI-END done 0" in machine.console()


def test_a_clock_that_jumps_back_prolongs_no_job(aws: FakeAws) -> None:
    now = datetime.now(timezone.utc)
    aws.shape = MachineShape(clock=now)
    machine = start(aws, agent="time.sleep(600)")
    machine.wait_for("agent start 1")
    machine.set_clock(now - timedelta(days=3650))
    # Its time is over at the deadman's next look but one, however long the boot took.
    spent = int(machine.read(ACCOUNT).split()[0])
    machine.write("/var/lib/bai/boot/limit", f"{spent + 15}\n")
    machine.wait_off()
    assert "BAI-END deadline" in machine.console()


def test_a_shutdown_that_hangs_leaves_the_deadman_running(aws: FakeAws) -> None:
    """This cloud-init's units are stopped, with all that they started, at the begin of each shutdown."""
    aws.shape = MachineShape(files={"/etc/systemd/system/stuck.service": STUCK})
    machine = start(aws, agent="time.sleep(600)")
    machine.wait_for("agent start 1")
    machine.run(["systemctl", "start", "stuck"])
    machine.run(["systemctl", "--no-block", "poweroff"])
    machine.run(["sh", "-c", "while systemctl --quiet is-active cloud-init; do sleep 0.1; done"])
    machine.write("/var/lib/bai/boot/limit", "5\n")
    machine.wait_for("BAI-END deadline")
    assert machine.exit_codes == []
