"""Reads the records of `metrics.jsonl` that have not been sent, in batches. Also adds the labels by which
other systems identify a job."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from bai_agent.decode import checked, parse_json
from bai_agent.errors import RecordError
from bai_agent.job.descriptor import Job
from bai_agent.job.record_types import Count
from bai_agent.job.run_directory import read_json
from bai_agent.light_dataclass import asdict, dataclass

_HOST = "host"
"""Value of `src` in records of the machine's own metrics."""


class Record(NamedTuple):
    """A value of a metric."""

    src: str
    name: str
    value: float
    units: str
    timestamp: int
    """Time of the value (ms UTC)."""
    seq: int
    labels: dict[str, str]
    """The record's own labels, including `repeat` or `generation`, but without the job's labels."""


def read_record(line: bytes) -> Record:
    """Return the record of one line. Raises RecordError if the line is not a record."""
    record = parse_json(line, where="metrics.jsonl")
    if not isinstance(record, dict):
        raise RecordError("not a JSON object")
    name, value, timestamp, seq = (record.get(key) for key in ("name", "value", "timestamp", "seq"))
    if not isinstance(name, str) or type(timestamp) is not int or type(seq) is not int:
        raise RecordError("name, timestamp or seq is missing")
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not is_finite(value):
        raise RecordError("the value is not a finite number")
    return Record(
        src=str(record.get("src", "")),
        name=name,
        value=value,
        units=str(record.get("units") or ""),
        timestamp=timestamp,
        seq=seq,
        labels=_own_labels(record),
    )


def read_wanted(line: bytes, *, host_metrics: bool) -> Record | None:
    """Return the record of one line. None if the record is one of the machine's own metrics and
    `host_metrics` is false. Raises RecordError."""
    record = read_record(line)
    return None if record.src == _HOST and not host_metrics else record


def _own_labels(record: Mapping[str, Any]) -> dict[str, str]:
    own = record.get("labels")
    labels = labels_in(own) if own is not None else {}
    if type(repeat := record.get("repeat")) is int:
        labels = {**labels, "repeat": str(repeat)}
    if type(generation := record.get("generation")) is int:
        # A metric can have a label of its own with this name.
        labels = {"generation": str(generation), **labels}
    return labels


def labels_of(job: Job, *, rank: int) -> dict[str, str]:
    """Return the labels from the job's descriptor, and the labels that identify the job, its client and its
    node."""
    identity = job.job
    labels = dict(identity.labels)
    # The identifying labels are added after the user's own labels, so that no user label can make a job look
    # like another job.
    labels["action-id"] = identity.action_id or identity.id
    labels["client-id"] = identity.client_id
    if identity.parent_action_id is not None:
        labels["parent-action-id"] = identity.parent_action_id
    if job.strategy.nodes > 1:
        labels["rank"] = str(rank)
    return labels


def labels_in(labels: object) -> dict[str, str]:
    """Return the labels of a record. Raises RecordError if the labels are malformed."""
    if not isinstance(labels, dict) or not all(isinstance(each, str) for each in labels.values()):
        raise RecordError("the labels are not an object of strings")
    return labels


def is_finite(value: float) -> bool:
    """Return whether `value` is finite and fits into a double."""
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of a double, which no reader could accept
        return False


T = TypeVar("T")

MAX_RECORDS = 2_000
MAX_BYTES = 400 * 1024
"""Largest total size of a batch's messages (bytes). With keys and headers, a batch of this size fits into one produce
request of the usual limit, 1 MiB."""
_READ = 512 * 1024
_HOST_RECORD = re.compile(rb'"src": ?"host"')


@dataclass(frozen=True, kw_only=True)
class SendProgress:
    """The progress of a sink, as stored in `kafka.offset`, `cloudwatch.offset` and `log-lines.offset`."""

    offset: Count = 0
    """Number of bytes of `metrics.jsonl`, or of the benchmark's output, that have been processed."""
    delivered: Count = 0
    """Number of messages that the receiver has acknowledged, or of lines that were written."""
    refused: Count = 0
    """Number of messages that the receiver has refused permanently, for example because they are too
    large."""
    malformed: Count = 0
    """Number of lines that are not records."""

    def after(self, batch: Batch[T], *, refused: int) -> SendProgress:
        """Return the progress after `batch` is finished. refused: number of messages of the batch that were
        refused."""
        return SendProgress(
            offset=batch.end,
            delivered=self.delivered + len(batch.messages) - refused,
            refused=self.refused + refused,
            malformed=self.malformed + batch.malformed,
        )


@dataclass(frozen=True, kw_only=True)
class Batch(Generic[T]):
    """The next messages to send, and the offset in the file after these messages."""

    messages: list[T]
    end: int
    malformed: int
    is_full: bool
    """Whether the batch ended at a size limit, so that the file possibly contains more records."""


class Backlog(Generic[T]):
    """Reads batches of messages from `metrics.jsonl`, from any offset on. Nothing is kept in memory between
    two batches."""

    def __init__(
        self, path: Path, write: Callable[[bytes], T | None], *, size: Callable[[T], int] = lambda _: 0
    ) -> None:
        """write: function that returns the message for a line, or None if the line must not be sent; raises
        RecordError if the line is not a record. size: function that returns a message's size (bytes).
        """
        self._path = path
        self._write = write
        self._size = size

    def read(self, offset: int) -> Batch[T]:
        """Return the batch that starts at `offset`. If there is no complete line yet, the batch ends at
        `offset`."""
        chunk = self._chunk(offset)
        messages: list[T] = []
        end, size, malformed = offset, 0, 0
        start = 0
        is_full = True
        while len(messages) < MAX_RECORDS and size < MAX_BYTES:
            newline = chunk.find(b"\n", start)
            if newline < 0:
                is_full = len(chunk) == _READ
                break
            try:
                message = self._write(chunk[start:newline])
            except RecordError:
                malformed += 1
            else:
                if message is not None:
                    messages.append(message)
                    size += self._size(message)
            start = newline + 1
            end = offset + start
        if end == offset and len(chunk) == _READ:
            # A line of this length cannot be a record, because records are shorter than half a mebibyte. The
            # rest of the line counts as one more malformed line.
            end, malformed = offset + len(chunk), 1
        return Batch(messages=messages, end=end, malformed=malformed, is_full=is_full)

    def count(self, offset: int, *, deadline: float, host_metrics: bool) -> int:
        """Return the number of complete lines after `offset` that must be sent. Lines that cannot be read by
        `deadline` are not counted."""
        lines = 0
        while chunk := self._chunk(offset):
            chunk = chunk[: chunk.rfind(b"\n") + 1]
            lines += chunk.count(b"\n")
            if not host_metrics:
                lines -= len(_HOST_RECORD.findall(chunk))
            offset += len(chunk)
            if not chunk or time.monotonic() > deadline:
                break
        return lines

    def _chunk(self, offset: int) -> bytes:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(descriptor, _READ, offset)
        finally:
            os.close(descriptor)


def read_progress(path: Path) -> SendProgress:
    """Return the progress in the file `path`. If the file cannot be read, return the progress at the
    beginning, because it is better to send messages twice than to lose them."""
    try:
        return checked(SendProgress, read_json(path), where=str(path))
    except RecordError:
        return SendProgress()


def write_progress(path: Path, progress: SendProgress) -> None:
    """Replace the file `path` by `progress`. Unlike a run's other files, this file is not synced to the disk.
    A kill of the process cannot undo a rename, and after a power loss, messages are at worst sent again. A
    sync for each batch would slow down a benchmark that uses the disk.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.touch(mode=0o600)
    temporary.write_text(json.dumps(asdict(progress)) + "\n")
    temporary.replace(path)
