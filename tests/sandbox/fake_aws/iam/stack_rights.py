"""Which rights CloudFormation needs of who changes a stack: it makes each resource in that caller's name.

The lists are AWS's own, of the types' schemas ("handlers": https://docs.aws.amazon.com/cloudformation-cli/latest/userguide/resource-type-schema.html),
as cfn-lint brings them.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sandbox.fake_aws.iam.permissions import Surroundings
from sandbox.fake_aws.iam.policy import Permission, Policy

_UNUSED = {
    "AWS::S3::Bucket": r"s3tables:|iam:PassRole|.*(Abac|Accelerate|Acl|Analytics|CORS|Cors|Encryption|IntelligentTiering|Inventory|Logging|Metadata\w*Table|Metrics|Notification|ObjectLock|OwnershipControls|Replication|Tag|Untag|Versioning|Website)|s3:DeleteObject|s3:DeleteBucketLifecycle",
    "AWS::IAM::Role": r"iam:(Attach|Detach|Tag|Untag|\w*PermissionsBoundary)",
    "AWS::IAM::ManagedPolicy": r"iam:Attach",
    "AWS::EC2::SecurityGroup": r".*(RuleDescriptions|DeleteTags)",
    "AWS::EFS::FileSystem": r".*(Replication|Backup|FileSystemPolicy|Lifecycle|Protection|DeleteTags|Untag|UpdateFileSystem)|kms:|iam:PassRole",
    "AWS::Lambda::Function": r"kms:|ec2:|elasticfilesystem:|s3files:|.*(CodeSigning|Layer|RuntimeManagement|TagResource|UntagResource|RecursionConfig|ScalingConfig|CapacityProvider|RuntimeAlias|PublishVersion)",
    "AWS::Lambda::EventSourceMapping": r"kms:|.*(TagResource|UntagResource)",
    "AWS::SQS::Queue": r".*(TagQueue|UntagQueue)",
    "AWS::Events::Rule": r"iam:PassRole|.*(TagResource|UntagResource)",
    "AWS::Logs::LogGroup": r"s3:|firehose:|.*(TagResource|UntagResource|DataProtection|LogDelivery|ResourcePolic|IndexPolic|BearerToken|KmsKey|DeletionProtection)",
    "AWS::EC2::VPCEndpoint": r"vpc-lattice:|vpce:|ec2:DeleteTags",
}
"""Type → rights for properties that our templates do not have. What is read is read of every resource."""
_OTHER_SERVICES = re.compile("s3tables:|vpc-lattice:|kms:|iam:PassRole")


@cache
def rights(kind: str, verb: str) -> tuple[str, ...]:
    """Return the actions that a type's handler needs for "create", "update", "delete" or "read"."""
    # The library itself takes a second to import.
    library = find_spec("cfnlint")
    assert library is not None
    assert library.origin is not None
    schemas = Path(library.origin).parent / "data/schemas"
    names = dict(json.loads((schemas / "providers/us-east-1.json").read_text()))
    schema = json.loads((schemas / f"resources/{names[kind]}.json").read_text())
    actions = schema["handlers"].get(verb, {}).get("permissions", ())
    unused = _OTHER_SERVICES if verb == "read" else re.compile(_UNUSED.get(kind, "$"))
    return tuple(each for each in actions if not unused.match(each))


def lacking(
    policy: Policy, around: Surroundings, stack: str, kind: str, verb: str, properties: dict[str, Any]
) -> str | None:
    """Return in IAM's words what `policy` does not allow of what a handler needs for a resource of `stack`; None if it allows all."""
    for action in rights(kind, verb):
        for permission in _permissions(action, around, stack, kind, properties):
            if not policy.allows(permission):
                return (
                    f"User: arn:aws:iam::{around.account}:user/somebody is not authorized to perform: {action} "
                    f"on resource: {permission.resource} because no identity-based policy allows the {action} action"
                )
    return None


_USED = {
    "AuthorizeSecurityGroupEgress": ("security-group",),
    "AuthorizeSecurityGroupIngress": ("security-group",),
    "CreateNetworkInterface": ("network-interface", "security-group", "subnet"),
    "CreatePlacementGroup": ("placement-group",),
    "CreateSecurityGroup": ("security-group", "vpc"),
    "CreateVpcEndpoint": ("route-table", "vpc", "vpc-endpoint"),
    "DeleteNetworkInterface": ("network-interface",),
    "DeletePlacementGroup": ("placement-group",),
    "DeleteSecurityGroup": ("security-group",),
    "DeleteVpcEndpoints": ("vpc-endpoint",),
    "ModifyVpcEndpoint": ("route-table", "vpc-endpoint"),
    "RevokeSecurityGroupEgress": ("security-group",),
    "RevokeSecurityGroupIngress": ("security-group",),
}
"""Action of EC2 → kinds of its resources: https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html"""
_MADE = {
    "AWS::EC2::PlacementGroup": ("placement-group", "CreatePlacementGroup"),
    "AWS::EC2::VPCEndpoint": ("vpc-endpoint", "CreateVpcEndpoint"),
}
"""Type of a resource → its kind, and the call that makes it with its tags; others are security groups."""
_MAKES_GROUPS = ("CreateSecurityGroup",)
"""A resource has no tag before it is there."""
_EFS_CREATES = "elasticfilesystem:CreateAction"
"""https://docs.aws.amazon.com/efs/latest/ug/using-tags-efs.html"""


def _permissions(
    action: str, around: Surroundings, stack: str, kind: str, properties: dict[str, Any]
) -> list[Permission]:
    """Return all that one action asks of IAM."""
    service, _, name = action.partition(":")
    where = f"{around.region}:{around.account}"
    if service == "ec2" and name in _USED:
        return [
            Permission(
                action=action,
                resource=f"arn:aws:ec2:{where}:{each}/{each}-1",
                context=_of_network(each, stack, properties) if name not in _MAKES_GROUPS else {},
            )
            for each in _USED[name]
        ]
    if action == "ec2:CreateTags":
        made, call = _MADE.get(kind, ("security-group", "CreateSecurityGroup"))
        context = {"ec2:CreateAction": call}
        return [Permission(action=action, resource=f"arn:aws:ec2:{where}:{made}/{made}-1", context=context)]
    if service == "elasticfilesystem" and not name.startswith(("CreateFileSystem", "Describe")):
        context = _of_stack(stack) if name != "TagResource" else {_EFS_CREATES: "CreateFileSystem"}
        resource = f"arn:aws:elasticfilesystem:{where}:file-system/fs-1"
        return [Permission(action=action, resource=resource, context=context)]
    if kind == "AWS::Lambda::EventSourceMapping" and service == "lambda":
        function = str(properties["FunctionName"]).rpartition(":")[2]
        context = {"lambda:FunctionArn": f"arn:aws:lambda:{where}:function:{function}"}
        mapping = "*" if name.startswith("Create") else f"arn:aws:lambda:{where}:event-source-mapping:1"
        return [Permission(action=action, resource=mapping, context=context)]
    return [_permission(action, around, properties)]


def _of_stack(stack: str) -> dict[str, str]:
    """Return the tag that CloudFormation gives what it makes: https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/aws-properties-resource-tags.html"""
    return {"aws:ResourceTag/aws:cloudformation:stack-name": stack}


def _of_network(kind: str, stack: str, properties: dict[str, Any]) -> dict[str, str]:
    """Return what IAM knows of a resource of EC2."""
    if kind == "security-group":
        return _of_stack(stack)
    if kind == "placement-group":
        return {"ec2:PlacementGroupStrategy": str(properties["Strategy"])}
    if kind == "vpc-endpoint":
        return {"ec2:VpceServiceName": str(properties["ServiceName"])}
    return {}


def _permission(action: str, around: Surroundings, properties: dict[str, Any]) -> Permission:
    service = action.partition(":")[0]
    context: dict[str, str] = {}
    resource = "*"
    where = f"{around.region}:{around.account}"
    named = properties.get("FunctionName"), properties.get("QueueName"), properties.get("Name")
    if service == "lambda":
        resource = f"arn:aws:lambda:{where}:function:{named[0]}"
    if service == "sqs":
        resource = f"arn:aws:sqs:{where}:{named[1] or str(properties['Queues'][0]).rpartition('/')[2]}"
    if service == "events":
        resource = f"arn:aws:events:{where}:rule/{named[2]}"
    if service == "logs" and not action.startswith(("logs:Describe", "logs:GetDataProtection")):
        resource = f"arn:aws:logs:{where}:log-group:{properties['LogGroupName']}"
    if service == "s3" and "Code" in properties:
        return Permission(
            action=action,
            resource=f"arn:aws:s3:::{properties['Code']['S3Bucket']}/{properties['Code']['S3Key']}",
        )
    if service == "s3":
        name = properties.get("BucketName") or properties.get("Bucket")
        resource = "arn:aws:s3:::" + str(name)
    if service == "iam":
        for key, kind in (
            ("RoleName", "role"),
            ("InstanceProfileName", "instance-profile"),
            ("ManagedPolicyName", "policy"),
        ):
            if key in properties:
                resource = f"arn:aws:iam::{around.account}:{kind}/{properties[key]}"
        if re.match("iam:Detach(User|Group|Role)Policy", action):
            context["iam:PolicyARN"], resource = resource, f"arn:aws:iam::{around.account}:user/somebody"
        if action == "iam:PassRole" and "Code" in properties:
            name = str(properties["Role"]).rpartition("/")[2]
            resource = f"arn:aws:iam::{around.account}:role/{name}"
            context["iam:PassedToService"] = "lambda.amazonaws.com"
        elif action == "iam:PassRole":
            resource = f"arn:aws:iam::{around.account}:role/{properties['Roles'][0]}"
            context["iam:PassedToService"] = "ec2.amazonaws.com"
    if action == "iam:CreateServiceLinkedRole":
        resource = f"arn:aws:iam::{around.account}:role/aws-service-role/elasticfilesystem.amazonaws.com/efs"
    return Permission(action=action, resource=resource, context=context)
