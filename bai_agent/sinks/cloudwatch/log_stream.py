"""A log stream in CloudWatch Logs: https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutLogEvents.html."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from bai_agent.aws.credentials import credential_provider
from bai_agent.aws.imds import MetadataError, find_token, read
from bai_agent.aws.json_service import ServiceError, ask
from bai_agent.aws.s3_errors import S3Error
from bai_agent.job.descriptor import CloudWatch
from bai_agent.sinks.cloudwatch.emf import LogEvent

_MOST_EVENTS = 10_000
_MOST_BYTES = 1_048_576
_BYTES_BESIDE = 26
"""Counted for each event besides its text."""
_LONGEST_SPAN_MS = 24 * 3600 * 1000


class LogStream:
    """One log stream, created when the first events come."""

    def __init__(
        self, table: CloudWatch, name: str, *, region: str | None, environment: Mapping[str, str] = os.environ
    ) -> None:
        """region: where neither the table nor the environment names one; unset: the instance's."""
        self._group = table.log_group
        self._name = name
        self._region = table.region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
        self._region = self._region or region
        self._environment = environment
        self._credentials: Callable[[], Mapping[str, str]] | None = None
        self._created = False

    def put(self, events: Sequence[LogEvent]) -> int:
        """Append the events of one request, the oldest first; return how many records CloudWatch refused. Raises ServiceError."""
        if not self._created:
            self._create()
        answer = self._ask(
            "PutLogEvents",
            logEvents=[{"timestamp": each.timestamp, "message": each.message} for each in events],
        )
        rejected = answer.get("rejectedLogEventsInfo")
        return _refused(events, rejected) if isinstance(rejected, Mapping) else 0

    def _create(self) -> None:
        try:
            self._ask("CreateLogStream")
        except ServiceError as error:
            # By this node's agent before it was started again.
            if error.code != "ResourceAlreadyExistsException":
                raise
        self._created = True

    def _ask(self, action: str, **question: object) -> Mapping[str, object]:
        names = {"logGroupName": self._group, "logStreamName": self._name}
        try:
            return ask(
                "logs",
                f"Logs_20140328.{action}",
                {**names, **question},
                environment=self._signing_environment(),
                tries=1,
            )
        except ServiceError as error:
            if error.code == "ResourceNotFoundException":
                # Somebody may have deleted the stream, too.
                self._created = False
                advice = f"create it: aws logs create-log-group --log-group-name {self._group}"
                raise ServiceError(
                    f"the log group {self._group} is not there; {advice}", code=error.code
                ) from error
            if error.code == "AccessDeniedException":
                raise ServiceError(f"{error}; docs/iam.md has the permissions", code=error.code) from error
            raise

    def _signing_environment(self) -> Mapping[str, str]:
        """Return the environment with credentials and region in it, whatever they are found by."""
        environment = dict(self._environment)
        try:
            if self._credentials is None and (found := credential_provider(self._environment)) is not None:
                self._credentials = found  # type: ignore[assignment]
            if self._credentials is not None:
                keys = self._credentials()
                environment["AWS_ACCESS_KEY_ID"] = keys["access_key_id"]
                environment["AWS_SECRET_ACCESS_KEY"] = keys["secret_access_key"]
                environment["AWS_SESSION_TOKEN"] = keys.get("token") or ""
            if self._region is None and (token := find_token(self._environment)) is not None:
                self._region = read("placement/region", token=token, environment=self._environment)
        except (S3Error, MetadataError) as error:
            raise ServiceError(str(error), passes=isinstance(error, MetadataError)) from error
        if self._region is None:
            raise ServiceError("nothing says which region; add region to [cloudwatch], or set AWS_REGION")
        environment["AWS_REGION"] = self._region
        return environment


def requests_of(events: Sequence[LogEvent]) -> Iterator[list[LogEvent]]:
    """Yield `events`, the oldest first, in pieces that fit into one request each."""
    piece: list[LogEvent] = []
    size = 0
    for event in events:
        bytes_more = len(event.message.encode()) + _BYTES_BESIDE
        too_long = piece and event.timestamp - piece[0].timestamp >= _LONGEST_SPAN_MS
        if piece and (too_long or len(piece) == _MOST_EVENTS or size + bytes_more > _MOST_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(event)
        size += bytes_more
    if piece:
        yield piece


def _refused(events: Sequence[LogEvent], rejected: Mapping[str, object]) -> int:
    """Return how many records are in those events that CloudWatch calls too old or too new."""
    old_ends = [rejected.get(key) for key in ("tooOldLogEventEndIndex", "expiredLogEventEndIndex")]
    first = max((end for end in old_ends if isinstance(end, int)), default=0)
    new = rejected.get("tooNewLogEventStartIndex")
    last = new if isinstance(new, int) else len(events)
    return sum(each.records for index, each in enumerate(events) if not first <= index < last)
