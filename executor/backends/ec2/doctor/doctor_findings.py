"""The findings of `bai doctor`."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from bai_agent.errors import BaiError, DescriptorError
from bai_agent.light_dataclass import dataclass
from executor.backends.ec2.session import FAILURES, Failure, aws_error, is_denied
from executor.errors import PlanError, UsageError


class Health(str, Enum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The check could not be made, which is not necessarily a problem."""


@dataclass(frozen=True)
class HealthFinding:
    """One requirement of a job, and whether the requirement is fulfilled."""

    check: str
    health: Health
    sentence: str
    todo: str = ""
    """Remedy; empty if there is nothing to do."""
    configuration: bool = False
    """Whether the configuration or the descriptor has to be corrected."""

    def as_table(self) -> dict[str, str | None]:
        """Return the finding as JSON values."""
        return {
            "check": self.check,
            "health": self.health.value,
            "sentence": self.sentence,
            "todo": self.todo or None,
        }


def passed(check: str, sentence: str, todo: str = "") -> HealthFinding:
    return HealthFinding(check, Health.OK, sentence, todo)


def warned(check: str, sentence: str, todo: str = "") -> HealthFinding:
    return HealthFinding(check, Health.WARNING, sentence, todo)


def failed(check: str, sentence: str, todo: str = "", *, configuration: bool = False) -> HealthFinding:
    return HealthFinding(check, Health.FAILED, sentence, todo, configuration=configuration)


def unknown(check: str, sentence: str, todo: str = "") -> HealthFinding:
    return HealthFinding(check, Health.UNKNOWN, sentence, todo)


def unusable(check: str, error: BaiError) -> HealthFinding:
    """Return the finding that something cannot be used. The finding's reason is the message of `error`."""
    wrong = isinstance(error, (UsageError, DescriptorError, PlanError))
    return failed(check, str(error), configuration=wrong)


def refused(check: str, error: Failure) -> HealthFinding:
    """Return the finding that AWS refused a request, or did not answer."""
    return unusable(check, aws_error(error, doing="looking at it"))


def guarded(check: str, look: Callable[[], HealthFinding], *, denied: str = "") -> HealthFinding:
    """Return the finding of the check `look`. If AWS refuses the check's request or does not answer, return a
    finding that says so.

    denied: sentence of the finding if the credentials lack the permission for the check. A missing permission is
    not necessarily a problem. If `denied` is empty, a missing permission is a failed check.
    """
    try:
        return look()
    except FAILURES as error:
        return unknown(check, denied) if denied and is_denied(error) else refused(check, error)
    except BaiError as error:
        return unusable(check, error)
