"""The policies of `bai`, in force: what an identity's policy does not allow is refused to it, as AWS would."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.fake_aws.answers import Answer, error
from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.control_plane.stacks import Allows
from sandbox.fake_aws.iam.permissions import Surroundings, needed
from sandbox.fake_aws.iam.policy import Policy, Statement, read_policy
from sandbox.fake_aws.iam.stack_rights import lacking

_FOLDER = Path(__file__).parents[4] / "executor/backends/ec2/iam"
_DENIED = {
    "ec2": (403, "UnauthorizedOperation"),
    "s3": (403, "AccessDenied"),
    "iam": (403, "AccessDenied"),
    "cloudformation": (403, "AccessDenied"),
}
"""https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html; all that speak JSON have an exception."""


@dataclass(frozen=True)
class Refused:
    """What somebody asked for and may not have."""

    identity: str
    action: str
    """As policies write it; where it is not known what a call needs, the call's own."""
    resource: str

    def __str__(self) -> str:
        return f"{self.identity} may not {self.action} on {self.resource}"


class Policies:
    """Who has no policy here is an administrator, and may do all."""

    def __init__(self, around: Surroundings, names: Mapping[str, str]) -> None:
        self.around = around
        self._names = names
        self._of: dict[str, Policy] = {}
        self._refused: list[Refused] = []
        self._lock = threading.Lock()

    def documented(self, *names: str, **others: str) -> Policy:
        """Return a policy of `bai`, or several as one, with this account's names, or `others`, for the words in capitals."""
        statements: list[Statement] = []
        for each in names:
            text = (_FOLDER / f"{each}.json").read_text()
            for name, value in {**self._names, **others}.items():
                text = re.sub(rf"\b{name}\b", value, text)
            statements += read_policy(text).statements
        return Policy(tuple(statements))

    def allows_stack(self, identity: str) -> Allows:
        """Return what an identity may have a stack make."""
        policy = self._of.get(identity)

        def allows(stack: str, kind: str, verb: str, properties: dict[str, Any]) -> str | None:
            return None if policy is None else lacking(policy, self.around, stack, kind, verb, properties)

        return allows

    def attach(self, identity: str, policy: Policy | None = None) -> None:
        """Put a policy, by default the documented one, in the place of what `identity` had."""
        self._of[identity] = policy or self.documented(identity)

    def refusal(self, call: Call) -> Answer | None:
        """Return the refusal of a call that is not allowed, and take note of it; None where it is allowed."""
        policy = self._of.get(call.identity)
        lacking = None if policy is None else self._lacking(call, policy)
        if lacking is None:
            return None
        with self._lock:
            self._refused.append(lacking)
        status, code = _DENIED.get(call.service, (400, "AccessDeniedException"))
        account, name = self.around.account, call.identity
        who = (
            f"sts::{account}:assumed-role/{name}/{call.instance_id}"
            if call.instance_id
            else f"iam::{account}:user/{name}"
        )
        message = (
            f"User: arn:aws:{who} is not authorized to perform: {lacking.action} on resource: {lacking.resource} "
            f"because no identity-based policy allows the {lacking.action} action"
        )
        return error(call.service, status, code, message, head=call.action.startswith("Head"))

    def take_refused(self) -> list[Refused]:
        """Return, and forget, what has been refused so far: for a test that means it."""
        with self._lock:
            taken, self._refused = self._refused, []
            return taken

    def check(self) -> None:
        """Raise AssertionError with all that has been refused so far, where there is any."""
        refused = sorted({str(each) for each in self.take_refused()})
        if refused:
            raise AssertionError("calls that the policies of `bai` do not allow:\n" + "\n".join(refused))

    def _lacking(self, call: Call, policy: Policy) -> Refused | None:
        try:
            asked = needed(call, self.around)
        except ValueError:
            return Refused(call.identity, f"{call.service}:{call.action}", call.resource or "*")
        for each in asked:
            if not policy.allows(each):
                return Refused(call.identity, each.action, each.resource)
        return None
