"""Machines boot what users submit, and EC2 sees what becomes of them."""

from __future__ import annotations

import re

import pytest

from sandbox.fake_aws import FakeAws
from sandbox.fake_aws.control_plane.images import DEBIAN, TRIXIE, MachineImage
from sandbox.fake_aws.machine.roots import cloud_init
from sandbox.launches import launch, user_data

SAY = 'say() { echo "$*" >/dev/console; }\n'

READ_S3 = (
    SAY
    + """
imds() { curl -sS -m 10 -H "X-aws-ec2-metadata-token: $token" "http://169.254.169.254/latest/$1"; }
field() { printf '%s' "$answer" | sed -n "s/.*\\"$1\\": *\\"\\([^\\"]*\\)\\".*/\\1/p"; }
token=$(curl -sS -m 10 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' http://169.254.169.254/latest/api/token)
role=$(imds meta-data/iam/security-credentials/)
answer=$(imds "meta-data/iam/security-credentials/$role")
region=$(imds meta-data/placement/region)
say "SAID-BY-S3 $(curl -sS -m 20 --aws-sigv4 "aws:amz:$region:s3" --user "$(field AccessKeyId):$(field SecretAccessKey)" \
    -H "x-amz-security-token: $(field Token)" "$AWS_ENDPOINT_URL/BUCKET/jobs/hello")"
poweroff
"""
)


@pytest.mark.parametrize("image", [DEBIAN, TRIXIE], ids=lambda image: image.variant)
def test_user_data_boots_reads_s3_with_the_role_and_powers_off(aws: FakeAws, image: MachineImage) -> None:
    aws.client("s3").put_object(Bucket=aws.bucket, Key="jobs/hello", Body=b"good morning")
    script = READ_S3.replace("BUCKET", aws.bucket)
    boothook = 'echo "BOOTHOOK $INSTANCE_ID" >/dev/console'

    [machine] = launch(aws, ImageId=image.image_id, UserData=user_data(boothook=boothook, runcmd=script))
    machine.wait_off()

    console = machine.console()
    assert f"Cloud-init v. {cloud_init(image.variant)}" in console
    assert f"BOOTHOOK {machine.instance_id}" in console
    assert "SAID-BY-S3 good morning" in console
    assert console.index("BOOTHOOK") < console.index("SAID-BY-S3")
    instance = aws.instance(machine.instance_id)
    assert instance["State"]["Name"] == "terminated"
    assert instance["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert machine.exit_codes == [0]
    [read] = [call for call in aws.calls if call.identity == "instance"]
    assert (read.action, read.resource) == ("GetObject", f"{aws.bucket}/jobs/hello")
    assert read.instance_id == machine.instance_id
    assert list(machine.timings) == ["boot", "token", "user_data", "off"]


def test_a_reboot_keeps_disk_and_identity(aws: FakeAws) -> None:
    boothook = (
        SAY
        + """echo x >>/var/lib/boots
say "BOOT $(wc -l </var/lib/boots) OF $INSTANCE_ID"
[ "$(wc -l </var/lib/boots)" = 1 ] || (sleep 1; poweroff) >/dev/null 2>&1 </dev/null &
"""
    )
    [machine] = launch(aws, UserData=user_data(boothook=boothook, runcmd=SAY + "say RUNCMD; reboot"))
    machine.wait_off()

    assert machine.exit_codes == [133, 0]
    assert machine.boots == 2
    assert re.findall(r"BOOT \d OF \S+|RUNCMD", machine.console()) == [
        f"BOOT 1 OF {machine.instance_id}",
        "RUNCMD",
        f"BOOT 2 OF {machine.instance_id}",
    ]
    assert machine.read("/var/lib/boots") == b"x\nx\n"


def test_machines_of_one_launch_reach_each_other_and_have_launch_indexes(aws: FakeAws) -> None:
    machines = launch(aws, MinCount=3, MaxCount=3, UserData=user_data(runcmd=SAY + "say IS-UP"))
    for machine in machines:
        machine.wait_for("IS-UP")

    first, second, third = machines
    token = "X-aws-ec2-metadata-token"
    for index, machine in enumerate(machines):
        script = f'T=$(curl -sX PUT -H "{token}-ttl-seconds: 60" 169.254.169.254/latest/api/token); '
        script += f'curl -s -H "{token}: $T" 169.254.169.254/latest/meta-data/ami-launch-index'
        assert machine.run(["sh", "-c", script]).stdout == str(index)
        assert "IamInstanceProfile" in aws.instance(machine.instance_id)
        assert machine.facts.address in machine.run(["hostname", "-I"]).stdout.split()
    greeting = f"exec 3<>/dev/tcp/{third.facts.address}/22; head -c 3 <&3"
    assert second.run(["bash", "-c", greeting]).stdout == "SSH"

    aws.client("ec2").terminate_instances(InstanceIds=[machine.instance_id for machine in machines])
    for machine in machines:
        machine.wait_off()
        assert aws.state(machine.instance_id) == "terminated"
    assert first.exit_codes == [0]


def test_metadata_requires_a_token(aws: FakeAws) -> None:
    [machine] = launch(aws, UserData=user_data(runcmd=SAY + "say IS-UP"))
    machine.wait_for("IS-UP")

    def status(*arguments: str) -> str:
        command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", *arguments]
        return machine.run(command).stdout

    there = "http://169.254.169.254/latest/meta-data/"
    assert status(there) == "401"
    assert status("-H", "X-aws-ec2-metadata-token: wrong", there) == "401"
    assert status("-X", "PUT", "http://169.254.169.254/latest/api/token") == "400"
    lifetime = "X-aws-ec2-metadata-token-ttl-seconds: 2"
    token = machine.run(
        ["curl", "-s", "-X", "PUT", "-H", lifetime, "http://169.254.169.254/latest/api/token"]
    ).stdout
    header = f"X-aws-ec2-metadata-token: {token}"
    assert status("-H", header, there) == "200"
    assert status("-H", header, there + "tags/instance/") == "404"
    assert status("-H", header, there + "spot/instance-action") == "404"
    machine.metadata["meta-data/spot/instance-action"] = '{"action": "terminate"}'
    assert status("-H", header, there + "spot/instance-action") == "200"
    machine.run(["sleep", "2.1"])
    assert status("-H", header, there) == "401"


def test_the_latest_console_output_of_a_machine_is_live(aws: FakeAws) -> None:
    filler = "seq 1 20000 >/dev/console\n"
    [machine] = launch(aws, UserData=user_data(runcmd=SAY + filler + "say LAST-WORD"))
    machine.wait_for("LAST-WORD")
    ec2 = aws.client("ec2")

    def output(**arguments: bool) -> bytes:
        answer = ec2.get_console_output(InstanceId=machine.instance_id, **arguments)
        # boto3 decodes it already.
        return str(answer.get("Output", "")).encode()

    assert "LAST-WORD" in output(Latest=True).decode()
    assert len(output(Latest=True)) == 65_536
    assert b"LAST-WORD" not in output()
    ec2.terminate_instances(InstanceIds=[machine.instance_id])
    machine.wait_off()
    assert b"LAST-WORD" in output()


def test_a_stopped_instance_starts_again(aws: FakeAws) -> None:
    [machine] = launch(
        aws,
        InstanceInitiatedShutdownBehavior="stop",
        UserData=user_data(boothook=SAY + "say HELLO", runcmd="poweroff"),
    )
    machine.wait_off()
    stopped = aws.instance(machine.instance_id)
    assert stopped["State"]["Name"] == "stopped"
    assert stopped["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"

    ec2 = aws.client("ec2")
    ec2.start_instances(InstanceIds=[machine.instance_id])
    aws.wait_state(machine.instance_id, "running")
    ec2.stop_instances(InstanceIds=[machine.instance_id])
    machine.wait_off()
    assert machine.boots == 2
    ec2.terminate_instances(InstanceIds=[machine.instance_id])
    gone = aws.wait_state(machine.instance_id, "terminated")
    assert gone["StateReason"]["Code"] == "Client.UserInitiatedShutdown"


def test_a_hanging_machine_only_ends_by_a_forced_power_off(aws: FakeAws) -> None:
    aws.fleet.power_off_grace = 1.0
    [machine] = launch(
        aws, UserData=user_data(runcmd=SAY + "say IS-UP; while :; do sleep 0.1; say TICK; done")
    )
    machine.wait_for("TICK")

    machine.hang()
    said = len(machine.console())
    answer = aws.client("ec2").terminate_instances(InstanceIds=[machine.instance_id])
    assert answer["TerminatingInstances"][0]["CurrentState"]["Name"] == "shutting-down"
    machine.wait_off()

    assert machine.exit_codes[0] != 0
    assert len(machine.console()) - said < 50
    assert aws.state(machine.instance_id) == "terminated"
