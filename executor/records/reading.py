"""Reads and validates a job's records. Records are validated because many users and many versions of `bai`
write into the same bucket.

The message of a validation error names the object and the wrong key in the object. In streams, lines that are
not events or metric records are skipped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bai_agent.decode import checked, parse_json
from bai_agent.errors import DescriptorError, MissingObjectError, RecordError
from bai_agent.job.attempt import AttemptRecord, StopOrder
from bai_agent.job.record import JobRecord, NodeRecord, Stream
from bai_agent.job.record_types import JobResult, MetricRecord, RunEvent, event_of
from bai_agent.light_dataclass import dataclass
from executor.quantities import counted

PIECE = 2**20
"""Maximum number of bytes of a stream that one read takes."""
LONGEST_LINE = 16 * PIECE
"""Maximum length of a line of events or metrics (bytes). Lines written by bai have a few hundred bytes."""
_AT_ONCE = 16
"""Maximum number of objects that are read in parallel, and maximum number of files that are read without
threads."""
_LATEST = 2**47
HOST, RUN = "host", "run"
"""Sources of bai's own measurements: of a machine, and of a whole run."""
_UNITS = (str, type(None))
"""Valid types of a metric's units, which are None if missing."""


T = TypeVar("T")
R = TypeVar("R")


def read_each(read: Callable[[T], R], items: Sequence[T], *, folder: Path | None) -> list[R]:
    """Return the result of `read` for each item. The items are read in parallel, unless they are only a few
    files in `folder`."""
    if folder is not None and len(items) <= _AT_ONCE:
        return list(map(read, items))
    # The module is imported here because its import takes a tenth of the start of `bai list`.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(read, items))


def result_of(record: JobRecord) -> JobResult | None:
    """Return the result of the job. If the agent was killed after it had written the node's result but before
    the job's, return the node's result. None if there is no result. Raises StoreError, RecordError."""
    if (found := _result(record, record.key("result.json"))) is not None:
        return found
    # An elastic job continues without its first node, so the result of that node is not the result of the
    # job.
    try:
        found = node_result(record.node())
    except RecordError:
        if _is_elastic(record):
            return None
        raise
    return None if found is not None and _is_elastic(record) else found


def _is_elastic(record: JobRecord) -> bool:
    try:
        return record.job().is_elastic
    except (DescriptorError, MissingObjectError):
        return False


def node_result(node: NodeRecord) -> JobResult | None:
    """Return the result that a node wrote, or None. Raises StoreError, RecordError."""
    return _result(node.job, node.key("result.json"))


def stop_order(attempt: AttemptRecord) -> StopOrder | None:
    """Return the coordinator's order to end a job of several nodes; None if there is no order yet. Raises
    StoreError, RecordError."""
    return attempt.stop_order() if attempt.control().stop else None


class LineStream:
    """A growing stream, which is read in whole lines from its start."""

    def __init__(self, node: NodeRecord, stream: Stream, *, piece: int = PIECE) -> None:
        """piece: maximum number of bytes that one read takes, unless a line is longer."""
        self._node, self._stream = node, stream
        self._position = 0
        self._piece = self._limit = piece

    def pieces(self) -> Iterator[bytes]:
        """Yield all new whole lines, in pieces. Raises StoreError."""
        more = True
        while more:
            content, more = self.read()
            yield content

    def read(self) -> tuple[bytes, bool]:
        """Return the next whole lines, and whether there are more lines. Raises StoreError."""
        content = self._node.read(self._stream, self._position, limit=self._limit)
        end = content.rfind(b"\n") + 1
        more = len(content) == self._limit
        if more and not end and self._limit >= LONGEST_LINE:
            where = self._node.url(self._stream)
            raise RecordError(
                f"{where}: the line at byte {self._position:,} is longer than {LONGEST_LINE >> 20} MiB; no agent wrote that"
            )
        # The piece contains no line end, so a larger piece is read to reach the end of the line.
        self._limit = self._limit * 2 if more and not end else self._piece
        self._position += end
        return content[:end], more


def events_of(node: NodeRecord) -> Iterator[RunEvent]:
    """Yield all events of a node. Raises StoreError."""
    for content in LineStream(node, "events").pieces():
        yield from events_in(content)


def events_in(content: bytes) -> list[RunEvent]:
    """Return the events in whole lines of `events.jsonl`."""
    found = (_event(each) for each in _objects(content))
    return [each for each in found if each is not None]


def records_in(content: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the metric records in whole lines of `metrics.jsonl`."""
    for each in _objects(content):
        # Records are decoded without `MetricRecord`, because there may be a million records.
        if (
            type(each) is dict
            and type(each.get("name")) is str
            and type(each.get("src")) is str
            and type(each.get("units")) in _UNITS
            and is_number(each.get("value"))
            and type(each.get("timestamp")) is int
            and 0 <= each["timestamp"] < _LATEST
            and ("labels" not in each or each["labels"] is None or _are_labels(each["labels"]))
            and ("repeat" not in each or each["repeat"] is None or _is_part(each["repeat"]))
            and ("generation" not in each or each["generation"] is None or _is_part(each["generation"]))
        ):
            yield each


def is_number(value: Any) -> bool:
    """Return whether `value` is a finite number from JSON."""
    if type(value) is int:
        return -(10**308) < value < 10**308
    return type(value) is float and math.isfinite(value)


@dataclass
class MalformedLines:
    """Lines of `metrics.jsonl` that are not metric records."""

    count: int = 0
    first: bytes = b""

    def add(self, content: bytes, *, taken: int) -> None:
        """Count the malformed lines in `content`: all lines except `taken` records. content: whole lines."""
        if (lost := content.count(b"\n") - taken) > 0:
            self.count += lost
            lines = () if self.first else content.splitlines()
            self.first = self.first or next((line for line in lines if _why_no_record(line, where="x")), b"")

    def sentence(self, where: str) -> str:
        """Return a sentence with the number of malformed lines and the mistake in the first of them. where:
        beginning of the sentence."""
        why = _why_no_record(self.first, where=where)
        return f"{why} ({counted(self.count, 'line')} skipped)"


def _why_no_record(line: bytes, *, where: str) -> str:
    """Return why a line is not a metric record; "" if the line is a metric record."""
    try:
        checked(MetricRecord, parse_json(line, where=f"{where}: a line"), where=where)
    except RecordError as error:
        return str(error)
    return ""


def _result(record: JobRecord, key: str) -> JobResult | None:
    found = record.read_object(key)
    if found is None:
        return None
    return checked(JobResult, found, where=f"{record.store.url}/{key}")


def _event(table: Any) -> RunEvent | None:
    try:
        return event_of(table, where="events.jsonl")
    except RecordError:
        return None


def _is_part(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _are_labels(value: Any) -> bool:
    return type(value) is dict and all(type(each) is str for each in value.values())


def _objects(content: bytes) -> Iterator[Any]:
    lines = content.splitlines()
    try:
        # Decoding all lines with one call of the decoder is a third faster than one call per line.
        found = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        found = None
    if found is not None:
        yield from found
        return
    for line in lines:
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue
