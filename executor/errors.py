"""The errors of `bai`, whose messages are written for users, with the next step if there is one.

```
BaiError
  NextStepError
    UsageError
      DeadAgentError
      AwsCredentialsError
    NoResultError
  NotStartedError
    LaunchError
  ExtractError
  JobFetchError
  StillGoesOnError
  ScriptsError
  PlanError
  ExportError
  UnreadableEventError
  RefusedError
  SendError
  MessageTooLargeError
  WheelError
  AwsError
  UndecidedError
  AgentError
```
`FindingsError` and `NoCapacityError` are in the modules of the types that they carry.
"""

from __future__ import annotations

from bai_agent.errors import BaiError
from bai_agent.job.outcome import Outcome
from bai_agent.light_dataclass import dataclass


@dataclass(frozen=True)
class NextStep:
    """A command of `bai` that solves the problem. The command line adds the user's own options to it."""

    words: tuple[str, ...]
    """Words after `bai`."""
    effect: str
    """Effect of the command, for example "starts it again"."""


class NextStepError(BaiError):
    """An error with a command that may help."""

    def __init__(self, sentence: str, next_step: NextStep | None = None) -> None:
        super().__init__(sentence)
        self.next_step = next_step


class UsageError(NextStepError):
    """A request is invalid; the message says how to correct it."""


class DeadAgentError(UsageError):
    """The job has not ended, and its agent is dead."""


class AwsCredentialsError(UsageError):
    """No usable AWS credentials are available."""


class NotStartedError(BaiError):
    """A job ended before any of its processes ran; its result contains the reason."""

    def __init__(self, sentence: str, outcome: Outcome) -> None:
        super().__init__(sentence)
        self.outcome = outcome


class LaunchError(NotStartedError):
    """The launch was finally refused: no process runs, and the job has a result."""


class NoResultError(NextStepError):
    """The awaited result will never be written; the message contains the reason."""


class ExtractError(BaiError):
    """The log could not be searched to its end."""


class JobFetchError(BaiError):
    """A file in the folder differs from the job's file."""


class StillGoesOnError(BaiError):
    """The job did not end within the time to wait."""


class ScriptsError(BaiError):
    """The scripts' folder cannot be copied; the message names the file and the remedy."""


class PlanError(BaiError):
    """A valid descriptor cannot be run in the requested way."""


class ExportError(BaiError):
    """The other system, or its library, refused the job; the message names the remedy."""


class UnreadableEventError(BaiError):
    """A message is not an event, or cannot be answered."""


class RefusedError(BaiError):
    """A request cannot be run; the message is for the request's author."""


class SendError(BaiError):
    """Kafka did not accept a message; a later attempt may succeed."""


class MessageTooLargeError(BaiError):
    """Kafka will never accept a message, because it is too large."""


class WheelError(BaiError):
    """A wheel is not in the cache, and cannot be downloaded."""


class AwsError(BaiError):
    """AWS refused a request, or did not answer; the message names the call. `code` is AWS's error code; empty
    if AWS sent no code."""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class UndecidedError(BaiError):
    """It is unknown whether the job was launched. The launch can be repeated, and the job is launched only
    once."""


class AgentError(BaiError):
    """The agent of a local job cannot be started."""
