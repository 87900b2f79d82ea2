"""The errors of `bai`. The messages of these errors are written for users. A message may suggest the next
command.

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
    """A `bai` command that solves the problem of an error. `bai` adds the user's own options to the command
    before it is shown."""

    words: tuple[str, ...]
    """Words after `bai`."""
    effect: str
    """Effect of the command, for example "starts it again"."""


class NextStepError(BaiError):
    """An error that may suggest a command."""

    def __init__(self, sentence: str, next_step: NextStep | None = None) -> None:
        super().__init__(sentence)
        self.next_step = next_step


class UsageError(NextStepError):
    """The user's request is invalid. The message says how to correct the request."""


class DeadAgentError(UsageError):
    """The job has not ended, and its agent is dead."""


class AwsCredentialsError(UsageError):
    """No usable AWS credentials are available."""


class NotStartedError(BaiError):
    """A job ended before any of its processes ran. The job's result contains the reason."""

    def __init__(self, sentence: str, outcome: Outcome) -> None:
        super().__init__(sentence)
        self.outcome = outcome


class LaunchError(NotStartedError):
    """The launch was refused, and is not retried. No process of the job runs, and the job has a result."""


class NoResultError(NextStepError):
    """The result that the user waits for will never be written; the message contains the reason."""


class ExtractError(BaiError):
    """A saved log could not be searched to its end."""


class JobFetchError(BaiError):
    """A file in the destination folder differs from the job's file of the same name."""


class StillGoesOnError(BaiError):
    """The job did not end within the time for which the caller wanted to wait."""


class ScriptsError(BaiError):
    """The scripts' folder cannot be copied. The message names the file that is the problem, and the
    remedy."""


class PlanError(BaiError):
    """The descriptor is valid, but the job cannot be run as the user has requested."""


class ExportError(BaiError):
    """The system to which a job is exported, or its library, refused the job; the message names the
    remedy."""


class UnreadableEventError(BaiError):
    """A message from Kafka is not an event, or is an event that cannot be answered."""


class RefusedError(BaiError):
    """The job of a service request cannot be run; the message is for the author of the request."""


class SendError(BaiError):
    """Kafka did not accept a message. A later attempt can succeed."""


class MessageTooLargeError(BaiError):
    """Kafka will never accept a message, because it is too large."""


class WheelError(BaiError):
    """A wheel for the agent's bundle is not in the cache and cannot be downloaded."""


class AwsError(BaiError):
    """AWS refused a request or did not answer. The message names the API call. `code` is AWS's error code;
    empty if AWS sent no code."""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class UndecidedError(BaiError):
    """It is unknown whether the job was launched. The user may repeat the launch; the job is still launched
    only once."""


class AgentError(BaiError):
    """The agent of a local job cannot be started."""
