"""The control plane answers as EC2, S3, SSM and IAM do where moto alone would not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError

from sandbox.fake_aws import FakeAws, open_fake_aws
from sandbox.fake_aws.control_plane.images import DEBIAN, DEEP_LEARNING
from sandbox.launches import launch, request, user_data

ONCE = {"retries": {"total_max_attempts": 1}}
IDLE = user_data(runcmd="true")


def refused(call: Callable[..., Any], **arguments: Any) -> tuple[str, int]:
    """Call, and return the error's code and HTTP status."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    response = caught.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


def test_a_client_token_launches_once_per_zone(aws: FakeAws) -> None:
    ec2 = aws.client("ec2", "executor")
    asked = request(aws, UserData=IDLE, ClientToken="job-1")

    first = ec2.run_instances(**asked)["Instances"][0]["InstanceId"]
    again = ec2.run_instances(**asked)["Instances"][0]["InstanceId"]
    changed = refused(ec2.run_instances, **{**asked, "InstanceType": "t3.large"})
    elsewhere = ec2.run_instances(**{**asked, "SubnetId": aws.subnets["eu-central-1b"]})["Instances"][0]

    assert first == again
    assert changed == ("IdempotentParameterMismatch", 400)
    assert elsewhere["InstanceId"] != first
    assert elsewhere["Placement"]["AvailabilityZone"] == "eu-central-1b"
    assert len(aws.machines) == 2


def test_a_launch_whose_answer_is_lost_is_found_by_its_client_token(aws: FakeAws) -> None:
    ec2 = aws.client("ec2", "executor", **ONCE)
    asked = request(aws, UserData=IDLE, ClientToken="job-1")
    aws.fail("RunInstances", then="drop")

    with pytest.raises((ConnectionClosedError, EndpointConnectionError)):
        ec2.run_instances(**asked)
    [machine] = aws.machines
    answer = ec2.run_instances(**asked)

    assert answer["Instances"][0]["InstanceId"] == machine.instance_id
    assert len(aws.machines) == 1
    assert [(call.action, call.error) for call in aws.calls] == [
        ("RunInstances", "dropped"),
        ("RunInstances", ""),
    ]


def test_user_data_is_limited(aws: FakeAws) -> None:
    ec2 = aws.client("ec2")
    launch(aws, UserData=b"x" * 16_384)
    assert refused(ec2.run_instances, **request(aws, UserData=b"x" * 16_385)) == (
        "InvalidParameterValue",
        400,
    )


def test_a_dry_run_checks_and_does_nothing(aws: FakeAws) -> None:
    ec2 = aws.client("ec2")
    assert refused(ec2.run_instances, **request(aws, DryRun=True)) == ("DryRunOperation", 412)
    wrong = request(aws, DryRun=True, ImageId="ami-0123456789abcdef0")
    assert refused(ec2.run_instances, **wrong) == ("InvalidAMIID.NotFound", 400)
    assert aws.machines == []


def test_a_zone_without_capacity_answers_with_500(aws: FakeAws) -> None:
    ec2 = aws.client("ec2", "executor", **ONCE)
    fault = aws.no_capacity("eu-central-1a")

    assert refused(ec2.run_instances, **request(aws)) == ("InsufficientInstanceCapacity", 500)
    launch(aws, SubnetId=aws.subnets["eu-central-1b"])

    assert fault.hits == 1
    assert len(aws.machines) == 1


def test_one_of_three_machines_can_die_in_pending(aws: FakeAws) -> None:
    message = "Client error on launch: the volume limit is exceeded"
    aws.die_in_pending(1, code="Client.VolumeLimitExceeded", message=message)
    answer = aws.client("ec2").run_instances(**request(aws, MinCount=3, MaxCount=3, UserData=IDLE))
    ids = [instance["InstanceId"] for instance in answer["Instances"]]
    assert [instance["State"]["Name"] for instance in answer["Instances"]] == ["pending"] * 3

    dead = aws.wait_state(ids[1], "terminated")
    assert dead["StateReason"] == {
        "Code": "Client.VolumeLimitExceeded",
        "Message": f"Client.VolumeLimitExceeded: {message}",
    }
    assert aws.wait_state(ids[0], "running")["AmiLaunchIndex"] == 0
    assert aws.wait_state(ids[2], "running")["AmiLaunchIndex"] == 2


def test_injected_faults_match_by_identity_parameter_and_resource(aws: FakeAws) -> None:
    aws.fail("PutObject", identity="executor", resource=f"{aws.bucket}/a/", code="SlowDown", status=503)
    late = aws.fail("GetCallerIdentity", then="go on", delay=timedelta(milliseconds=50))
    s3, other = aws.client("s3", "executor", **ONCE), aws.client("s3", "user")

    other.put_object(Bucket=aws.bucket, Key="a/1", Body=b"")
    s3.put_object(Bucket=aws.bucket, Key="b/1", Body=b"")
    assert refused(s3.put_object, Bucket=aws.bucket, Key="a/1") == ("SlowDown", 503)
    s3.put_object(Bucket=aws.bucket, Key="a/1", Body=b"")
    assert aws.client("sts").get_caller_identity()["Account"] == aws.account
    assert late.hits == 1


def test_missing_keys_are_forbidden_without_the_right_to_list(aws: FakeAws) -> None:
    s3 = aws.client("s3")
    assert refused(s3.get_object, Bucket=aws.bucket, Key="none") == ("AccessDenied", 403)
    assert refused(s3.head_object, Bucket=aws.bucket, Key="none") == ("403", 403)
    assert s3.list_objects_v2(Bucket=aws.bucket, Prefix="none")["KeyCount"] == 0
    assert refused(s3.get_object, Bucket="no-such-bucket-here", Key="none") == ("NoSuchBucket", 404)

    aws.s3_rules.may_list.add("user")
    assert refused(s3.get_object, Bucket=aws.bucket, Key="none") == ("NoSuchKey", 404)


def test_a_forbidden_call_gets_the_error_code_of_each_service(aws: FakeAws) -> None:
    aws.policies.attach("user")
    s3, ec2 = aws.client("s3"), aws.client("ec2")
    [machine] = launch(aws, UserData=IDLE)

    codes = [
        refused(s3.put_object, Bucket=aws.bucket, Key="elsewhere", Body=b""),
        refused(s3.head_object, Bucket=aws.bucket, Key="elsewhere"),
        refused(s3.delete_object, Bucket=aws.bucket, Key="jobs/a"),
        refused(ec2.run_instances, **request(aws, DryRun=True)),
        refused(ec2.terminate_instances, InstanceIds=[machine.instance_id]),
        refused(aws.client("ssm").get_parameter, Name="/team/token"),
        refused(aws.client("iam").create_role, RoleName="r", AssumeRolePolicyDocument="{}"),
    ]

    assert codes == [
        *[("AccessDenied", 403), ("403", 403), ("AccessDenied", 403)],
        *[("UnauthorizedOperation", 403)] * 2,
        ("AccessDeniedException", 400),
        ("AccessDenied", 403),
    ]
    assert aws.state(machine.instance_id) in ("pending", "running")
    assert [each.action for each in aws.policies.take_refused()] == [
        *["s3:PutObject", "s3:GetObject", "s3:DeleteObject", "ec2:RunInstances", "ec2:TerminateInstances"],
        *["ssm:GetParameter", "iam:CreateRole"],
    ]


def test_a_simulated_account_with_an_unexpected_refusal_fails_the_test(tmp_path: Path) -> None:
    opened = open_fake_aws(tmp_path / "aws")
    aws = opened.__enter__()
    aws.policies.attach("user")
    assert refused(aws.client("s3").get_object, Bucket="somebody-elses", Key="a") == ("AccessDenied", 403)

    with pytest.raises(AssertionError, match="user may not s3:GetObject on arn:aws:s3:::somebody-elses/a"):
        opened.__exit__(None, None, None)


def test_an_administrator_may_do_all(aws: FakeAws) -> None:
    aws.policies.attach("user")
    somebody = aws.client("s3", "somebody")
    somebody.put_object(Bucket=aws.bucket, Key="elsewhere", Body=b"")
    somebody.delete_object(Bucket=aws.bucket, Key="elsewhere")
    assert aws.policies.take_refused() == []


def test_only_one_of_many_conditional_writers_succeeds(aws: FakeAws) -> None:
    clients = [aws.client("s3") for _ in range(8)]
    outcomes: list[int] = []

    def write(number: int) -> None:
        try:
            clients[number].put_object(Bucket=aws.bucket, Key="claim", Body=b"%d" % number, IfNoneMatch="*")
            outcomes.append(200)
        except ClientError as error:
            outcomes.append(error.response["ResponseMetadata"]["HTTPStatusCode"])

    threads = [threading.Thread(target=write, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == [200] + [412] * 7


def test_requests_without_a_valid_signature_are_refused(aws: FakeAws) -> None:
    def client(secret: str, token: str | None = None) -> Any:
        return boto3.client(
            "s3",
            region_name=aws.region,
            endpoint_url=aws.endpoint,
            aws_access_key_id=aws.identities.of("user").access_key,
            aws_secret_access_key=secret,
            aws_session_token=token,
            config=Config(retries={"total_max_attempts": 1}),
        )

    secret = aws.identities.of("user").secret_key
    odd = "a b/ü+&=~*'().txt"
    client(secret).put_object(Bucket=aws.bucket, Key=odd, Body=b"x" * 100, Metadata={"k": "v"})
    assert client(secret).get_object(Bucket=aws.bucket, Key=odd)["Body"].read() == b"x" * 100
    assert refused(client("wrong").list_buckets) == ("SignatureDoesNotMatch", 403)
    assert refused(client(secret, "token").list_buckets) == ("InvalidToken", 403)


def test_the_emulated_ec2_describes_images_parameters_and_volumes_as_aws_does(aws: FakeAws) -> None:
    ec2, ssm = aws.client("ec2"), aws.client("ssm")
    [name] = DEEP_LEARNING.parameters
    image_id = ssm.get_parameter(Name=name)["Parameter"]["Value"]
    [image] = ec2.describe_images(ImageIds=[image_id])["Images"]
    assert image["RootDeviceName"] == "/dev/sda1"
    assert image["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 35

    ebs = {"VolumeSize": 100, "VolumeType": "gp3", "Throughput": 500, "Iops": 4000}
    mapping = [{"DeviceName": "/dev/sda1", "Ebs": {**ebs, "DeleteOnTermination": True}}]
    # On this image the root has another name: what was meant for it becomes a second disk, as on EC2.
    [machine] = launch(aws, ImageId=DEBIAN.image_id, BlockDeviceMappings=mapping)
    volumes = ec2.describe_volumes()["Volumes"]
    disks = {volume["Attachments"][0]["Device"]: volume for volume in volumes}
    assert disks["/dev/xvda"]["Size"] == 8
    assert {key: disks["/dev/sda1"][key] for key in ("Throughput", "Iops", "Size")} == {
        "Throughput": 500,
        "Iops": 4000,
        "Size": 100,
    }
    zones = ec2.describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["t3.small"]}]
    )
    assert {zone["Location"] for zone in zones["InstanceTypeOfferings"]} == set(aws.subnets)
    assert machine.facts.zone in aws.subnets


def test_calls_are_recorded_with_their_caller(aws: FakeAws) -> None:
    aws.client("s3", "executor").put_object(Bucket=aws.bucket, Key="a", Body=b"")
    aws.client("ssm", "user").get_parameter(Name=DEBIAN.parameters[0])
    aws.client("ec2", "user").describe_subnets()

    assert [(call.identity, call.service, call.action, call.resource) for call in aws.calls] == [
        ("executor", "s3", "PutObject", f"{aws.bucket}/a"),
        ("user", "ssm", "GetParameter", DEBIAN.parameters[0]),
        ("user", "ec2", "DescribeSubnets", ""),
    ]
