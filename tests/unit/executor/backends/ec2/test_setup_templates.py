"""The templates of `bai setup`: valid, small enough, and with the documented policies for every partition."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from moto.cloudformation.models import Stack
from sandbox.fake_aws.iam.permissions import Surroundings
from sandbox.fake_aws.iam.policy import Permission
from sandbox.fake_aws.iam.policy import read_policy as evaluated
from sandbox.fake_aws.iam.stack_rights import lacking, rights

from executor.backends.ec2.setup.templates import TEMPLATES, WATCHER, policy_text, read_policy, template
from executor.backends.ec2.watcher.archive import ARCHITECTURE, HANDLER, PYTHON

ACCOUNT = "123456789012"
MANAGED, INLINE, TEMPLATE = 6_144, 10_240, 51_200
"""Characters of a managed policy and of all inline policies of a role, and bytes of a template in a request:
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html,
https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html"""
REGIONS = {"aws": "eu-central-1", "aws-cn": "cn-north-1", "aws-us-gov": "us-gov-west-1"}
LONGEST = {"Name": "n" * 40, "BucketName": "b" * 63}
OF_A_STACK = "aws:ResourceTag/aws:cloudformation:stack-name"
POLICIES = {"UserPolicy": "user", "ExecutorPolicy": "executor", "ServicePolicy": "serve"}


def parsed(name: str, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = Stack.parse_template(template(name, **options))
    return found


def substituted(value: Any, words: dict[str, str]) -> Any:
    """Return part of a template as CloudFormation reads it."""
    if isinstance(value, list):
        return [substituted(each, words) for each in value]
    if not isinstance(value, dict):
        return value
    if "Fn::Sub" in value:
        return re.sub(r"\$\{([\w:]+)\}", lambda word: words[word[1]], value["Fn::Sub"])
    return {key: substituted(each, words) for key, each in value.items()}


def words(partition: str, **more: str) -> dict[str, str]:
    china = "amazonaws.com.cn" if partition == "aws-cn" else "amazonaws.com"
    return {"AWS::Partition": partition, "AWS::AccountId": ACCOUNT, "AWS::URLSuffix": china, **more}


def length(document: Any) -> int:
    return len(json.dumps(document, separators=(",", ":")))


@pytest.mark.parametrize("name", [*TEMPLATES, WATCHER])
def test_a_template_passes_the_linter_in_every_partition(name: str) -> None:
    # Imported here: it loads sympy, and each worker collects this file.
    from cfnlint.api import lint

    text = template(name, data_buckets=("numbers", "words"), mounts=3)

    found = lint(text, None, list(REGIONS.values()))
    # A default that is no subnet is never used: without a file system nothing is selected from it.
    assert [str(each) for each in found if each.rule.id != "W1035"] == []
    assert len(text.encode()) < TEMPLATE


@pytest.mark.parametrize("partition", REGIONS)
def test_policies_are_the_documented_ones_and_within_the_limits(partition: str) -> None:
    resources = parsed("account")["Resources"]
    for resource, name in POLICIES.items():
        document = substituted(
            resources[resource]["Properties"]["PolicyDocument"], words(partition, **LONGEST)
        )

        role = f"{LONGEST['Name']}-instance"
        documented = {"ACCOUNT": ACCOUNT, "BUCKET": LONGEST["BucketName"], "ROLE": role}
        assert document == json.loads(policy_text(name, documented, region=REGIONS[partition]))
        assert length(document) <= MANAGED
        arns = [each for statement in document["Statement"] for each in statement["Resource"] if each != "*"]
        assert all(each.startswith(f"arn:{partition}:") for each in arns)


@pytest.mark.parametrize("partition", REGIONS)
def test_the_instance_role_trusts_only_ec2_and_reads_only_the_named_buckets(partition: str) -> None:
    buckets = tuple(f"{number:02}{'d' * 61}" for number in range(40))
    role = parsed("account", data_buckets=buckets)["Resources"]["InstanceRole"]["Properties"]
    properties = substituted(role, words(partition, **LONGEST))

    [trust] = properties["AssumeRolePolicyDocument"]["Statement"]
    suffix = ".cn" if partition == "aws-cn" else ""
    assert trust["Principal"] == {"Service": f"ec2.amazonaws.com{suffix}"}
    [policy] = properties["Policies"]
    read = next(each for each in policy["PolicyDocument"]["Statement"] if each["Sid"] == "ReadDataBuckets")
    assert read["Resource"] == [f"arn:{partition}:s3:::{each}/*" for each in buckets]
    assert length(policy["PolicyDocument"]) <= INLINE


def test_without_data_buckets_no_statement_is_about_one() -> None:
    role = parsed("account")["Resources"]["InstanceRole"]["Properties"]

    sids = [each["Sid"] for each in role["Policies"][0]["PolicyDocument"]["Statement"]]
    documented = [each["Sid"] for each in read_policy("instance")["Statement"]]
    assert sids == [each for each in documented if "DataBuckets" not in each]


@pytest.mark.parametrize("name", [*TEMPLATES, WATCHER])
def test_no_placeholder_is_left_in_a_template(name: str) -> None:
    assert not re.search(
        r"\b(DATA_BUCKET|BUCKET|ACCOUNT|ROLE|NAME|TYPES|OWNERS|GROUPS|SUBNETS)\b",
        template(name, data_buckets=("one",)),
    )


def test_the_bucket_blocks_public_access_and_expires_old_versions() -> None:
    bucket = parsed("data")["Resources"]["Bucket"]

    properties = bucket["Properties"]
    assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(properties["PublicAccessBlockConfiguration"]) == 4
    rules = {each["Id"]: each for each in properties["LifecycleConfiguration"]["Rules"] if "Id" in each}
    assert rules["unfinished-uploads"]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 3}
    assert rules["old-versions"]["NoncurrentVersionExpiration"] == {"NoncurrentDays": 3}
    assert bucket["UpdateReplacePolicy"] == "Retain"


def test_nothing_reaches_the_bucket_without_tls() -> None:
    policy = parsed("data")["Resources"]["TlsOnly"]["Properties"]
    [statement] = substituted(policy["PolicyDocument"]["Statement"], words("aws", Bucket="exchange"))

    assert (statement["Effect"], statement["Principal"], statement["Action"]) == ("Deny", "*", "s3:*")
    assert statement["Resource"] == ["arn:aws:s3:::exchange", "arn:aws:s3:::exchange/*"]
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_jobs_are_deleted_after_the_days_that_were_chosen_and_by_default_never() -> None:
    template_ = parsed("data")
    rules = template_["Resources"]["Bucket"]["Properties"]["LifecycleConfiguration"]["Rules"]
    [(condition, jobs, otherwise)] = [each["Fn::If"] for each in rules if "Fn::If" in each]
    days = template_["Parameters"]["JobDays"]

    assert condition == "JobsExpire"
    assert template_["Conditions"]["JobsExpire"] == {"Fn::Not": [{"Fn::Equals": [{"Ref": "JobDays"}, ""]}]}
    assert jobs == {
        "Id": "jobs",
        "Status": "Enabled",
        "Prefix": "jobs/",
        "ExpirationInDays": {"Ref": "JobDays"},
    }
    assert otherwise == {"Ref": "AWS::NoValue"}
    assert days["Default"] == ""
    # AWS refuses 0 days.
    allowed = [
        each for each in ("", "1", "30", "0", "00", "07", "-1") if re.fullmatch(days["AllowedPattern"], each)
    ]
    assert allowed == ["", "1", "30"]


def test_a_file_system_is_reached_from_each_subnet() -> None:
    resources = parsed("data", mounts=3)["Resources"]

    mounts = [each["Properties"] for each in resources.values() if each["Type"] == "AWS::EFS::MountTarget"]
    assert [each["SubnetId"]["Fn::Select"][0] for each in mounts] == [0, 1, 2]
    assert {json.dumps(each["FileSystemId"]) for each in mounts} == {'{"Ref": "SharedFiles"}'}
    assert len(parsed("data")["Resources"]) == len(resources) - 2


def test_instances_accept_no_connections() -> None:
    group = parsed("account")["Resources"]["SecurityGroup"]["Properties"]

    assert "SecurityGroupIngress" not in group
    assert [each["IpProtocol"] for each in group["SecurityGroupEgress"]] == ["-1", "-1"]


def test_the_setup_policy_allows_what_cloudformation_does_for_the_user() -> None:
    """The handlers of all resources, with the rights that AWS's own schemas list."""
    around = Surroundings(account=ACCOUNT, region="eu-central-1", roles={}, tags={})
    names = {"Name": "bai", "BucketName": "exchange", "Bucket": "exchange", "AWS::Region": "eu-central-1"}
    given = {"ACCOUNT": ACCOUNT, "NAME": "bai", "BUCKET": "exchange"}
    text = policy_text("setup", given, region="eu-central-1")
    policy = evaluated(text)
    resources = [(f"bai-{name}", each) for name in TEMPLATES for each in parsed(name)["Resources"].values()]
    assert {"AWS::S3::Bucket", "AWS::IAM::Role"} <= {each["Type"] for _, each in resources}
    for stack, each in resources:
        plain = words("aws", **names)
        properties = substituted(each["Properties"], plain)
        properties |= {"Bucket": "exchange", "BucketName": "exchange", "Roles": ["bai-instance"]}
        for verb in ("create", "read", "update", "delete"):
            assert rights(each["Type"], verb) or verb in ("read", "update")
            assert lacking(policy, around, stack, each["Type"], verb, properties) is None
    assert length(json.loads(text)) <= MANAGED
    for statement in json.loads(text)["Statement"]:
        if statement["Sid"] in (
            "MakeTheBucket",
            "MakeRolesAndPolicies",
            "MakeGroups",
            "ChangeGroupsAndFileSystemsOfTheStacks",
            "MakeThePlacementGroup",
            "MakeTheEndpoint",
            "ConnectTheEndpoint",
            "TagTheNewFileSystem",
        ):
            smaller = policy.without(statement["Sid"])
            assert any(
                lacking(
                    smaller,
                    around,
                    stack,
                    each["Type"],
                    "create",
                    {
                        **substituted(each["Properties"], plain),
                        "BucketName": "exchange",
                        "Roles": ["bai-instance"],
                    },
                )
                for stack, each in resources
            )


@pytest.mark.parametrize(
    ("action", "resource", "context"),
    [
        ("ec2:RunInstances", "arn:aws:ec2:eu-central-1:123456789012:instance/*", {}),
        ("ec2:RunInstances", "arn:aws:ec2:eu-central-1::image/ami-1", {}),
        ("ec2:CreateTags", "arn:aws:ec2:eu-central-1:123456789012:instance/*", {"ec2:CreateAction": "RunInstances"}),
        ("ec2:CreatePlacementGroup", "arn:aws:ec2:eu-central-1:123456789012:placement-group/a", {"ec2:PlacementGroupStrategy": "spread"}),
        ("ec2:CreateVpcEndpoint", "arn:aws:ec2:eu-central-1:123456789012:vpc-endpoint/*", {"ec2:VpceServiceName": "com.amazonaws.eu-central-1.dynamodb"}),
        ("ec2:DeleteVpcEndpoints", "arn:aws:ec2:eu-central-1:123456789012:vpc-endpoint/vpce-1", {"ec2:VpceServiceName": "com.amazonaws.vpce.eu-central-1.vpce-svc-1"}),
        ("elasticfilesystem:DeleteFileSystem", "arn:aws:elasticfilesystem:eu-central-1:999999999999:file-system/fs-1", {}),
        ("elasticfilesystem:DeleteFileSystem", "arn:aws:elasticfilesystem:eu-central-1:123456789012:file-system/fs-1", {}),
        ("elasticfilesystem:CreateMountTarget", "arn:aws:elasticfilesystem:eu-central-1:123456789012:file-system/fs-1", {OF_A_STACK: "payroll-data"}),
        ("elasticfilesystem:TagResource", "arn:aws:elasticfilesystem:eu-central-1:123456789012:file-system/fs-1", {}),
        ("ec2:AuthorizeSecurityGroupIngress", "arn:aws:ec2:eu-central-1:123456789012:security-group/sg-1", {}),
        ("ec2:DeleteSecurityGroup", "arn:aws:ec2:eu-central-1:123456789012:security-group/sg-1", {OF_A_STACK: "payroll-account"}),
        ("ec2:CreateNetworkInterface", "arn:aws:ec2:eu-central-1:123456789012:security-group/sg-1", {}),
        ("iam:PassRole", "arn:aws:iam::123456789012:role/admin", {"iam:PassedToService": "ec2.amazonaws.com"}),
        ("lambda:CreateEventSourceMapping", "*", {"lambda:FunctionArn": "arn:aws:lambda:eu-central-1:123456789012:function:payroll"}),
        ("lambda:DeleteEventSourceMapping", "arn:aws:lambda:eu-central-1:123456789012:event-source-mapping:1", {"lambda:FunctionArn": "arn:aws:lambda:eu-central-1:123456789012:function:payroll"}),
        ("lambda:UpdateFunctionCode", "arn:aws:lambda:eu-central-1:123456789012:function:payroll", {}),
    ],
)  # fmt: skip
def test_the_setup_policy_allows_nothing_outside_of_its_stacks(
    action: str, resource: str, context: dict[str, str]
) -> None:
    given = {"ACCOUNT": ACCOUNT, "NAME": "bai", "BUCKET": "exchange"}
    asked = Permission(action=action, resource=resource, context=context)

    for name in ("setup", "setup-watcher"):
        assert not evaluated(policy_text(name, given, region="eu-central-1")).allows(asked)


@pytest.mark.parametrize("name", ["setup", "setup-watcher"])
def test_setup_policies_allow_all_resources_only_for_actions_that_aws_cannot_restrict(name: str) -> None:
    everywhere = [
        (action, "Condition" in each)
        for each in read_policy(name)["Statement"]
        if each["Resource"] == ["*"]
        for action in each["Action"]
        if not re.match(r"\w+:(Describe|GetDataProtectionPolicy)", action)
    ]

    detached = [(f"iam:Detach{kind}Policy", True) for kind in ("Group", "Role", "User")]
    assert (
        everywhere
        == {
            "setup": [*detached, ("elasticfilesystem:CreateFileSystem", False)],
            "setup-watcher": [
                ("lambda:CreateEventSourceMapping", True),
                ("lambda:GetAccountSettings", False),
            ],
        }[name]
    )


@pytest.mark.parametrize("partition", REGIONS)
def test_the_watcher_may_do_what_is_documented_within_its_parameters(partition: str) -> None:
    role = parsed(WATCHER)["Resources"]["WatcherRole"]["Properties"]
    [policy] = substituted(role, words(partition, **LONGEST))["Policies"]

    lists = {"GROUPS": "Groups", "OWNERS": "Owners", "SUBNETS": "Subnets", "TYPES": "Types"}
    name = LONGEST["Name"]
    given = {"ACCOUNT": ACCOUNT, "BUCKET": LONGEST["BucketName"], "ROLE": f"{name}-instance", "NAME": name}
    text = policy_text("watcher", given, region=REGIONS[partition])
    for word, parameter in lists.items():
        text = re.sub(rf'\[\s*"{word}"\s*\]', json.dumps({"Ref": parameter}), text)
    assert policy["PolicyDocument"] == json.loads(text)
    assert length(policy["PolicyDocument"]) <= INLINE
    launches = [
        each for each in policy["PolicyDocument"]["Statement"] if "ec2:RunInstances" in each["Action"]
    ]
    assert all(each["Resource"] != ["*"] for each in launches)


@pytest.mark.parametrize("tags", [{}, {"bai:store": "s3://another/jobs"}], ids=["no-store", "other-store"])
def test_the_watcher_launches_nothing_for_another_bucket(tags: dict[str, str]) -> None:
    given = {
        "ACCOUNT": ACCOUNT,
        "BUCKET": "exchange",
        "ROLE": "bai-instance",
        "TYPES": "t3.small",
        "GROUPS": "sg-1",
    }
    policy = evaluated(policy_text("watcher", given, region="eu-central-1"))

    def allows(kind: str, tags: dict[str, str]) -> bool:
        of_job = {"bai:job-id": "job", "bai:expires": "2026-11-21T00:00:00Z", **tags}
        key = "aws:ResourceTag/" if kind == "security-group" else "aws:RequestTag/"
        context = {key + each: value for each, value in of_job.items()}
        profile = f"arn:aws:iam::{ACCOUNT}:instance-profile/bai-instance"
        more = {"ec2:InstanceType": "t3.small", "ec2:InstanceProfile": profile, "ec2:SecurityGroupID": "sg-2"}
        resource = f"arn:aws:ec2:eu-central-1:{ACCOUNT}:{kind}/{kind}-1"
        return policy.allows(
            Permission(action="ec2:RunInstances", resource=resource, context={**context, **more})
        )

    for kind in ("instance", "volume", "security-group"):
        assert allows(kind, {"bai:store": "s3://exchange/jobs"})
        assert not allows(kind, tags)


def test_the_watcher_has_one_reserved_execution_and_a_sufficient_visibility_timeout() -> None:
    resources = {name: each["Properties"] for name, each in parsed(WATCHER)["Resources"].items()}

    reserved = resources["Watcher"]["ReservedConcurrentExecutions"]
    assert reserved == {"Fn::If": ["IsReserved", 1, {"Ref": "AWS::NoValue"}]}
    assert resources["WatcherCalls"]["ScalingConfig"] == {"MaximumConcurrency": 2}
    assert resources["WatcherQueue"]["VisibilityTimeout"] >= 6 * resources["Watcher"]["Timeout"]
    assert resources["WatcherQueue"]["RedrivePolicy"]["deadLetterTargetArn"] == {
        "Fn::GetAtt": ["WatcherDead", "Arn"]
    }
    assert resources["Watcher"]["Handler"] == HANDLER
    assert resources["Watcher"]["Runtime"] == f"python3.{PYTHON[1:]}"
    assert resources["Watcher"]["Architectures"] == [ARCHITECTURE]


def test_the_watcher_setup_policy_allows_what_cloudformation_does_for_the_user() -> None:
    around = Surroundings(account=ACCOUNT, region="eu-central-1", roles={}, tags={})
    given = {"ACCOUNT": ACCOUNT, "NAME": "bai", "BUCKET": "exchange"}
    policy = evaluated(text := policy_text("setup-watcher", given, region="eu-central-1"))
    plain = words("aws", Name="bai", BucketName="exchange", **{"AWS::Region": "eu-central-1"})
    used = set()
    for each in parsed(WATCHER)["Resources"].values():
        properties = substituted(each["Properties"], plain) | {"Queues": ["bai-watcher"]}
        if "EventSourceArn" in properties:
            properties["FunctionName"] = "bai-watcher"
        if "Code" in properties:
            properties["Code"] = {"S3Bucket": "exchange", "S3Key": "agent/watcher-1.zip"}
            properties["Role"] = f"arn:aws:iam::{ACCOUNT}:role/bai-watcher"
        for verb in ("create", "read", "update", "delete"):
            assert lacking(policy, around, "bai-watcher", each["Type"], verb, properties) is None
            used |= set(rights(each["Type"], verb))
    assert length(json.loads(text)) <= MANAGED
    allowed = {action for each in json.loads(text)["Statement"] for action in each["Action"]}
    assert allowed - {"lambda:GetAccountSettings"} <= used
