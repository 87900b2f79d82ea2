"""Stacks that take time, fail or are busy, which moto's instant CloudFormation does not show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from executor.backends.ec2.setup.stacks import DEADLINE_S, StackChange, Stacks, lacks_rights
from executor.errors import AwsError

ID = "arn:aws:cloudformation:eu-central-1:123456789012:stack/bai-data/1"


class SlowCloudFormation:
    """Answers with one state after the other, and stays with the last one."""

    def __init__(self, *states: str, events: list[list[dict[str, str]]] | None = None) -> None:
        self.states, self.events = list(states), events or []
        self.change_set = {"Status": "CREATE_COMPLETE"}
        self.asked: list[str] = []

    def describe_stacks(self, **what: str) -> dict[str, Any]:
        self.asked.append("describe")
        state = self.states[0] if len(self.states) == 1 else self.states.pop(0)
        if not state:
            message = f"Stack with id {what['StackName']} does not exist"
            raise ClientError({"Error": {"Code": "ValidationError", "Message": message}}, "DescribeStacks")
        return {"Stacks": [{"StackId": ID, "StackStatus": state}]}

    def create_change_set(self, **what: Any) -> dict[str, Any]:
        self.asked.append(what["ChangeSetType"])
        return {"Id": "arn:change/one"}

    def describe_change_set(self, **_: Any) -> dict[str, Any]:
        return self.change_set

    def execute_change_set(self, **_: Any) -> None:
        self.asked.append("execute")

    def delete_change_set(self, **_: Any) -> None:
        self.asked.append("forget")

    def delete_stack(self, **_: Any) -> None:
        self.asked.append("delete")

    def get_paginator(self, name: str) -> Any:
        assert name == "describe_stack_events"
        return self

    def paginate(self, **what: str) -> Iterator[dict[str, Any]]:
        assert what == {"StackName": ID}
        for page in self.events:
            yield {"StackEvents": page}


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def stacks(cloudformation: SlowCloudFormation) -> Stacks:
    time = Time()
    return Stacks(
        cloudformation=cloudformation, draw_name=lambda: "one", clock=lambda: time.now, sleep=time.sleep
    )


def event(resource: str, status: str, reason: str = "", physical: str = "") -> dict[str, str]:
    return {
        "LogicalResourceId": resource,
        "PhysicalResourceId": physical or (ID if resource == "bai-data" else ""),
        "ResourceType": "AWS::S3::Bucket",
        "ResourceStatus": status,
        "ResourceStatusReason": reason,
    }


CHANGE = StackChange(stack="bai-data", id="arn:change/one", creates=True, lines=())


def test_a_change_waits_for_another_operation_on_the_stack() -> None:
    slow = SlowCloudFormation("CREATE_IN_PROGRESS", "CREATE_IN_PROGRESS", "CREATE_COMPLETE")

    change = stacks(slow).propose("bai-data", "{}", {})

    assert change is not None
    assert slow.asked == ["describe", "describe", "describe", "UPDATE"]


@pytest.mark.parametrize("state", ["REVIEW_IN_PROGRESS", "ROLLBACK_COMPLETE"])
def test_a_stack_that_was_never_created_is_created_again(state: str) -> None:
    slow = SlowCloudFormation(state, state, "DELETE_IN_PROGRESS", "DELETE_COMPLETE")

    change = stacks(slow).propose("bai-data", "{}", {})

    assert change is not None
    assert change.creates
    assert slow.asked[-4:] == ["delete", "describe", "describe", "CREATE"]


def test_a_change_that_never_ends_is_abandoned_after_a_deadline() -> None:
    slow = SlowCloudFormation("REVIEW_IN_PROGRESS", "CREATE_IN_PROGRESS")

    with pytest.raises(
        AwsError, match="still CREATE_IN_PROGRESS after 20 minutes; run the same command again"
    ):
        stacks(slow).carry_out(CHANGE)

    assert slow.asked.count("execute") == 1
    assert DEADLINE_S == 1200


def test_a_change_is_not_complete_while_the_stack_is_in_review() -> None:
    slow = SlowCloudFormation("REVIEW_IN_PROGRESS", "CREATE_IN_PROGRESS", "CREATE_COMPLETE")

    assert stacks(slow).carry_out(CHANGE).status == "CREATE_COMPLETE"


def test_the_first_failure_of_the_last_change_is_found_on_any_page() -> None:
    pages = [
        [
            event("bai-data", "ROLLBACK_COMPLETE"),
            event("TlsOnly", "DELETE_COMPLETE"),
            event(
                "bai-data", "ROLLBACK_IN_PROGRESS", "The following resource(s) failed to create: [Bucket]."
            ),
            event("TlsOnly", "CREATE_FAILED", "Resource creation cancelled"),
        ],
        [
            event("Other", "CREATE_FAILED", "a later one"),
            event("Bucket", "CREATE_FAILED", "my-bucket already exists", "my-bucket"),
            event("bai-data", "CREATE_IN_PROGRESS", "User Initiated"),
            event("Bucket", "CREATE_FAILED", "of an earlier time"),
        ],
    ]
    slow = SlowCloudFormation("CREATE_IN_PROGRESS", "ROLLBACK_COMPLETE", events=pages)

    with pytest.raises(AwsError) as failed:
        stacks(slow).carry_out(CHANGE)

    assert str(failed.value).endswith("Bucket (AWS::S3::Bucket, my-bucket): my-bucket already exists")
    assert not lacks_rights(failed.value)


@pytest.mark.parametrize(
    "reason",
    [
        "User: arn:aws:iam::1:user/a is not authorized to perform: iam:CreateRole on resource: …",
        "Access Denied (Service: S3, Status Code: 403)",
        "You are not authorized to perform this operation. (Service: Ec2, Error Code: UnauthorizedOperation)",
    ],
)
def test_a_resource_that_fails_for_lack_of_rights_is_recognised(reason: str) -> None:
    pages = [[event("Bucket", "CREATE_FAILED", reason), event("bai-data", "CREATE_IN_PROGRESS")]]
    slow = SlowCloudFormation("ROLLBACK_COMPLETE", events=pages)

    with pytest.raises(AwsError) as failed:
        stacks(slow).carry_out(CHANGE)

    assert lacks_rights(failed.value)


def test_a_change_that_cannot_be_prepared_is_reported_and_deleted() -> None:
    slow = SlowCloudFormation("CREATE_COMPLETE")
    slow.change_set = {"Status": "FAILED", "StatusReason": "Template error: no such thing"}

    with pytest.raises(AwsError, match="cannot be changed: Template error: no such thing"):
        stacks(slow).propose("bai-data", "{}", {})

    assert slow.asked[-1] == "forget"


def test_a_change_set_without_changes_is_not_carried_out() -> None:
    slow = SlowCloudFormation("CREATE_COMPLETE")
    reason = "The submitted information didn't contain changes. Submit different information to create a change set."
    slow.change_set = {"Status": "FAILED", "StatusReason": reason}

    assert stacks(slow).propose("bai-data", "{}", {}) is None


def test_a_stack_in_an_unrecoverable_state_is_refused() -> None:
    pages = [[event("Bucket", "DELETE_FAILED", "not empty", "b"), event("bai-data", "DELETE_IN_PROGRESS")]]
    slow = SlowCloudFormation("DELETE_FAILED", events=pages)

    with pytest.raises(
        AwsError, match=r"is DELETE_FAILED: Bucket \(AWS::S3::Bucket, b\): not empty; `bai setup --remove`"
    ):
        stacks(slow).propose("bai-data", "{}", {})


def test_a_stack_that_is_gone_is_not_deleted() -> None:
    slow = SlowCloudFormation("")

    assert stacks(slow).delete("bai-data") is False
    assert slow.asked == ["describe"]
