"""Sends the records of `metrics.jsonl` to CloudWatch Logs as log events, from which CloudWatch extracts
metrics.

A separate thread sends the records. As with Kafka, the file `metrics.jsonl` is the buffer.
`cloudwatch.offset` advances after CloudWatch has accepted a batch.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bai_agent.aws.credentials import find_keys, region_in
from bai_agent.aws.imds import Keys
from bai_agent.aws.json_service import ask
from bai_agent.backoff import Backoff
from bai_agent.errors import CredentialsError, ServiceError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.sink_tables import CloudWatch
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir
from bai_agent.job.schema.field_types import MOST_DIMENSIONS
from bai_agent.light_dataclass import dataclass, field
from bai_agent.sinks.backlog import (
    MAX_RECORDS,
    Backlog,
    Batch,
    Record,
    labels_of,
    read_progress,
    read_wanted,
    write_progress,
)
from bai_agent.sinks.sink import Delivery, SinkThread

log = logging.getLogger(__name__)

LOOK_S = 1.0
SEND_S = 5.0
"""Records are collected for this long before they are sent (seconds). Records with the same time share an
event, and each request costs money."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0

# Limits of a request, https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutLogEvents.html
_MOST_EVENTS = 10_000
_MOST_BYTES = 1_048_576
_BYTES_BESIDE = 26
"""Number of bytes that CloudWatch counts for each event in addition to its text."""
_LONGEST_SPAN_MS = 24 * 3600 * 1000

# Limits of an event in the embedded metric format,
# https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
_MOST_METRICS = 100
_MOST_VALUES = 100
_LONGEST_EVENT = 256 * 1024
_LONGEST_NAME, _LONGEST_VALUE = 255, 1024
_LARGEST, _SMALLEST = 1.174271e108, 8.515920e-109
"""Largest and smallest absolute value that CloudWatch accepts. It also accepts 0."""
_NOT_PRINTABLE = re.compile(r"[^\x20-\x7e]")
_NO_DIMENSIONS = frozenset(["action-id", "parent-action-id"])
"""Labels whose values differ between all jobs. These labels are not dimensions, because each of their values would create a
metric, which costs money."""

_NAMED = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "Seconds"),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), "Milliseconds"),
    **dict.fromkeys(("us", "µs", "usec", "microsecond", "microseconds"), "Microseconds"),
    **dict.fromkeys(("%", "percent", "pct"), "Percent"),
    "count": "Count",
}
_PREFIXES = {"": "", "k": "Kilo", "K": "Kilo", "M": "Mega", "G": "Giga", "T": "Tera"}
_AMOUNT = re.compile(r"(?P<prefix>[kKMGT]?)(?P<kind>B|[bB]ytes?|b|[bB]its?)(?P<rate>/s|/sec|ps)?")
_COUNT_RATE = re.compile(r"(?:1|[A-Za-z_ ]+)?/s(?:ec|econd)?")


class CloudWatchSink(SinkThread):
    """Reads `metrics.jsonl` from the position in `cloudwatch.offset` on, and sends each record at least
    once."""

    def __init__(
        self,
        job: Job,
        rundir: RunDir,
        *,
        rank: int,
        redactor: Redactor | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """redactor: not used here, but all sinks get the same arguments."""
        super().__init__("CloudWatch")
        if job.cloudwatch is None:
            raise ValueError("the job names no CloudWatch")
        table = self._table = job.cloudwatch
        region = job.store.region if job.store is not None else None
        self._stream = LogStream(table, f"{job.job.id}/{rank}", region=region, environment=environment)
        self._writer = EventWriter(table, labels_of(job, rank=rank))
        wanted = partial(read_wanted, host_metrics=table.host_metrics)
        self._backlog: Backlog[Record] = Backlog(rundir.metrics, wanted)
        self._offset_file = rundir.cloudwatch_offset
        self._progress = read_progress(rundir.cloudwatch_offset)
        self._batch: Batch[Record] | None = None
        self._requests: deque[list[LogEvent]] = deque()
        self._refused = 0
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._sent_at = time.monotonic()

    def _summary(self, deadline: float) -> Delivery:
        done = self._progress
        left = self._backlog.count(done.offset, deadline=deadline, host_metrics=self._table.host_metrics)
        return Delivery.of(
            delivered=done.delivered,
            undelivered=left + done.refused + done.malformed,
            what="values",
            place="CloudWatch",
            why=self._error or self._why(),
        )

    def _round(self, *, last: bool) -> float | None:
        try:
            return self._send(last=last)
        except (ServiceError, OSError) as error:
            self._failed(str(error))
            if last and not getattr(error, "passes", False):
                return None
            return self._backoff.next()

    def _send(self, *, last: bool) -> float | None:
        """Send a batch if it is due. Return the seconds until the next batch is due, or None if everything
        has been sent. Raises ServiceError, OSError."""
        if self._batch is None:
            batch = self._backlog.read(self._progress.offset)
            if batch.end == self._progress.offset:
                return None if last else LOOK_S
            due = last or self._hurried or time.monotonic() >= self._sent_at + SEND_S
            if not due and len(batch.messages) < MAX_RECORDS:
                return LOOK_S
            events, self._refused = self._writer.events(batch.messages)
            self._batch, self._requests = batch, deque(requests_of(events))
        while self._requests:
            self._refused += self._stream.put(self._requests[0])
            self._requests.popleft()
        self._advance(self._batch)
        return 0.0

    def _advance(self, batch: Batch[Record]) -> None:
        self._progress = self._progress.after(batch, refused=self._refused)
        self._batch, self._hurried, self._sent_at = None, False, time.monotonic()
        self._error = None
        self._backoff.reset()
        try:
            write_progress(self._offset_file, self._progress)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._offset_file, error.strerror)

    def _why(self) -> str:
        if self._progress.refused:
            return f"CloudWatch refuses {self._progress.refused} of them: too old, too large, or out of range"
        if self._progress.malformed:
            return f"{self._progress.malformed} lines of metrics.jsonl are not records"
        return "the time was over (limits.drain)"


class LogStream:
    """A log stream in CloudWatch Logs, which is created when its first events are sent."""

    def __init__(
        self, table: CloudWatch, name: str, *, region: str | None, environment: Mapping[str, str] = os.environ
    ) -> None:
        """region: region if neither the descriptor's table nor the environment names one. None for the region
        of this EC2 instance."""
        self._group = table.log_group
        self._name = name
        self._region = table.region or region_in(environment) or region
        self._environment = environment
        self._keys: Callable[[], Keys] | None = None
        self._created = False

    def put(self, events: Sequence[LogEvent]) -> int:
        """Append the events of one request to the log stream, the oldest first. Return the number of records
        that CloudWatch refused. Raises ServiceError."""
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
            # An earlier agent of this node has possibly created the stream.
            if error.code != "ResourceAlreadyExistsException":
                raise
        self._created = True

    def _ask(self, action: str, **question: object) -> Mapping[str, object]:
        names = {"logGroupName": self._group, "logStreamName": self._name}
        try:
            self._keys = self._keys or find_keys(self._environment)
            return ask(
                "logs",
                f"Logs_20140328.{action}",
                {**names, **question},
                environment=self._environment,
                find=self._keys,
                region=self._region,
                tries=1,
            )
        except CredentialsError as error:
            raise ServiceError(str(error)) from error
        except ServiceError as error:
            if error.code == "ResourceNotFoundException":
                # Somebody has possibly deleted the stream together with its group.
                self._created = False
                advice = f"create it: aws logs create-log-group --log-group-name {self._group}"
                raise ServiceError(
                    f"the log group {self._group} does not exist; {advice}", code=error.code
                ) from error
            if error.code == "AccessDeniedException":
                raise ServiceError(f"{error}; docs/iam.md has the permissions", code=error.code) from error
            raise


def requests_of(events: Sequence[LogEvent]) -> Iterator[list[LogEvent]]:
    """Split `events`, of which the oldest is first, into requests that CloudWatch accepts."""
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
    """Return the number of records in the events that CloudWatch calls too old or too new."""
    old_ends = [rejected.get(key) for key in ("tooOldLogEventEndIndex", "expiredLogEventEndIndex")]
    first = max((end for end in old_ends if isinstance(end, int)), default=0)
    new = rejected.get("tooNewLogEventStartIndex")
    last = new if isinstance(new, int) else len(events)
    return sum(each.records for index, each in enumerate(events) if not first <= index < last)


@dataclass(frozen=True)
class LogEvent:
    """A log event and the number of records in it."""

    timestamp: int
    """Time of the event (ms UTC)."""
    message: str
    records: int


@dataclass
class _Document:
    """The content of one log event: values with the same time and the same labels."""

    timestamp: int
    labels: dict[str, str]
    metrics: dict[str, tuple[str, list[float]]] = field(default_factory=dict)
    """The units and the values of each metric, by the metric's name."""

    def add(self, record: Record) -> bool:
        """Add a record. Return False if the record does not fit into this document."""
        name = _name(record.name)
        found = self.metrics.get(name)
        if found is None:
            if len(self.metrics) == _MOST_METRICS:
                return False
            self.metrics[name] = record.units, [record.value]
            return True
        units, values = found
        if units != record.units or len(values) == _MOST_VALUES:
            return False
        values.append(record.value)
        return True


class EventWriter:
    """Converts the records of one node of a job to log events."""

    def __init__(self, table: CloudWatch, labels: Mapping[str, str]) -> None:
        """labels: labels that are added to those of every record."""
        self._table = table
        self._labels = dict(labels)

    def events(self, records: Iterable[Record]) -> tuple[list[LogEvent], int]:
        """Return the events for `records`, the oldest first as CloudWatch requires, and the number of records
        that CloudWatch would refuse."""
        open_documents: dict[tuple[int, tuple[tuple[str, str], ...]], _Document] = {}
        documents: list[_Document] = []
        refused = 0
        for record in records:
            if record.value and not _SMALLEST <= abs(record.value) <= _LARGEST:
                refused += 1
                continue
            key = record.timestamp, tuple(record.labels.items())
            document = open_documents.get(key)
            if document is None or not document.add(record):
                document = _Document(record.timestamp, {**record.labels, **self._labels})
                document.add(record)
                documents.append(document)
                open_documents[key] = document
        events = []
        for document in documents:
            count = sum(len(values) for _, values in document.metrics.values())
            message = self._message(document)
            if len(message.encode("utf-8", "replace")) > _LONGEST_EVENT:
                refused += count
            else:
                events.append(LogEvent(document.timestamp, message, count))
        return sorted(events, key=lambda event: event.timestamp), refused

    def _message(self, document: _Document) -> str:
        dimensions = self._dimensions(document.labels)
        root: dict[str, Any] = {
            _name(label): value.encode("utf-8", "replace").decode()
            for label, value in document.labels.items()
        }
        root |= dimensions
        definitions = []
        for name, (units, values) in document.metrics.items():
            key = name
            while key in root or key == "_aws":
                key = f"{key[: _LONGEST_NAME - 6]}_value"
            root[key] = values[0] if len(values) == 1 else values
            definition: dict[str, Any] = {"Name": key}
            if unit := cloudwatch_unit(units):
                definition["Unit"] = unit
            if self._table.high_resolution:
                definition["StorageResolution"] = 1
            definitions.append(definition)
        directive = {
            "Namespace": self._table.namespace,
            "Dimensions": [list(dimensions)],
            "Metrics": definitions,
        }
        root["_aws"] = {"Timestamp": document.timestamp, "CloudWatchMetrics": [directive]}
        return json.dumps(root)

    def _dimensions(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Return the labels that are used as dimensions. Names and values are changed so that CloudWatch
        accepts them: printable ASCII, not empty, not too long."""
        names = self._table.dimensions
        if names is None:
            names = tuple(sorted(labels.keys() - _NO_DIMENSIONS))[:MOST_DIMENSIONS]
        return {_name(name): _value(labels[name]) for name in names if labels.get(name, "").strip()}


def cloudwatch_unit(units: str) -> str | None:
    """Return CloudWatch's name of the unit `units`; None if CloudWatch has no name for it, as for KiB, hours
    and nats.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_MetricDatum.html
    """
    if found := _NAMED.get(units):
        return found
    if amount := _AMOUNT.fullmatch(units):
        is_bytes = amount["kind"] == "B" or amount["kind"].lower().startswith("byte")
        name = (_PREFIXES[amount["prefix"]] + ("bytes" if is_bytes else "bits")).capitalize()
        return f"{name}/Second" if amount["rate"] else name
    return "Count/Second" if _COUNT_RATE.fullmatch(units) and not _is_size(units) else None


def _name(text: str) -> str:
    """Change `name` so that CloudWatch accepts it as the name of a metric or a dimension."""
    name = _NOT_PRINTABLE.sub("_", text).strip().lstrip(":")[:_LONGEST_NAME]
    return name if name not in ("", "_aws") else "_"


def _value(text: str) -> str:
    return _NOT_PRINTABLE.sub("_", text)[:_LONGEST_VALUE].strip() or "_"


def _is_size(units: str) -> bool:
    """Return whether `units` is an amount of data that CloudWatch has no name for, such as "MiB/s"."""
    return re.match(r"[KMGTPE]i?(?:B|b)", units) is not None
