"""The removal of security groups that machines may still use."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from botocore.exceptions import ClientError

from executor.backends.ec2.security_group import delete_groups


class _Ec2:
    """Refuses to delete groups, each with its own code."""

    def __init__(self, codes: dict[str, str]) -> None:
        self._codes = codes

    def delete_security_group(self, *, GroupId: str) -> None:  # noqa: N803 - EC2's name
        error: Any = {"Error": {"Code": self._codes[GroupId], "Message": f"{GroupId} stays"}}
        raise ClientError(error, "DeleteSecurityGroup")


def test_only_an_unexpected_refusal_to_delete_a_security_group_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ec2: Any = _Ec2(
        {"sg-1": "DependencyViolation", "sg-2": "InvalidGroup.NotFound", "sg-3": "UnauthorizedOperation"}
    )

    with caplog.at_level(logging.INFO):
        delete_groups(ec2, ["sg-1", "sg-2", "sg-3"])

    assert [each.message for each in caplog.records] == [
        "deleting the security group sg-3 is not allowed (UnauthorizedOperation): sg-3 stays; docs/iam.md has the policies"
    ]
