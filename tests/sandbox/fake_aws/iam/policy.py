"""An identity-based policy, evaluated as IAM does: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html

What a policy of ours does not use is refused rather than misread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

_KEYS = {"Sid", "Effect", "Action", "Resource", "Condition"}


@dataclass(frozen=True, kw_only=True)
class Permission:
    """What one API call asks of IAM; many calls ask for several."""

    action: str
    """As policies write it: "s3:ListBucket"."""
    resource: str = "*"
    """An ARN; `*` for actions that know no resources."""
    context: Mapping[str, str] = field(default_factory=dict)
    """Condition key → value."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    sid: str
    allow: bool
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """(operator, key, values): all have to hold, each for one of its values."""

    def applies(self, permission: Permission) -> bool:
        return (
            any(like(each, permission.action, ignore_case=True) for each in self.actions)
            and any(like(each, permission.resource) for each in self.resources)
            and all(_holds(*each, permission.context) for each in self.conditions)
        )

    def pieces(self) -> list[tuple[str, str, str]]:
        """Return (sid, action, resource) for each permission that the statement spells out."""
        return [(self.sid, action, resource) for action in self.actions for resource in self.resources]

    def uses(self, piece: tuple[str, str, str], permission: Permission) -> bool:
        """Return whether `permission` is given by this piece of the statement."""
        _, action, resource = piece
        return (
            self.applies(permission)
            and like(action, permission.action, ignore_case=True)
            and like(resource, permission.resource)
        )


@dataclass(frozen=True)
class Policy:
    statements: tuple[Statement, ...]

    def allows(self, permission: Permission) -> bool:
        """Return whether a statement allows it, and none denies it."""
        met = [each for each in self.statements if each.applies(permission)]
        return bool(met) and all(each.allow for each in met)

    def without(self, sid: str) -> Policy:
        """Return this policy but for one of its statements. Raises KeyError where it has none of that name."""
        if sid not in {each.sid for each in self.statements}:
            raise KeyError(sid)
        return Policy(tuple(each for each in self.statements if each.sid != sid))

    def unused(self, permissions: Sequence[Permission]) -> set[tuple[str, str, str]]:
        """Return what is allowed and none of `permissions` needs: (sid, action, resource)."""
        return {
            piece
            for statement in self.statements
            if statement.allow
            for piece in statement.pieces()
            if not any(statement.uses(piece, each) for each in permissions)
        }


def read_policy(text: str) -> Policy:
    """Read a policy's JSON. Raises ValueError for what is not understood here."""
    document = json.loads(text)
    if document.get("Version") != "2012-10-17":
        raise ValueError('the policy lacks "Version": "2012-10-17"')
    return Policy(tuple(_statement(each) for each in document["Statement"]))


def like(pattern: str, text: str, *, ignore_case: bool = False) -> bool:
    """Return whether `text` fits `pattern`, in which * stands for any characters and ? for one."""
    return _expression(pattern, ignore_case=ignore_case).fullmatch(text) is not None


@cache
def _expression(pattern: str, *, ignore_case: bool) -> re.Pattern[str]:
    if "${" in pattern:
        raise ValueError(f'policy variables are not understood here: "{pattern}"')
    expression = "".join({"*": ".*", "?": "."}.get(each) or re.escape(each) for each in pattern)
    return re.compile(expression, re.DOTALL | (re.IGNORECASE if ignore_case else 0))


def _statement(found: Mapping[str, Any]) -> Statement:
    if unknown := found.keys() - _KEYS:
        raise ValueError(f"{', '.join(sorted(unknown))} of a statement is not understood here")
    if found["Effect"] not in ("Allow", "Deny"):
        raise ValueError(f'"{found["Effect"]}" is not an effect')
    conditions = [
        (operator, key, _listed(values))
        for operator, keys in found.get("Condition", {}).items()
        for key, values in keys.items()
    ]
    for operator, key, values in conditions:
        _holds(operator, key, values, {})  # whether it is understood
    return Statement(
        sid=found.get("Sid", ""),
        allow=found["Effect"] == "Allow",
        actions=_listed(found["Action"]),
        resources=_listed(found["Resource"]),
        conditions=tuple(conditions),
    )


def _holds(operator: str, key: str, values: Sequence[str], context: Mapping[str, str]) -> bool:
    # Keys are compared without regard to case; so are those of tags, which follow the slash.
    value = {name.lower(): value for name, value in context.items()}.get(key.lower())
    if operator == "Null":
        return any((value is None) == (each == "true") for each in values)
    if operator in ("ArnEquals", "StringEquals"):
        return value is not None and value in values
    if operator == "StringLike":
        return value is not None and any(like(each, value) for each in values)
    if operator == "ArnLike":
        return value is not None and any(_is_arn_like(each, value) for each in values)
    raise ValueError(f"the condition operator {operator} is not understood here")


def _is_arn_like(pattern: str, arn: str) -> bool:
    """Return whether each of the six parts between colons is like that of the pattern; a `*` does not reach beyond its part."""
    wanted, given = pattern.split(":", 5), arn.split(":", 5)
    return len(wanted) == len(given) and all(map(like, wanted, given))


def _listed(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
