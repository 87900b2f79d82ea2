"""Creates, updates and deletes a CloudFormation stack, from any state in which an interrupted call may have
left it.

Every change is made as a change set, so that the change can be shown to the user first. CloudFormation itself
decides whether there is a change. States:
https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/view-stack-events.html#cfn-console-view-stack-data-resources-status-codes
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from bai_agent.errors import BaiError
from bai_agent.light_dataclass import dataclass, field
from executor.backends.ec2.session import code_of, is_denied, plain_errors
from executor.errors import AwsError

DEADLINE_S = 1200.0
"""Longest time of one change of a stack (seconds). A change of IAM resources or networks takes one or two
minutes."""
_LOOK_S = 3.0
_EMPTY = frozenset({"REVIEW_IN_PROGRESS", "ROLLBACK_COMPLETE"})
"""States of a stack that was never created and can only be deleted."""
_UNUSABLE = frozenset({"DELETE_FAILED", "ROLLBACK_FAILED", "CREATE_FAILED", "UPDATE_ROLLBACK_FAILED"})
_NO_CHANGE = re.compile(r"didn't contain changes|No updates are to be performed", re.IGNORECASE)
_DENIED = re.compile(r"not authorized to perform|Access ?Denied|UnauthorizedOperation", re.IGNORECASE)
_CONSEQUENCE = re.compile(r"cancelled", re.IGNORECASE)
"""Reason that CloudFormation gives for resources that it cancelled because another resource had failed."""


class DeniedError(AwsError):
    """A stack failed because the credentials lack a right."""


@dataclass(frozen=True, kw_only=True)
class StackState:
    """A stack as CloudFormation describes it."""

    id: str
    status: str
    parameters: Mapping[str, str]
    outputs: Mapping[str, str]

    @property
    def busy(self) -> bool:
        return self.status.endswith("_IN_PROGRESS") and self.status not in _EMPTY

    @property
    def made(self) -> bool:
        """Whether the stack may contain resources."""
        return self.status not in _EMPTY


@dataclass(frozen=True, kw_only=True)
class StackChange:
    """A change of a stack that CloudFormation has computed but not executed."""

    stack: str
    id: str
    """Id of the change set."""
    creates: bool
    lines: tuple[str, ...]
    """One line for each resource, for the user."""


@dataclass(frozen=True, kw_only=True)
class Stacks:
    """The stacks of a region. All methods raise BaiError."""

    cloudformation: Any
    draw_name: Callable[[], str]
    """Returns a name that no change set has yet."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    on_wait: Callable[[str], None] = field(default=lambda sentence: None)

    def look(self, name: str) -> StackState | None:
        """Return a stack by its name or id; None if no such stack exists. A deleted stack is found only by
        its id."""
        with plain_errors(f"describing the stack {name}"):
            try:
                found = self.cloudformation.describe_stacks(StackName=name)["Stacks"][0]
            except ClientError as error:
                if code_of(error) == "ValidationError" and "does not exist" in str(error):
                    return None
                raise
        return StackState(
            id=found["StackId"],
            status=found["StackStatus"],
            parameters={each["ParameterKey"]: each["ParameterValue"] for each in found.get("Parameters", ())},
            outputs={each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", ())},
        )

    def settled(self, name: str) -> StackState | None:
        """Wait until no operation on a stack is in progress, and return the stack; None if the stack does not
        exist, or is in one of the states `_EMPTY`."""
        state = self._wait(name)
        return state if state is not None and state.made else None

    def propose(self, name: str, template: str, parameters: Mapping[str, str]) -> StackChange | None:
        """Create a change set that leads to `template` and `parameters`; None if nothing would change."""
        state = self._wait(name)
        if state is not None and not state.made:
            self.delete(name)
            state = None
        if state is not None and state.status in _UNUSABLE:
            raise AwsError(
                f"the stack {name} is {state.status}: {self._failure(state.id)}; "
                "`bai setup --remove` removes the rest of the stack"
            )
        change_set = self.draw_name()
        with plain_errors(f"preparing the stack {name}"):
            try:
                made = self.cloudformation.create_change_set(
                    StackName=name,
                    ChangeSetName=change_set,
                    ClientToken=change_set,
                    ChangeSetType="UPDATE" if state else "CREATE",
                    TemplateBody=template,
                    Parameters=[
                        {"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()
                    ],
                    Capabilities=["CAPABILITY_NAMED_IAM"],
                )
            except ClientError as error:
                if _NO_CHANGE.search(str(error)):
                    return None
                raise
            return self._computed(name, made["Id"], creates=state is None)

    def _computed(self, name: str, change_set: str, *, creates: bool) -> StackChange | None:
        deadline = self.clock() + DEADLINE_S
        while True:
            found = self.cloudformation.describe_change_set(ChangeSetName=change_set, StackName=name)
            if found["Status"] not in ("CREATE_PENDING", "CREATE_IN_PROGRESS"):
                break
            self._pause(deadline, f"CloudFormation has not prepared the stack {name}")
        if found["Status"] == "FAILED":
            reason = str(found.get("StatusReason", ""))
            self.cloudformation.delete_change_set(ChangeSetName=change_set, StackName=name)
            if _NO_CHANGE.search(reason):
                return None
            raise _error(f"the stack {name} cannot be changed: {reason}")
        # The changes of a stack fit into one page of the answer, because each of bai's templates has fewer
        # resources than that.
        changes = [each["ResourceChange"] for each in found.get("Changes", ())]
        return StackChange(
            stack=name, id=change_set, creates=creates, lines=tuple(_change_line(each) for each in changes)
        )

    def carry_out(self, change: StackChange) -> StackState:
        """Carry out a change, and wait until the change is complete."""
        with plain_errors(f"changing the stack {change.stack}"):
            self.cloudformation.execute_change_set(
                ChangeSetName=change.id, StackName=change.stack, ClientRequestToken=change.id.split("/")[-1]
            )
        self.on_wait(f"{'making' if change.creates else 'updating'} the stack {change.stack}")
        state = self._wait(change.stack, started=True)
        if state is None or state.status not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
            now = f" and is {state.status}" if state else ""
            raise _error(
                f"the stack {change.stack} failed{now}: {self._failure(state.id if state else change.stack)}"
            )
        return state

    def forget(self, change: StackChange) -> None:
        """Delete the change set of a change that the user declined. If the stack was created only for this change,
        delete the stack as well."""
        with plain_errors(f"deleting a change set of the stack {change.stack}"):
            self.cloudformation.delete_change_set(ChangeSetName=change.id, StackName=change.stack)
            if change.creates:
                self.cloudformation.delete_stack(StackName=change.stack)

    def delete(self, name: str) -> bool:
        """Delete a stack with all of its resources, and wait until the stack is deleted. Return whether the
        stack existed."""
        state = self._wait(name)
        if state is None:
            return False
        with plain_errors(f"deleting the stack {name}"):
            self.cloudformation.delete_stack(StackName=name)
        if state.made:
            self.on_wait(f"deleting the stack {name}")
        # A deleted stack is found only by its id.
        ended = self._wait(state.id, until=("DELETE_COMPLETE", "DELETE_FAILED"))
        if ended is not None and ended.status != "DELETE_COMPLETE":
            raise _error(f"the stack {name} was not deleted: {self._failure(state.id)}")
        return True

    def _wait(self, name: str, *, started: bool = False, until: tuple[str, ...] = ()) -> StackState | None:
        """Wait until no operation on a stack is in progress, and return the stack. started: whether an
        operation was just started, so that a stack in the state REVIEW_IN_PROGRESS will soon change its
        state. until: the states that end the wait."""
        deadline = self.clock() + DEADLINE_S
        while True:
            state = self.look(name)
            if state is None:
                return None
            waits = state.busy or (started and state.status == "REVIEW_IN_PROGRESS")
            if not waits and (not until or state.status in until):
                return state
            self._pause(deadline, f"the stack {name} is still {state.status}")

    def _pause(self, deadline: float, sentence: str) -> None:
        if self.clock() > deadline:
            raise AwsError(
                f"{sentence} after {DEADLINE_S / 60:.0f} minutes; run the same command again later to continue"
            )
        self.sleep(_LOOK_S)

    def _failure(self, stack_id: str) -> str:
        """Return the first failure of the latest operation on a stack, in AWS's words."""
        first = "CloudFormation gives no reason"
        pages = self.cloudformation.get_paginator("describe_stack_events").paginate(StackName=stack_id)
        with plain_errors("reading the events of a stack"):
            # CloudFormation returns the latest events first.
            for each in (event for page in pages for event in page["StackEvents"]):
                reason, status = str(each.get("ResourceStatusReason", "")), str(each["ResourceStatus"])
                if each["PhysicalResourceId"] == stack_id:
                    if status in ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS"):
                        return first
                elif status.endswith("_FAILED") and not _CONSEQUENCE.search(reason):
                    known = each.get("PhysicalResourceId") or "not made"
                    first = f"{each['LogicalResourceId']} ({each['ResourceType']}, {known}): {reason}"
        return first


def lacks_rights(error: BaiError) -> bool:
    """Return whether an error is for lack of rights."""
    return isinstance(error, DeniedError) or is_denied(error)


def _error(sentence: str) -> AwsError:
    return DeniedError(sentence) if _DENIED.search(sentence) else AwsError(sentence)


def _change_line(change: Mapping[str, Any]) -> str:
    what = {"Add": "makes", "Modify": "changes", "Remove": "deletes"}.get(change["Action"], change["Action"])
    if change.get("Replacement") == "True":
        what = "replaces"
    known = f" {change['PhysicalResourceId']}" if change.get("PhysicalResourceId") else ""
    return f"{what:<8} {change['LogicalResourceId']}{known} ({change['ResourceType']})"
