"""Policies are evaluated as IAM does; what is not understood is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sandbox.fake_aws.iam.policy import Permission, like, read_policy


def policy(*statements: dict[str, Any]) -> Any:
    return read_policy(json.dumps({"Version": "2012-10-17", "Statement": list(statements)}))


def allow(action: str | list[str], resource: str | list[str] = "*", **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def asks(action: str, resource: str = "*", **context: str) -> Permission:
    return Permission(action=action, resource=resource, context=context)


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("arn:aws:s3:::bucket/jobs/*", "arn:aws:s3:::bucket/jobs/a/b.json", True),
        ("arn:aws:s3:::bucket/jobs/*", "arn:aws:s3:::bucket/jobs/", True),
        ("arn:aws:s3:::bucket/jobs/*", "arn:aws:s3:::bucket/jobs", False),
        ("arn:aws:s3:::bucket", "arn:aws:s3:::bucket/jobs/a", False),
        ("arn:aws:s3:::bucket", "arn:aws:s3:::Bucket", False),
        ("i-?", "i-1", True),
        ("i-?", "i-12", False),
        ("i-?", "i-", False),
        ("*", "", True),
        ("*", "two\nlines", True),
        ("a[bc]", "ab", False),
        ("a[bc]", "a[bc]", True),
        ("a.c", "abc", False),
        ("arn:aws:ec2:*:1:instance/*", "arn:aws:ec2:eu-central-1:1:instance/i-1", True),
        ("arn:aws:ec2:*:1:instance/*", "arn:aws:ec2:eu-central-1:2:instance/i-1", False),
    ],
)
def test_only_star_and_question_mark_are_wildcards(pattern: str, text: str, fits: bool) -> None:
    assert like(pattern, text) is fits


def test_without_an_allowing_statement_nothing_is_allowed() -> None:
    given = policy(allow("s3:GetObject", "arn:aws:s3:::bucket/*"))

    assert given.allows(asks("s3:GetObject", "arn:aws:s3:::bucket/key"))
    assert not given.allows(asks("s3:PutObject", "arn:aws:s3:::bucket/key"))
    assert not given.allows(asks("s3:GetObject", "arn:aws:s3:::other/key"))
    assert not given.allows(asks("s3:GetObject"))
    assert not policy().allows(asks("s3:GetObject"))


def test_actions_are_compared_without_regard_to_case() -> None:
    assert policy(allow("EC2:Describe*")).allows(asks("ec2:describeimages"))


def test_a_deny_statement_overrides_allow() -> None:
    denial = {"Effect": "Deny", "Action": "s3:*", "Resource": "arn:aws:s3:::bucket/secret/*"}
    given = policy(allow("s3:*"), denial)

    assert given.allows(asks("s3:GetObject", "arn:aws:s3:::bucket/open"))
    assert not given.allows(asks("s3:GetObject", "arn:aws:s3:::bucket/secret/key"))


def test_a_missing_condition_key_matches_only_the_null_operator() -> None:
    tagged = policy(allow("ec2:*", Condition={"Null": {"aws:ResourceTag/bai:job-id": "false"}}))
    untagged = policy(allow("ec2:*", Condition={"Null": {"aws:ResourceTag/bai:job-id": "true"}}))
    equal = policy(allow("ec2:*", Condition={"StringEquals": {"ec2:CreateAction": "RunInstances"}}))
    similar = policy(allow("ec2:*", Condition={"StringLike": {"s3:prefix": "*"}}))
    bare, ours = asks("ec2:X"), asks("ec2:X", **{"aws:ResourceTag/bai:job-id": "job"})

    assert [each.allows(bare) for each in (tagged, untagged, equal, similar)] == [False, True, False, False]
    assert [each.allows(ours) for each in (tagged, untagged)] == [True, False]


def test_all_conditions_must_match_one_of_their_values() -> None:
    condition = {"StringEquals": {"a": ["1", "2"]}, "StringLike": {"B": "x*"}}
    given = policy(allow("s:A", Condition=condition))

    assert given.allows(asks("s:A", a="2", b="xy"))
    assert not given.allows(asks("s:A", a="3", b="xy"))
    assert not given.allows(asks("s:A", a="1", b="y"))
    assert not given.allows(asks("s:A", a="1"))
    assert not policy(allow("s:A", Condition={"StringEquals": {"a": "x*"}})).allows(asks("s:A", a="xy"))


def test_a_star_in_an_arn_condition_does_not_match_across_colons() -> None:
    given = policy(allow("s:A", Condition={"ArnLike": {"a": "arn:aws:lambda:*:1:function:bai-*"}}))

    assert given.allows(asks("s:A", a="arn:aws:lambda:eu-west-1:1:function:bai-watcher:live"))
    assert not given.allows(asks("s:A", a="arn:aws:lambda:eu-west-1:2:x:1:function:bai-watcher"))
    assert not given.allows(asks("s:A", a="arn:aws:lambda"))
    assert not given.allows(asks("s:A"))


def test_allowed_but_unused_actions_are_named() -> None:
    given = policy(allow(["s3:GetObject", "s3:PutObject"], ["arn:a/*", "arn:b/*"], Sid="Both"))

    unused = given.unused([asks("s3:GetObject", "arn:a/1"), asks("s3:PutObject", "arn:b/1")])

    assert unused == {("Both", "s3:GetObject", "arn:b/*"), ("Both", "s3:PutObject", "arn:a/*")}


@pytest.mark.parametrize(
    "wrong",
    [
        {"Effect": "Allow", "NotAction": "s3:*", "Resource": "*"},
        {"Effect": "Allow", "Action": "s3:*", "NotResource": "*"},
        {"Effect": "Perhaps", "Action": "s3:*", "Resource": "*"},
        allow("s3:*", Condition={"ArnNotLike": {"a": "b"}}),
        allow("s3:*", Condition={"StringEqualsIfExists": {"a": "b"}}),
    ],
)
def test_unknown_syntax_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"understood|effect"):
        policy(wrong)


def test_a_policy_variable_in_a_comparison_is_refused() -> None:
    given = policy(allow("s3:*", "arn:aws:s3:::bucket/${aws:username}/*"))

    with pytest.raises(ValueError, match="variables"):
        given.allows(asks("s3:GetObject", "arn:aws:s3:::bucket/me/key"))
