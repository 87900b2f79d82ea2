"""Machines can be made unusual, and the unusual really holds in them."""

from __future__ import annotations

import socket
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from sandbox.fake_aws import FakeAws, Machine, MachineShape, hide_python
from sandbox.fake_aws.control_plane.images import DEBIAN, TRIXIE, MachineImage
from sandbox.launches import launch, user_data

SAY = 'say() { echo "$*" >/dev/console; }\n'
UP = SAY + "say IS-UP"


def booted(aws: FakeAws, shape: MachineShape, *, runcmd: str = UP, image: MachineImage = DEBIAN) -> Machine:
    aws.shape = shape
    [machine] = launch(aws, ImageId=image.image_id, UserData=user_data(runcmd=runcmd))
    return machine


def test_a_machine_shape_adds_replaces_and_removes_files_only_in_the_machine(
    aws: FakeAws, tmp_path: Path
) -> None:
    (tmp_path / "heavy").mkdir()
    (tmp_path / "heavy" / "python").write_text("#!/bin/sh\necho heavy\n")
    (tmp_path / "heavy" / "python").chmod(0o755)
    deaf = '#!/bin/sh\necho "DEAF $*" >/dev/console\n'
    machine = booted(
        aws,
        MachineShape(
            files={"/usr/sbin/shutdown": deaf, "/etc/motd": "moin\n"},
            remove=["/usr/bin/curl", "/usr/bin/pye*"],
            mounts={"/opt/pytorch": tmp_path / "heavy"},
            environment={"GREETING": "hello you"},
        ),
        runcmd=SAY + 'shutdown -h now; say "GREETING $GREETING"; say IS-UP',
    )
    machine.wait_for("IS-UP")

    assert "DEAF -h now" in machine.console()
    assert "GREETING hello you" in machine.console()
    assert machine.run(["/opt/pytorch/python"]).stdout == "heavy\n"
    assert machine.run(["touch", "/opt/pytorch/new"]).returncode != 0
    assert machine.run(["cat", "/etc/motd"]).stdout == "moin\n"
    assert machine.run(["ls", "/usr/bin/curl"]).returncode != 0
    own = Path("/usr/sbin/shutdown")
    assert not own.exists() or b"DEAF" not in own.read_bytes()
    assert not Path("/opt/pytorch/new").exists()


def test_without_python_cloud_init_still_runs(aws: FakeAws) -> None:
    machine = booted(
        aws, hide_python(MachineShape()), runcmd=SAY + 'say "FOUND $(command -v python3 || echo none)"'
    )
    machine.wait_for("FOUND none")
    assert machine.run(["/usr/libexec/platform-python", "-c", "print(1)"]).stdout == "1\n"


@pytest.mark.parametrize("image", [DEBIAN, TRIXIE], ids=lambda image: image.variant)
def test_signatures_are_invalid_until_the_clock_is_set(aws: FakeAws, image: MachineImage) -> None:
    aws.client("s3").put_object(Bucket=aws.bucket, Key="hello", Body=b"good morning")
    mine = aws.identities.of("user")
    read = f'curl -s --aws-sigv4 aws:amz:eu-central-1:s3 --user {mine.access_key}:{mine.secret_key} "$AWS_ENDPOINT_URL/{aws.bucket}/hello"'
    machine = booted(
        aws,
        MachineShape(clock=datetime(2001, 1, 1, tzinfo=timezone.utc)),
        runcmd=SAY + f'while :; do say "IN $(date +%Y): $({read})"; sleep 0.3; done',
        image=image,
    )
    machine.wait_for("RequestTimeTooSkewed")
    assert "IN 2001: <" in machine.console()

    machine.set_clock(datetime.now(timezone.utc))
    machine.wait_for(f"IN {datetime.now(timezone.utc).year}: good morning")


def test_a_machine_shape_delays_the_network(aws: FakeAws) -> None:
    machine = booted(aws, MachineShape(network_after=timedelta(seconds=4)))
    machine.wait_for("IS-UP", seconds=120)
    assert machine.timings["token"] > 4


def test_a_machine_shape_makes_tmp_read_only_and_the_disk_small(aws: FakeAws) -> None:
    script = SAY + "touch /tmp/x || say TMP-READ-ONLY; dd if=/dev/zero of=/var/fill bs=1M || say DISK-FULL"
    machine = booted(aws, MachineShape(tmp_read_only=True, disk="48m"), runcmd=script)
    machine.wait_for("TMP-READ-ONLY")
    machine.wait_for("DISK-FULL")


def test_a_halted_machine_still_costs_money(aws: FakeAws) -> None:
    machine = booted(aws, MachineShape(), runcmd="systemctl halt")
    machine.wait_for("Halting system.")
    with pytest.raises(TimeoutError):
        machine.wait_off(seconds=3)
    assert machine.exit_codes == [0]
    assert aws.state(machine.instance_id) == "running"
    aws.client("ec2").terminate_instances(InstanceIds=[machine.instance_id])
    aws.wait_state(machine.instance_id, "terminated")


def test_a_hosts_port_is_at_the_same_address_in_the_machine(aws: FakeAws) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        aws.expose(port)
        machine = booted(aws, MachineShape())

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"from the host: " + connection.recv(100))

        threading.Thread(target=serve, daemon=True).start()
        machine.wait_for("IS-UP")
        speak = f"exec 3<>/dev/tcp/127.0.0.1/{port}; printf ping >&3; cat <&3"
        assert machine.run(["bash", "-c", speak]).stdout == "from the host: ping"
        aws.hide(port)
        assert machine.run(["bash", "-c", speak]).returncode != 0


def test_a_process_can_be_found_and_killed(aws: FakeAws) -> None:
    machine = booted(aws, MachineShape(), runcmd=UP + "\nsleep 4242 || say KILLED-WITH $?")
    machine.wait_for("IS-UP")
    machine.run(["sh", "-c", "until pgrep -f '^sleep 4242'; do sleep 0.1; done"], seconds=120)
    [process] = [each for each in machine.inside.processes("sleep 4242") if each.argv[0] == "sleep"]
    machine.kill(process.pid)
    machine.wait_for("KILLED-WITH 137")
