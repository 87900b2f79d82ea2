"""The policies of `bai` allow each call that user, executor and instance make, and little that none of them makes."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sandbox.fake_aws import Call, FakeAws, open_fake_aws
from sandbox.fake_aws.control_plane.images import DEBIAN
from sandbox.fake_aws.fake_aws import ROLE
from sandbox.fake_aws.iam.identities import SETUP
from sandbox.fake_aws.iam.permissions import needed
from sandbox.fake_aws.iam.policies import Policies
from sandbox.fake_aws.iam.policy import Permission, Policy
from sandbox.sandbox_cli import sandbox_cli

ROOT = Path(__file__).parents[2]
IDENTITIES = ("user", "executor", "instance")

FAILED_UPLOAD = "S3 is asked to forget the parts of an upload only when the upload has failed"
UPLOADS = {
    ("WriteTheExchangeBucket", "s3:AbortMultipartUpload", f"arn:aws:s3:::BUCKET/{folder}/*"): FAILED_UPLOAD
    for folder in ("agent", "data", "jobs", "scripts")
}
CAPACITY_BLOCK = {
    (
        "LookUpImagesTypesAndPlaces",
        "ec2:DescribeCapacityReservations",
        "*",
    ): "only a job in a capacity block asks when it ends"
}
HANGS = {
    (
        "SeeInstances",
        "ec2:DescribeInstanceStatus",
        "*",
    ): "EC2's check is asked for only if a machine has been silent for a quarter of an hour"
}
SEVERAL_NODES = "the machines of a job of several nodes find each other there"
_REPORTS = ("artifacts", *(f"attempts/*/{name}" for name in ("control", "ended", "joined", "nodes", "signs")))
UNSEEN = {
    "user": {
        **UPLOADS,
        **CAPACITY_BLOCK,
        **HANGS,
        (
            "ReadJobs",
            "s3:GetObject",
            "arn:aws:s3:::BUCKET/scripts/*",
        ): "--like fetches scripts only where they have changed",
        (
            "ExamineTheBucket",
            "s3:GetLifecycleConfiguration",
            "arn:aws:s3:::BUCKET",
        ): "rules are asked for only of a bucket that keeps versions",
    },
    "executor": {**UPLOADS, **CAPACITY_BLOCK, **HANGS},
    "instance": {
        **{
            (
                "WriteWhatNodesReport",
                "s3:AbortMultipartUpload",
                f"arn:aws:s3:::BUCKET/jobs/*/{folder}/*",
            ): FAILED_UPLOAD
            for folder in _REPORTS
        },
        **{
            (
                "WriteWhatNodesReport",
                "s3:PutObject",
                f"arn:aws:s3:::BUCKET/jobs/*/attempts/*/{name}/*",
            ): SEVERAL_NODES
            for name in ("control", "ended", "joined", "signs")
        },
    },
}
"""Allowed, and not called here: what a run in which nothing fails does not show, with the reason why it is needed."""

WORKS = """\
set -e
test "$(cat local.txt)" = local
test "$(cat one.txt)" = one
test "$(cat many/two.txt)" = two
test "$TOKEN $OTHER" = "token other"
until [ -e /var/go ]; do sleep 0.1; done
echo kept >kept.txt
"""
NEEDS = """\
[ml.script]
path = "scripts"
[[data.sources]]
src = "local.txt"
path = "local.txt"
[[data.sources]]
src = "s3://{data}/one.txt"
path = "one.txt"
[[data.sources]]
src = "s3://{data}/many/"
path = "many"
[output]
artifacts = ["kept.txt"]
[env.secrets]
TOKEN = "ssm:/bai/token"
OTHER = "secretsmanager:bai/other"
"""
RARE = """\
[aws.ec2.run_instances]
KeyName = "mine"
Placement = { GroupName = "together" }
InstanceMarketOptions = { MarketType = "spot" }
CapacityReservationSpecification = { CapacityReservationTarget = { CapacityReservationId = "cr-1" } }
"""


@dataclass(frozen=True)
class Runs:
    """All calls of some runs, and the account in which they were made."""

    calls: list[Call]
    policies: Policies
    bucket: str
    data_bucket: str

    def policy(self, identity: str) -> Policy:
        return self.policies.documented(identity)

    def permissions(self, identity: str) -> list[tuple[Call, Permission]]:
        mine = [call for call in self.calls if call.identity == identity]
        return [(call, each) for call in mine for each in needed(call, self.policies.around)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    if os.geteuid() != 0:
        pytest.skip("needs root: machines are made of namespaces and mounts")
    folder = tmp_path_factory.mktemp("iam")
    with open_fake_aws(folder / "aws") as aws:
        _furnish(aws)
        for identity in ("user", "executor"):
            _work(aws, folder / identity, identity)
            # What is there is not brought again.
            _empty(aws, "agent", "data", "scripts")
        yield Runs(aws.calls, aws.policies, aws.bucket, aws.data_bucket)


@pytest.mark.parametrize("identity", IDENTITIES)
def test_each_call_is_allowed_by_the_identitys_policy(runs: Runs, identity: str) -> None:
    policy = runs.policy(identity)
    asked = runs.permissions(identity)
    assert asked
    refused = {
        f"{call.service}:{call.action} needs {permission}"
        for call, permission in asked
        if not policy.allows(permission)
    }
    assert refused == set()


@pytest.mark.parametrize("identity", IDENTITIES)
def test_every_action_that_a_policy_allows_is_used(runs: Runs, identity: str) -> None:
    unused = runs.policy(identity).unused([permission for _, permission in runs.permissions(identity)])

    known = {
        (sid, action, re.sub(r"\bBUCKET\b", runs.bucket, resource))
        for sid, action, resource in UNSEEN[identity]
    }
    assert unused == known


@pytest.mark.parametrize("identity", IDENTITIES)
def test_every_statement_of_a_policy_is_needed(runs: Runs, identity: str) -> None:
    policy = runs.policy(identity)
    asked = [permission for _, permission in runs.permissions(identity)]
    for each in policy.statements:
        smaller = policy.without(each.sid)
        assert not all(smaller.allows(permission) for permission in asked), each.sid


@pytest.mark.parametrize("identity", IDENTITIES)
def test_no_policy_allows_changing_resources_of_others(runs: Runs, identity: str) -> None:
    policy, around = runs.policy(identity), runs.policies.around
    instance = f"arn:aws:ec2:{around.region}:{around.account}:instance/i-1"
    group = f"arn:aws:ec2:{around.region}:{around.account}:security-group/sg-1"
    role = f"arn:aws:iam::{around.account}:role"
    tagged_later = {"ec2:CreateAction": "CreateTags"}
    for_lambda = {"iam:PassedToService": "lambda.amazonaws.com"}
    for permission in (
        Permission(action="ec2:TerminateInstances", resource=instance),
        Permission(action="ec2:RunInstances", resource=instance),
        Permission(action="ec2:CreateTags", resource=instance),
        Permission(action="ec2:CreateTags", resource=instance, context=tagged_later),
        Permission(action="ec2:CreateSecurityGroup", resource=group),
        Permission(action="ec2:CreateTags", resource=group, context=tagged_later),
        Permission(action="ec2:AuthorizeSecurityGroupIngress", resource=group),
        Permission(action="ec2:DeleteSecurityGroup", resource=group),
        Permission(action="iam:PassRole", resource=f"{role}/{ROLE}", context=for_lambda),
        Permission(
            action="iam:PassRole",
            resource=f"{role}/admin",
            context={"iam:PassedToService": "ec2.amazonaws.com"},
        ),
        Permission(action="s3:DeleteObject", resource=f"arn:aws:s3:::{runs.bucket}/jobs/a"),
        Permission(action="s3:PutObject", resource=f"arn:aws:s3:::{runs.data_bucket}/a"),
        Permission(action="s3:GetObject", resource="arn:aws:s3:::somebody-elses/a"),
        Permission(
            action="ssm:GetParameter",
            resource=f"arn:aws:ssm:{around.region}:{around.account}:parameter/team/password",
        ),
    ):
        assert not policy.allows(permission), permission


def test_an_instance_may_not_change_other_jobs(runs: Runs) -> None:
    policy, bucket = runs.policy("instance"), f"arn:aws:s3:::{runs.bucket}"
    for folder in ("agent", "data", "scripts"):
        assert not policy.allows(Permission(action="s3:PutObject", resource=f"{bucket}/{folder}/a"))
    for name in (
        "attempts/0/launch.json",
        "attempts/0/launched.json",
        "attempts/0/refused/0.json",
        "cancel.json",
    ):
        for context in ({}, {"s3:if-none-match": "*"}):
            write = Permission(action="s3:PutObject", resource=f"{bucket}/jobs/job-1/{name}", context=context)
            assert not policy.allows(write), write
    for name in ("job.toml", "result.json"):
        assert not policy.allows(Permission(action="s3:PutObject", resource=f"{bucket}/jobs/job-1/{name}"))
    assert not policy.allows(Permission(action="s3:ListBucket", resource=bucket))


@pytest.mark.parametrize("identity", [*IDENTITIES, "setup"])
def test_the_iam_page_has_a_row_for_each_permission(identity: str) -> None:
    page = (ROOT / "docs/iam.md").read_text()
    for statement in json.loads((ROOT / f"executor/backends/ec2/iam/{identity}.json").read_text())[
        "Statement"
    ]:
        [row] = {line for line in page.splitlines() if line.startswith(f"| `{statement['Sid']}` ")}
        for action in statement["Action"]:
            assert f"`{action}`" in row, statement["Sid"]


def _furnish(aws: FakeAws) -> None:
    """Bring data and secrets."""
    s3 = aws.client("s3", SETUP)
    s3.put_object(Bucket=aws.data_bucket, Key="one.txt", Body=b"one\n")
    s3.put_object(Bucket=aws.data_bucket, Key="many/two.txt", Body=b"two\n")
    aws.client("ssm", SETUP).put_parameter(Name="/bai/token", Value="token", Type="SecureString")
    aws.client("secretsmanager", SETUP).create_secret(Name="bai/other", SecretString="other")


def _work(aws: FakeAws, folder: Path, identity: str) -> None:
    """Do what can be done with jobs: by hand all of it, as the service what it does."""
    groups = aws.client("ec2", SETUP).describe_security_groups()["SecurityGroups"]
    named = json.dumps([groups[0]["GroupId"]])
    cli = sandbox_cli(aws, folder, identity=identity, more=f"security_groups = {named}")
    (folder / "scripts").mkdir()
    (folder / "scripts" / "empty.txt").write_text("")
    (folder / "local.txt").write_text("local\n")
    works, fails, hangs, refused = (f"{identity}-{what}" for what in ("works", "fails", "hangs", "refused"))

    def bai(*arguments: str | Path, code: int = 0) -> str:
        done = cli.bai(*arguments)
        assert done.code == code, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    public = replace(DEBIAN, image_id=f"ssm:{DEBIAN.parameters[0]}")
    file = cli.descriptor(WORKS, more=NEEDS.format(data=aws.data_bucket), image=public)
    if identity == "user":
        assert "0.024" in bai("plan", file, "--on", "ec2")
        # A network without a way to S3, as moto's is, is a finding.
        bai("doctor", file, code=5)
    machine = cli.submit(file, job_id=works)
    machine.wait_for("agent start 1")
    bai("status", works)
    bai("logs", works, "--boot")
    machine.write("/var/go", "")
    machine.wait_off()
    assert "SUCCEEDED" in bai("status", works)
    bai("fetch", works, folder / "fetched")

    # Its descriptor does not fit into user data.
    large = f"exit 1\n# {random.Random(0).randbytes(20_000).hex()}"
    file = cli.descriptor(large, ec2='keep_on_failure = "5m"')
    kept = cli.submit(file, job_id=fails)
    kept.wait_for("keeping this machine for 300 s")
    bai("release", fails)
    kept.wait_off()

    # It takes its time to end, so that there is a machine left for the second cancel.
    hanging = cli.submit(cli.descriptor("trap '' TERM\nsleep 600"), job_id=hangs)
    hanging.wait_for("agent start 1")
    bai("cancel", hangs)
    bai("cancel", hangs, "--now")
    hanging.wait_off()
    bai("reap")

    # moto knows none of these; what was asked for counts.
    rare = cli.descriptor("true", more=RARE)
    if identity == "user":
        # The key pair and the placement group are not there: of what to correct, the descriptor comes first.
        bai("doctor", rare, code=2)
    aws.fail("RunInstances", code="InvalidParameterValue", status=400)
    bai("submit", rare, "--job-id", refused, code=5)

    # Several machines without a configured group get one, which goes when they are refused.
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("security_groups", "# security_groups"))
    aws.fail("RunInstances", code="InvalidParameterValue", status=400)
    bai("submit", cli.descriptor("true", nodes=2), "--job-id", f"{identity}-together", code=5)


def _empty(aws: FakeAws, *folders: str) -> None:
    s3 = aws.client("s3", SETUP)
    for folder in folders:
        for each in s3.list_objects_v2(Bucket=aws.bucket, Prefix=f"{folder}/").get("Contents", []):
            s3.delete_object(Bucket=aws.bucket, Key=each["Key"])
