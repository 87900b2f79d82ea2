"""Permissions of identities in the sandbox, and the errors of refused calls."""

from __future__ import annotations

import pytest
from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.iam.permissions import Surroundings
from sandbox.fake_aws.iam.policies import Policies, Refused
from sandbox.fake_aws.iam.policy import Policy

AROUND = Surroundings(
    account="123456789012", region="eu-central-1", roles={}, tags={"i-ours": {"bai:job-id": "job"}}
)
NAMES = {"BUCKET": "mine", "DATA_BUCKET": "theirs", "ACCOUNT": "123456789012", "ROLE": "bai-role"}


def call(identity: str, service: str, action: str, resource: str = "") -> Call:
    return Call(
        time=0, identity=identity, instance_id=None, service=service, action=action, resource=resource
    )


@pytest.fixture
def policies() -> Policies:
    policies = Policies(AROUND, NAMES)
    policies.attach("user")
    policies.attach("instance")
    return policies


def test_calls_that_the_documented_policy_allows_are_accepted(policies: Policies) -> None:
    assert policies.refusal(call("user", "s3", "PutObject", "mine/jobs/a")) is None
    assert policies.refusal(call("user", "ec2", "TerminateInstances", "i-ours")) is None
    policies.check()


@pytest.mark.parametrize("identity", ["user", "executor"])
def test_an_instance_without_its_tags_can_be_read_but_not_ended(policies: Policies, identity: str) -> None:
    # A terminated instance loses its tags while its console is still kept.
    policies.attach(identity)

    assert policies.refusal(call(identity, "ec2", "GetConsoleOutput", "i-without-tags")) is None
    assert policies.refusal(call(identity, "ec2", "TerminateInstances", "i-without-tags")) is not None


@pytest.mark.parametrize(
    "key",
    [
        "job-1/artifacts/a/b.txt",
        "job-1/attempts/0/nodes/0/result.json",
        "job-1/attempts/0/nodes/0/log/00000000000000000000",
        "job-1/attempts/0/joined/0.json",
        "job-1/attempts/0/control/stop.json",
        "job-1/attempts/0/signs/1",
        "job-1/attempts/0/ended/1.json",
    ],
)
def test_an_instance_may_write_its_nodes_reports(policies: Policies, key: str) -> None:
    assert policies.refusal(call("instance", "s3", "PutObject", f"mine/jobs/{key}")) is None
    policies.check()


@pytest.mark.parametrize("name", ["job.toml", "result.json"])
def test_an_instance_may_create_descriptor_and_result_but_not_replace_them(
    policies: Policies, name: str
) -> None:
    write = call("instance", "s3", "PutObject", f"mine/jobs/job-1/{name}")
    assert policies.refusal(write) is not None
    write.headers["if-none-match"] = "*"
    assert policies.refusal(write) is None
    for action in ("CreateMultipartUpload", "UploadPart", "CopyObject", "DeleteObject"):
        write.action = action
        assert policies.refusal(write) is not None
    policies.take_refused()


@pytest.mark.parametrize(
    "key",
    [
        "job-1/attempts/0/launch.json",
        "job-1/attempts/0/launched.json",
        "job-1/attempts/0/refused/0.json",
        "job-1/cancel.json",
        ".doctor/probe.json",
    ],
)
def test_an_instance_may_not_write_objects_that_submitters_trust(policies: Policies, key: str) -> None:
    for more in ({}, {"if-none-match": "*"}):
        write = call("instance", "s3", "PutObject", f"mine/jobs/{key}")
        write.headers.update(more)
        assert policies.refusal(write) is not None
    assert len(policies.take_refused()) == 2


def test_a_call_that_includes_a_foreign_instance_is_refused_as_a_whole(policies: Policies) -> None:
    answer = policies.refusal(call("user", "ec2", "TerminateInstances", "i-ours,i-theirs"))

    assert answer is not None
    assert (answer.code, answer.error) == (403, "UnauthorizedOperation")
    arn = "arn:aws:ec2:eu-central-1:123456789012:instance/i-theirs"
    assert f"not authorized to perform: ec2:TerminateInstances on resource: {arn}" in answer.body.decode()
    with pytest.raises(AssertionError, match=f"user may not ec2:TerminateInstances on {arn}"):
        policies.check()


def test_an_unknown_call_is_refused(policies: Policies) -> None:
    assert policies.refusal(call("user", "s3", "DeleteBucket", "mine")) is not None
    assert policies.take_refused() == [Refused("user", "s3:DeleteBucket", "mine")]
    assert policies.take_refused() == []


def test_without_a_policy_every_call_is_allowed_and_with_an_empty_one_none(policies: Policies) -> None:
    asked = call("somebody", "secretsmanager", "GetSecretValue", "theirs")
    assert policies.refusal(asked) is None

    policies.attach("somebody", Policy(()))
    answer = policies.refusal(asked)

    assert answer is not None
    assert (answer.code, answer.error) == (400, "AccessDeniedException")
