"""Which permissions an API call needs: https://docs.aws.amazon.com/service-authorization/latest/reference/reference_policies_actions-resources-contextkeys.html"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.iam.policy import Permission

_S3 = {
    "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
    "GetBucketVersioning": "GetBucketVersioning",
    "HeadBucket": "ListBucket",
    "ListObjects": "ListBucket",
    "ListObjectsV2": "ListBucket",
    "HeadObject": "GetObject",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
    "GetObject": "GetObject",
    "PutObject": "PutObject",
    "AbortMultipartUpload": "AbortMultipartUpload",
    "ListObjectVersions": "ListBucketVersions",
    "ListMultipartUploads": "ListBucketMultipartUploads",
}
"""https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html"""
_CONDITIONAL = ("PutObject", "CompleteMultipartUpload")
"""Calls that take If-None-Match: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes-enforce.html"""
_QUEUE = {
    "ReceiveMessage": "ReceiveMessage",
    "DeleteMessage": "DeleteMessage",
    "DeleteMessageBatch": "DeleteMessage",
}
"""https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-api-permissions-reference.html"""
_LOG_STREAM = ("CreateLogStream", "PutLogEvents")
"""https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazoncloudwatchlogs.html"""
_ONE_INSTANCE = ("GetConsoleOutput", "TerminateInstances")
_ONE_GROUP = ("AuthorizeSecurityGroupEgress", "AuthorizeSecurityGroupIngress", "DeleteSecurityGroup")
_OF_POLICY = ("DetachGroupPolicy", "DetachRolePolicy", "DetachUserPolicy", "ListEntitiesForPolicy")
_OF_ROLE = ("DeleteRolePolicy", "ListAttachedRolePolicies", "ListRolePolicies")
_GROUP = re.compile(r"(?:NetworkInterface\.\d+\.)?SecurityGroupId\.\d+")
_TAG = re.compile(r"TagSpecification\.(\d+)\.(?:ResourceType|Tag\.(\d+)\.(Key|Value))")


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What IAM knows beside the call."""

    account: str
    region: str
    roles: Mapping[str, str]
    """Instance profile → its role. A launch with another profile fails for that, whoever asks."""
    tags: Mapping[str, Mapping[str, str]]
    """Instance or security group → its tags."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """Image → its owner, as policies have it."""
    default_group: str = "*"
    """The group of a launch that names none."""


def needed(call: Call, around: Surroundings) -> list[Permission]:
    """Return all permissions that `call` needs. Raises ValueError for a call that is not known here."""
    kind = (call.service, call.action)
    if kind == ("s3", "DeleteObjects"):
        # https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html
        return [
            Permission(action="s3:DeleteObject", resource=f"arn:aws:s3:::{each}")
            for each in call.resource.split(",")
        ]
    if call.service == "s3":
        return [_s3(call)]
    if kind == ("sts", "GetCallerIdentity"):
        return []  # https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html
    if kind == ("ec2", "RunInstances"):
        return list(_launch(call, around))
    if call.service == "ec2" and call.action in _ONE_INSTANCE:
        return [_on_instance(call.action, each, around) for each in call.resource.split(",")]
    if kind == ("ec2", "CreateSecurityGroup"):
        return list(_new_group(call, around))
    if call.service == "ec2" and call.action in _ONE_GROUP:
        return [_on_group(call, around)]
    if call.service == "ec2" and call.action.startswith("Describe"):
        return [Permission(action=f"ec2:{call.action}")]
    if kind == ("ssm", "GetParameter"):
        # A public parameter belongs to no account.
        account = "" if call.resource.startswith("/aws/service/") else around.account
        name = call.resource.removeprefix("/")
        return [
            Permission(
                action="ssm:GetParameter", resource=f"arn:aws:ssm:{around.region}:{account}:parameter/{name}"
            )
        ]
    if kind == ("secretsmanager", "GetSecretValue"):
        # The service puts six characters of its own behind the name.
        arn = f"arn:aws:secretsmanager:{around.region}:{around.account}:secret:{call.resource}-a1B2c3"
        return [Permission(action="secretsmanager:GetSecretValue", resource=arn)]
    if kind == ("iam", "GetInstanceProfile"):
        name = call.parameters["InstanceProfileName"]
        arn = f"arn:aws:iam::{around.account}:instance-profile/{name}"
        return [Permission(action="iam:GetInstanceProfile", resource=arn)]
    if call.service == "iam" and call.action in _OF_POLICY:
        return [_on_policy(call, around)]
    if call.service == "iam" and call.action in _OF_ROLE:
        arn = f"arn:aws:iam::{around.account}:role/{call.parameters['RoleName']}"
        return [Permission(action=f"iam:{call.action}", resource=arn)]
    if kind == ("iam", "CreateServiceLinkedRole"):
        name = call.parameters["AWSServiceName"]
        arn = f"arn:aws:iam::{around.account}:role/aws-service-role/{name}/AWSServiceRoleForEC2Spot"
        return [Permission(action="iam:CreateServiceLinkedRole", resource=arn)]
    if call.service == "cloudformation":
        # A stack is named, or given as its ARN.
        stack = call.parameters["StackName"].rpartition("stack/")[2].partition("/")[0]
        arn = f"arn:aws:cloudformation:{around.region}:{around.account}:stack/{stack}/1"
        return [Permission(action=f"cloudformation:{call.action}", resource=arn)]
    if call.service == "sqs" and call.action in _QUEUE:
        name = call.parameters["QueueUrl"].rpartition("/")[2]
        arn = f"arn:aws:sqs:{around.region}:{around.account}:{name}"
        return [Permission(action=f"sqs:{_QUEUE[call.action]}", resource=arn)]
    if call.service == "logs" and call.action in _LOG_STREAM:
        group, stream = call.parameters["logGroupName"], call.parameters["logStreamName"]
        arn = f"arn:aws:logs:{around.region}:{around.account}:log-group:{group}:log-stream:{stream}"
        return [Permission(action=f"logs:{call.action}", resource=arn)]
    if kind == ("lambda", "GetFunction"):
        arn = f"arn:aws:lambda:{around.region}:{around.account}:function:{call.parameters['FunctionName']}"
        return [Permission(action="lambda:GetFunction", resource=arn)]
    if kind == ("lambda", "GetAccountSettings"):
        return [Permission(action="lambda:GetAccountSettings")]
    if kind == ("pricing", "GetProducts"):
        return [Permission(action="pricing:GetProducts")]
    if kind == ("servicequotas", "ListServiceQuotas"):
        return [Permission(action="servicequotas:ListServiceQuotas")]
    raise ValueError(f"what {call.service} {call.action} needs is not known here")


def _s3(call: Call) -> Permission:
    if call.action not in _S3:
        raise ValueError(f"what s3 {call.action} needs is not known here")
    context = {"s3:prefix": call.parameters["prefix"]} if "prefix" in call.parameters else {}
    if call.action in _CONDITIONAL and "if-none-match" in call.headers:
        context["s3:if-none-match"] = call.headers["if-none-match"]
    return Permission(
        action=f"s3:{_S3[call.action]}", resource=f"arn:aws:s3:::{call.resource}", context=context
    )


def _on_instance(action: str, instance_id: str, around: Surroundings) -> Permission:
    tags = around.tags.get(instance_id, {})
    return Permission(
        action=f"ec2:{action}",
        resource=_arn(around, "instance", instance_id),
        context={f"aws:ResourceTag/{key}": value for key, value in tags.items()},
    )


def _on_policy(call: Call, around: Surroundings) -> Permission:
    policy = call.parameters["PolicyArn"]
    if call.action == "ListEntitiesForPolicy":
        return Permission(action="iam:ListEntitiesForPolicy", resource=policy)
    kind = call.action.removeprefix("Detach").removesuffix("Policy")
    arn = f"arn:aws:iam::{around.account}:{kind.lower()}/{call.parameters[f'{kind}Name']}"
    return Permission(action=f"iam:{call.action}", resource=arn, context={"iam:PolicyARN": policy})


def _on_group(call: Call, around: Surroundings) -> Permission:
    group = call.parameters["GroupId"]
    tags = around.tags.get(group, {})
    return Permission(
        action=f"ec2:{call.action}",
        resource=_arn(around, "security-group", group),
        context={f"aws:ResourceTag/{key}": value for key, value in tags.items()},
    )


def _new_group(call: Call, around: Surroundings) -> Iterator[Permission]:
    tags = _tags(call.parameters).get("security-group", {})
    asked = {f"aws:RequestTag/{key}": value for key, value in tags.items()}
    group = _arn(around, "security-group", "*")
    yield Permission(action="ec2:CreateSecurityGroup", resource=group, context=asked)
    yield Permission(action="ec2:CreateSecurityGroup", resource=_arn(around, "vpc", call.parameters["VpcId"]))
    if tags:
        context = {"ec2:CreateAction": "CreateSecurityGroup", **asked}
        yield Permission(action="ec2:CreateTags", resource=group, context=context)


def _launch(call: Call, around: Surroundings) -> Iterator[Permission]:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ExamplePolicies_EC2.html#iam-example-runinstances"""
    sent = call.parameters
    tags = _tags(sent)
    for kind in ("instance", "volume"):
        asked = {f"aws:RequestTag/{key}": value for key, value in tags.get(kind, {}).items()}
        everything = _arn(around, kind, "*")
        more = _of_instance(sent, around) if kind == "instance" else {}
        yield Permission(action="ec2:RunInstances", resource=everything, context={**asked, **more})
    for kind, given in tags.items():
        asked = {f"aws:RequestTag/{key}": value for key, value in given.items()}
        context = {"ec2:CreateAction": "RunInstances", **asked}
        yield Permission(action="ec2:CreateTags", resource=_arn(around, kind, "*"), context=context)
    for resource, context in _used(sent, around):
        yield Permission(action="ec2:RunInstances", resource=resource, context=context)
    profile = sent.get("IamInstanceProfile.Name") or sent.get("IamInstanceProfile.Arn", "").rpartition("/")[2]
    if profile in around.roles:
        yield Permission(
            action="iam:PassRole",
            resource=f"arn:aws:iam::{around.account}:role/{around.roles[profile]}",
            context={"iam:PassedToService": "ec2.amazonaws.com"},
        )


def _of_instance(sent: Mapping[str, str], around: Surroundings) -> dict[str, str]:
    context = {"ec2:InstanceType": sent["InstanceType"]}
    profile = sent.get("IamInstanceProfile.Name") or sent.get("IamInstanceProfile.Arn", "").rpartition("/")[2]
    if profile:
        context["ec2:InstanceProfile"] = f"arn:aws:iam::{around.account}:instance-profile/{profile}"
    return context


def _used(sent: Mapping[str, str], around: Surroundings) -> Iterator[tuple[str, dict[str, str]]]:
    image = sent["ImageId"]
    owner = {"ec2:Owner": around.owners[image]} if image in around.owners else {}
    yield f"arn:aws:ec2:{around.region}::image/{image}", owner
    yield _arn(around, "network-interface", "*"), {}
    groups = [value for name, value in sent.items() if _GROUP.fullmatch(name)]
    # The VPC's default group where none is named.
    for group in groups or [around.default_group]:
        tags = {f"aws:ResourceTag/{key}": value for key, value in around.tags.get(group, {}).items()}
        yield _arn(around, "security-group", group), {"ec2:SecurityGroupID": group, **tags}
    for name, value in sent.items():
        kind = {
            "SubnetId": "subnet",
            "KeyName": "key-pair",
            "Placement.GroupName": "placement-group",
            "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId": "capacity-reservation",
        }.get(re.sub(r"^NetworkInterface\.\d+\.", "", name))
        if kind:
            yield _arn(around, kind, value), {"ec2:SubnetID": value} if kind == "subnet" else {}
    if sent.get("InstanceMarketOptions.MarketType") == "spot":
        yield _arn(around, "spot-instances-request", "*"), {}


def _tags(sent: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return kind of resource → its tags."""
    kinds: dict[str, str] = {}
    pairs: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for name, value in sent.items():
        found = _TAG.fullmatch(name)
        if found and found[2]:
            pairs[found[1], found[2]][found[3]] = value
        elif found:
            kinds[found[1]] = value
    tags: dict[str, dict[str, str]] = {kind: {} for kind in kinds.values()}
    for (specification, _), pair in pairs.items():
        tags[kinds[specification]][pair["Key"]] = pair.get("Value", "")
    return tags


def _arn(around: Surroundings, kind: str, name: str) -> str:
    return f"arn:aws:ec2:{around.region}:{around.account}:{kind}/{name}"
