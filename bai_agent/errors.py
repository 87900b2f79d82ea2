"""The errors that a person reads. Every message says what is wrong, where, and what to do.

```
BaiError
  DescriptorError
  BusyError
  StoreError
    RecordError
    StoreRefusedError
    MissingObjectError
  PullError
    NoSpaceError
  PassingError
    ServiceError
    MetadataError
    PushError
  CredentialsError
  S3Error
  SecretError
  PullStopped
  CheckpointError
  ConnectError
  NotAcknowledgedError
  ClaimedError
  WrongFormatError
  NotReadyError
  ShimError
  NoAnswerError
  SetupError
```
Other exceptions are signals within one module, and never reach a person.
"""

from __future__ import annotations


class BaiError(Exception):
    """An expected error that one sentence describes; its text is shown to the user unchanged."""


class DescriptorError(BaiError):
    """A descriptor is wrong: the message names file, table and key."""


class BusyError(BaiError):
    """Another live process of ours holds this run directory."""


class StoreError(BaiError):
    """The job store cannot be read or written."""


class RecordError(StoreError):
    """The content of an object does not fit its name: corrupt, written by another tool, or of another
    version."""


class StoreRefusedError(StoreError):
    """The store refuses permanently: a wrong bucket, missing rights, no credentials."""


class MissingObjectError(StoreError):
    """No object has this key. S3 reports this only to callers who may list; so use `find` for objects that
    may be absent."""


class PullError(BaiError):
    """A source cannot be pulled: the message names the source."""


class NoSpaceError(PullError):
    """The file system has too little room for a source: the message names both."""


class PassingError(BaiError):
    """`passes`: whether a later try may succeed."""

    def __init__(self, message: str, *, passes: bool = False) -> None:
        super().__init__(message)
        self.passes = passes


class ServiceError(PassingError):
    """A service refused or failed a request; the message is half a sentence with its code."""

    def __init__(self, message: str, *, passes: bool = False, code: str = "") -> None:
        super().__init__(message, passes=passes)
        self.code = code
        """The service's own error code; empty if it gave none."""


class MetadataError(PassingError):
    """The service did not give the requested value; the message is half a sentence. status: of its answer, if
    there was one."""

    def __init__(self, message: str, *, status: int | None = None, passes: bool = False) -> None:
        super().__init__(message, passes=passes)
        self.status = status


class CredentialsError(BaiError):
    """There are no AWS credentials; the message is half a sentence."""


class PushError(PassingError):
    """The Pushgateway did not take it."""


class S3Error(BaiError):
    """A bucket cannot be used as requested; the message is half a sentence that follows the address."""


class SecretError(BaiError):
    """A reference cannot be resolved; the message names the reference, never the secret."""


class PullStopped(BaiError):  # noqa: N818 - an order that was obeyed, no error
    """The caller asked to stop; the data that has arrived is kept for the next attempt."""


class CheckpointError(BaiError):
    """A checkpoint cannot be taken, kept or restored; the message says why, after a colon."""


class ConnectError(BaiError):
    """Kafka cannot be reached, or refuses the connection."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent
        """Retrying does not help: a person has to change something."""


class NotAcknowledgedError(BaiError):
    """The broker has not acknowledged all of a batch."""


class ClaimedError(BaiError):
    """Another machine has this rank of this job."""


class WrongFormatError(BaiError):
    """The file does not have the declared format."""


class NotReadyError(BaiError):
    """The machine is not ready for the benchmark, and the time for that is over."""


class ShimError(BaiError):
    """The benchmark's shim could not be started; the benchmark did not run."""


class NoAnswerError(BaiError):
    """A program did not run, or did not end in time; the message says why."""


class SetupError(BaiError):
    """A requirement of the benchmark does not exist on this machine."""
