"""The errors that are shown to users. Every message says what is wrong, where, and what to do.

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
Other exceptions are signals within one module and are never shown to users.
"""

from __future__ import annotations


class BaiError(Exception):
    """An expected error that one sentence describes. The error's text is shown to the user unchanged."""


class DescriptorError(BaiError):
    """A descriptor is wrong. The message names file, table and key."""


class BusyError(BaiError):
    """Another running process of bai holds the lock of this run directory."""


class StoreError(BaiError):
    """The job store cannot be read or written."""


class RecordError(StoreError):
    """The content of an object in the job store does not match the object's name. The object is corrupt, was
    written by another tool, or belongs to another version."""


class StoreRefusedError(StoreError):
    """The job store permanently refuses requests, because of a wrong bucket, missing rights or missing
    credentials."""


class MissingObjectError(StoreError):
    """No object has this key. S3 reports a missing object only to callers with permission to list the bucket.
    For objects that may be absent, use `find`."""


class PullError(BaiError):
    """A source cannot be pulled. The message names the source."""


class NoSpaceError(PullError):
    """The file system has too little room for a source. The message names the file system and the source."""


class PassingError(BaiError):
    """An error that may be temporary. `passes`: whether a later try may succeed."""

    def __init__(self, message: str, *, passes: bool = False) -> None:
        super().__init__(message)
        self.passes = passes


class ServiceError(PassingError):
    """A service refused a request or failed to answer it. The message is a part of a sentence and contains the
    error code."""

    def __init__(self, message: str, *, passes: bool = False, code: str = "") -> None:
        super().__init__(message, passes=passes)
        self.code = code
        """The service's own error code; empty if the service gave no error code."""


class MetadataError(PassingError):
    """The metadata service did not return the requested value. The message is a part of a sentence. status:
    HTTP status of the answer, if the service answered."""

    def __init__(self, message: str, *, status: int | None = None, passes: bool = False) -> None:
        super().__init__(message, passes=passes)
        self.status = status


class CredentialsError(BaiError):
    """There are no AWS credentials. The message is a part of a sentence."""


class PushError(PassingError):
    """The Pushgateway did not accept the metrics."""


class S3Error(BaiError):
    """A bucket cannot be used as requested. The message is a part of a sentence that follows the bucket's
    address."""


class SecretError(BaiError):
    """A reference to a secret cannot be resolved. The message names the reference, never the secret."""


class PullStopped(BaiError):  # noqa: N818 - an order that was obeyed is not an error
    """The caller stopped a pull. Data that has arrived is saved for the next attempt of this pull."""


class CheckpointError(BaiError):
    """A checkpoint cannot be captured, saved or restored. The error's message is only the reason, which
    callers print after a colon."""


class ConnectError(BaiError):
    """Kafka cannot be reached, or refuses the connection."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent
        """True if reconnecting cannot succeed until the user changes the configuration of Kafka or of the
        job."""


class NotAcknowledgedError(BaiError):
    """The Kafka broker has not acknowledged all messages of a batch."""


class ClaimedError(BaiError):
    """Another machine has already claimed this rank of this job."""


class WrongFormatError(BaiError):
    """A results file does not have the format that the job descriptor declares."""


class NotReadyError(BaiError):
    """The machine was not ready for the benchmark within the time limit."""


class ShimError(BaiError):
    """The benchmark's shim could not be started, so the benchmark did not run."""


class NoAnswerError(BaiError):
    """A program could not be run, or did not end in time. The message gives the reason."""


class SetupError(BaiError):
    """A requirement of the benchmark is missing on this machine."""
