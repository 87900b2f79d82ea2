"""The policies of docs/iam allow each call that user, executor and instance make, and little that none of them makes."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sandbox.desk import Desk
from sandbox.world import Call, World, open_world
from sandbox.world.identities import SETUP
from sandbox.world.images import DEBIAN
from sandbox.world.permissions import Surroundings, needed
from sandbox.world.policy import Permission, Policy, read_policy
from sandbox.world.world import PROFILE, ROLE

DOCS = Path(__file__).parents[2] / "docs"
IDENTITIES = ("user", "executor", "instance")

FAILED_UPLOAD = "S3 is asked to forget the parts of an upload only when the upload has failed"
UPLOADS = {
    ("WriteTheExchangeBucket", "s3:AbortMultipartUpload", f"arn:aws:s3:::BUCKET/{folder}/*"): FAILED_UPLOAD
    for folder in ("agent", "data", "jobs", "scripts")
}
UNSEEN = {
    "user": UPLOADS,
    "executor": UPLOADS,
    "instance": {("WriteJobs", "s3:AbortMultipartUpload", "arn:aws:s3:::BUCKET/jobs/*"): FAILED_UPLOAD},
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
    """All calls of some runs, and what IAM would have known of them."""

    calls: list[Call]
    around: Surroundings
    placeholders: dict[str, str]

    def policy(self, identity: str) -> Policy:
        text = (DOCS / "iam" / f"{identity}.json").read_text()
        for name, value in self.placeholders.items():
            text = re.sub(rf"\b{name}\b", value, text)
        return read_policy(text)

    def permissions(self, identity: str) -> list[tuple[Call, Permission]]:
        mine = [call for call in self.calls if call.identity == identity]
        return [(call, each) for call in mine for each in needed(call, self.around)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    if os.geteuid() != 0:
        pytest.skip("needs root: machines are made of namespaces and mounts")
    folder = tmp_path_factory.mktemp("iam")
    with open_world(folder / "world") as world:
        data = _furnish(world)
        for identity in ("user", "executor"):
            _work(world, folder / identity, identity, data)
            # What is there is not brought again.
            _empty(world, "agent", "data", "scripts")
        tags = {
            instance["InstanceId"]: {each["Key"]: each["Value"] for each in instance.get("Tags", [])}
            for reservation in world.client("ec2", SETUP).describe_instances()["Reservations"]
            for instance in reservation["Instances"]
        }
        around = Surroundings(account=world.account, region=world.region, roles={PROFILE: ROLE}, tags=tags)
        placeholders = {"BUCKET": world.bucket, "ACCOUNT": world.account, "ROLE": ROLE, "DATA_BUCKET": data}
        yield Runs(world.calls, around, placeholders)


@pytest.mark.parametrize("identity", IDENTITIES)
def test_each_call_is_allowed(runs: Runs, identity: str) -> None:
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
def test_all_that_is_allowed_is_called(runs: Runs, identity: str) -> None:
    unused = runs.policy(identity).unused([permission for _, permission in runs.permissions(identity)])

    known = {
        (sid, action, re.sub(r"\bBUCKET\b", runs.placeholders["BUCKET"], resource))
        for sid, action, resource in UNSEEN[identity]
    }
    assert unused == known


@pytest.mark.parametrize("identity", IDENTITIES)
def test_without_any_of_its_statements_a_policy_is_too_small(runs: Runs, identity: str) -> None:
    policy = runs.policy(identity)
    asked = [permission for _, permission in runs.permissions(identity)]
    for without in policy.statements:
        smaller = Policy(tuple(each for each in policy.statements if each != without))
        assert not all(smaller.allows(each) for each in asked), without.sid


@pytest.mark.parametrize("identity", IDENTITIES)
def test_nobody_may_touch_what_is_not_ours(runs: Runs, identity: str) -> None:
    policy, around = runs.policy(identity), runs.around
    instance = f"arn:aws:ec2:{around.region}:{around.account}:instance/i-1"
    role = f"arn:aws:iam::{around.account}:role"
    tagged_later = {"ec2:CreateAction": "CreateTags"}
    for_lambda = {"iam:PassedToService": "lambda.amazonaws.com"}
    for permission in (
        Permission(action="ec2:TerminateInstances", resource=instance),
        Permission(action="ec2:GetConsoleOutput", resource=instance),
        Permission(action="ec2:RunInstances", resource=instance),
        Permission(action="ec2:CreateTags", resource=instance),
        Permission(action="ec2:CreateTags", resource=instance, context=tagged_later),
        Permission(action="iam:PassRole", resource=f"{role}/{ROLE}", context=for_lambda),
        Permission(
            action="iam:PassRole",
            resource=f"{role}/admin",
            context={"iam:PassedToService": "ec2.amazonaws.com"},
        ),
        Permission(action="s3:DeleteObject", resource=f"arn:aws:s3:::{runs.placeholders['BUCKET']}/jobs/a"),
        Permission(action="s3:PutObject", resource=f"arn:aws:s3:::{runs.placeholders['DATA_BUCKET']}/a"),
        Permission(action="s3:GetObject", resource="arn:aws:s3:::somebody-elses/a"),
        Permission(
            action="ssm:GetParameter",
            resource=f"arn:aws:ssm:{around.region}:{around.account}:parameter/team/password",
        ),
    ):
        assert not policy.allows(permission), permission


def test_an_instance_may_not_change_what_others_run(runs: Runs) -> None:
    policy, bucket = runs.policy("instance"), f"arn:aws:s3:::{runs.placeholders['BUCKET']}"
    for folder in ("agent", "data", "scripts"):
        assert not policy.allows(Permission(action="s3:PutObject", resource=f"{bucket}/{folder}/a"))
    assert not policy.allows(Permission(action="s3:ListBucket", resource=bucket))


@pytest.mark.parametrize("identity", IDENTITIES)
def test_the_page_has_a_line_for_each_permission(identity: str) -> None:
    page = (DOCS / "iam.md").read_text()
    for statement in json.loads((DOCS / "iam" / f"{identity}.json").read_text())["Statement"]:
        [row] = {line for line in page.splitlines() if line.startswith(f"| `{statement['Sid']}` ")}
        for action in statement["Action"]:
            assert f"`{action}`" in row, statement["Sid"]


def _furnish(world: World) -> str:
    """Make what a user's account has; return the name of a bucket with data."""
    data = f"data-{world.account}"
    s3 = world.client("s3", SETUP)
    s3.create_bucket(Bucket=data, CreateBucketConfiguration={"LocationConstraint": world.region})
    s3.put_object(Bucket=data, Key="one.txt", Body=b"one\n")
    s3.put_object(Bucket=data, Key="many/two.txt", Body=b"two\n")
    world.client("ssm", SETUP).put_parameter(Name="/bai/token", Value="token", Type="SecureString")
    world.client("secretsmanager", SETUP).create_secret(Name="bai/other", SecretString="other")
    world.fail("GetProducts", code="AccessDeniedException", status=400, times=None)
    return data


def _work(world: World, folder: Path, identity: str, data: str) -> None:
    """Do what can be done with jobs: by hand all of it, as the service what it does."""
    desk = Desk(world, folder)
    (folder / "scripts").mkdir(parents=True)
    (folder / "scripts" / "empty.txt").write_text("")
    (folder / "local.txt").write_text("local\n")
    _configure(desk)
    me = world.environment(identity)
    works, fails, hangs, refused = (f"{identity}-{what}" for what in ("works", "fails", "hangs", "refused"))

    def bai(*arguments: str | Path, code: int = 0) -> str:
        done = desk.bai(*arguments, environment=me)
        assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    public = replace(DEBIAN, image_id=f"ssm:{DEBIAN.parameters[0]}")
    file = desk.descriptor(WORKS, more=NEEDS.format(data=data), image=public)
    if identity == "user":
        bai("plan", file, "--on", "ec2")
        # A network without a way to S3, as moto's is, is a finding.
        bai("doctor", file, code=1)
    machine = desk.submit(file, job_id=works, environment=me)
    machine.wait_for("agent start 1")
    bai("status", works)
    bai("logs", works, "--boot")
    machine.write("/var/go", "")
    machine.wait_off()
    assert "SUCCEEDED" in bai("status", works)
    bai("fetch", works, folder / "fetched")

    # Its descriptor does not fit into user data.
    large = f"exit 1\n# {random.Random(0).randbytes(20_000).hex()}"
    file = desk.descriptor(large, ec2='keep_on_failure = "5m"')
    kept = desk.submit(file, job_id=fails, environment=me)
    kept.wait_for("keeping this machine for 300 s")
    bai("release", fails)
    kept.wait_off()

    hanging = desk.submit(desk.descriptor("sleep 600"), job_id=hangs, environment=me)
    hanging.wait_for("agent start 1")
    bai("cancel", hangs)
    bai("cancel", hangs, "--now")
    hanging.wait_off()
    bai("reap")

    # moto knows none of these; what was asked for counts.
    world.fail("RunInstances", code="InvalidParameterValue", status=400)
    bai("submit", desk.descriptor("true", more=RARE), "--job-id", refused, code=5)


def _configure(desk: Desk) -> None:
    """Name security groups, and no prices, so that both are asked for."""
    desk.configure()
    groups = desk.world.client("ec2", SETUP).describe_security_groups()["SecurityGroups"]
    file = desk.folder / "config.toml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("prices")]
    lines.append(f"security_groups = {json.dumps([groups[0]['GroupId']])}")
    file.write_text("\n".join(lines) + "\n")


def _empty(world: World, *folders: str) -> None:
    s3 = world.client("s3", SETUP)
    for folder in folders:
        for each in s3.list_objects_v2(Bucket=world.bucket, Prefix=f"{folder}/").get("Contents", []):
            s3.delete_object(Bucket=world.bucket, Key=each["Key"])
