"""What the calls need, read off their parameters as boto3 sends them."""

from __future__ import annotations

import pytest
from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.iam.permissions import Surroundings, needed
from sandbox.fake_aws.iam.policy import Permission

AROUND = Surroundings(
    account="123456789012",
    region="eu-central-1",
    roles={"bai-instance": "bai-role"},
    tags={"i-1": {"bai:job-id": "job"}},
)
EC2 = "arn:aws:ec2:eu-central-1:123456789012"


def call(service: str, action: str, resource: str = "", **parameters: str) -> Call:
    return Call(
        time=0,
        identity="user",
        instance_id=None,
        service=service,
        action=action,
        resource=resource,
        parameters=parameters,
    )


def test_a_launch_needs_permissions_for_each_resource_the_tags_and_the_role() -> None:
    sent = {
        "ImageId": "ami-1",
        "SubnetId": "subnet-1",
        "KeyName": "mine",
        "InstanceMarketOptions.MarketType": "spot",
        "IamInstanceProfile.Name": "bai-instance",
        "InstanceType": "t3.small",
        "TagSpecification.1.ResourceType": "instance",
        "TagSpecification.1.Tag.1.Key": "bai:job-id",
        "TagSpecification.1.Tag.1.Value": "job",
    }
    asked = needed(call("ec2", "RunInstances", **sent), AROUND)

    launched = {each.resource for each in asked if each.action == "ec2:RunInstances"}
    assert launched == {
        "arn:aws:ec2:eu-central-1::image/ami-1",
        *(f"{EC2}:{kind}/*" for kind in ("instance", "volume", "network-interface", "security-group")),
        f"{EC2}:spot-instances-request/*",
        f"{EC2}:subnet/subnet-1",
        f"{EC2}:key-pair/mine",
    }
    tagged = {each.resource: each.context for each in asked if each.action == "ec2:RunInstances"}
    assert tagged[f"{EC2}:instance/*"] == {
        "aws:RequestTag/bai:job-id": "job",
        "ec2:InstanceType": "t3.small",
        "ec2:InstanceProfile": "arn:aws:iam::123456789012:instance-profile/bai-instance",
    }
    assert tagged[f"{EC2}:subnet/subnet-1"] == {"ec2:SubnetID": "subnet-1"}
    assert tagged[f"{EC2}:volume/*"] == {}
    assert [each for each in asked if each.action == "ec2:CreateTags"] == [
        Permission(
            action="ec2:CreateTags",
            resource=f"{EC2}:instance/*",
            context={"ec2:CreateAction": "RunInstances", "aws:RequestTag/bai:job-id": "job"},
        )
    ]
    assert [each for each in asked if each.action == "iam:PassRole"] == [
        Permission(
            action="iam:PassRole",
            resource="arn:aws:iam::123456789012:role/bai-role",
            context={"iam:PassedToService": "ec2.amazonaws.com"},
        )
    ]


def test_each_instance_of_a_call_is_checked_with_its_tags() -> None:
    asked = needed(call("ec2", "TerminateInstances", "i-1,i-2"), AROUND)

    assert [(each.resource, dict(each.context)) for each in asked] == [
        (f"{EC2}:instance/i-1", {"aws:ResourceTag/bai:job-id": "job"}),
        (f"{EC2}:instance/i-2", {}),
    ]


@pytest.mark.parametrize(
    ("action", "parameters", "permission", "context"),
    [
        ("HeadBucket", {}, "s3:ListBucket", {}),
        ("ListObjectsV2", {"prefix": "jobs/"}, "s3:ListBucket", {"s3:prefix": "jobs/"}),
        ("UploadPart", {}, "s3:PutObject", {}),
        ("HeadObject", {}, "s3:GetObject", {}),
    ],
)
def test_calls_of_s3_map_to_permissions_with_different_names(
    action: str, parameters: dict[str, str], permission: str, context: dict[str, str]
) -> None:
    asked = needed(call("s3", action, "bucket/key", **parameters), AROUND)

    assert asked == [Permission(action=permission, resource="arn:aws:s3:::bucket/key", context=context)]


@pytest.mark.parametrize(
    ("action", "context"),
    [
        ("PutObject", {"s3:if-none-match": "*"}),
        ("CompleteMultipartUpload", {"s3:if-none-match": "*"}),
        ("UploadPart", {}),
        ("GetObject", {}),
    ],
)
def test_a_conditional_write_is_recognised(action: str, context: dict[str, str]) -> None:
    conditional = call("s3", action, "bucket/key")
    conditional.headers["if-none-match"] = "*"

    assert [dict(each.context) for each in needed(conditional, AROUND)] == [context]


def test_public_parameters_belong_to_no_account() -> None:
    public = needed(call("ssm", "GetParameter", "/aws/service/x"), AROUND)
    own = needed(call("ssm", "GetParameter", "/bai/token"), AROUND)

    assert [each.resource for each in (*public, *own)] == [
        "arn:aws:ssm:eu-central-1::parameter/aws/service/x",
        "arn:aws:ssm:eu-central-1:123456789012:parameter/bai/token",
    ]


def test_deleting_several_objects_needs_the_permission_for_each() -> None:
    asked = needed(call("s3", "DeleteObjects", "bucket/a,bucket/b"), AROUND)

    assert [(each.action, each.resource) for each in asked] == [
        ("s3:DeleteObject", "arn:aws:s3:::bucket/a"),
        ("s3:DeleteObject", "arn:aws:s3:::bucket/b"),
    ]


def test_an_unknown_call_is_an_error_of_the_test() -> None:
    assert needed(call("sts", "GetCallerIdentity"), AROUND) == []
    for service, action in (("s3", "DeleteBucket"), ("ec2", "CreateVpc"), ("iam", "CreateRole")):
        with pytest.raises(ValueError, match="not known"):
            needed(call(service, action, "bucket"), AROUND)


def test_writing_metrics_needs_permissions_for_one_log_stream() -> None:
    names = {"logGroupName": "/bai/metrics", "logStreamName": "job/0"}
    arn = "arn:aws:logs:eu-central-1:123456789012:log-group:/bai/metrics:log-stream:job/0"
    for action in ("CreateLogStream", "PutLogEvents"):
        assert needed(call("logs", action, **names), AROUND) == [
            Permission(action=f"logs:{action}", resource=arn)
        ]


def test_a_message_of_a_queue_is_deleted_with_one_permission() -> None:
    url = "https://sqs.eu-central-1.amazonaws.com/123456789012/bai"
    for action in ("DeleteMessage", "DeleteMessageBatch"):
        assert needed(call("sqs", action, QueueUrl=url), AROUND) == [
            Permission(action="sqs:DeleteMessage", resource="arn:aws:sqs:eu-central-1:123456789012:bai")
        ]
