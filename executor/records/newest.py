"""Reads the newest part of a job's record at a bounded cost, for views that need not read every record."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from bai_agent.job.record import JobRecord, NodeRecord
from bai_agent.job.record_types import JobResult
from executor.records.generation_status import GenerationStatus, generation_status
from executor.records.nodes import NodeListing
from executor.records.reading import LineStream, events_in, records_in, result_of
from executor.records.run_state import RunState
from executor.records.statistics import Measurements

NODES = 16
"""Maximum number of nodes whose records are read. If a job has more nodes, only the first nodes are read."""
_KEPT = 2**16
"""Maximum number of bytes of a node's newest records that each read parses."""
_WINDOW_HERE, _WINDOW_AWAY = 2**22, 2**15
"""Number of bytes of a node's records that each read searches for the last sample of the host: on this
machine, and elsewhere."""
_OBJECTS = 8
"""Maximum number of pieces of a node's records that one read fetches. In a bucket, each piece is from one
object."""
_SAMPLE = 2**13
"""Maximum size of one sample of a host (bytes)."""
_HOST = b'"src":"host"'
_EVENT_PIECES = 4


class NewestRecords:
    """Reads only the newest records of a node. If records arrive too fast, some records are skipped."""

    def __init__(self, node: NodeRecord) -> None:
        self._node = node
        self._window = _WINDOW_HERE if node.job.store.folder is not None else _WINDOW_AWAY
        self._position = 0
        self.skipped = 0
        """Number of bytes of records that were not parsed."""

    def read(self) -> bytes:
        """Return the latest new whole lines, and the last sample of the host before these lines. Raises
        StoreError."""
        size = self._node.size("metrics")
        if size < self._position:
            self._position = 0
        if size == self._position:
            return b""
        start = max(self._position, size - self._window)
        is_jump = start > self._position
        self.skipped += start - self._position
        content = self._read(start, size)
        begin = content.find(b"\n") + 1 if is_jump else 0
        end = content.rfind(b"\n") + 1
        if not end and len(content) >= self._window:
            # This line is longer than any valid record, so it is skipped.
            begin = end = len(content)
        self._position = start + end
        content = content[begin:end]
        if len(content) <= _KEPT:
            return content
        cut = content.find(b"\n", len(content) - _KEPT) + 1
        self.skipped += cut
        return _last_sample(content, cut) + content[cut:]

    def _read(self, start: int, end: int) -> bytes:
        """Return the content from `start` to about `end`. In a bucket the content is spread over several
        objects."""
        pieces: list[bytes] = []
        while start < end and len(pieces) < _OBJECTS:
            piece = self._node.read("metrics", start, limit=self._window)
            if not piece:
                break
            pieces.append(piece)
            start += len(piece)
        return b"".join(pieces)


def _last_sample(content: bytes, end: int) -> bytes:
    """Return the lines in `content` with the last sample of the host before the position `end`."""
    found = content.rfind(_HOST, 0, end)
    if found < 0:
        return b""
    last = content.find(b"\n", found) + 1
    start = max(0, found - _SAMPLE)
    lines = content[start:last].splitlines(keepends=True)[1 if start else 0 :]
    return b"".join(line for line in lines if _HOST in line)


class _NewestOfNode(NamedTuple):
    events: LineStream
    records: NewestRecords


class JobGlance:
    """The state of a job as its record shows it: phases, newest values and result. Only the job store is
    read; EC2 is not queried."""

    def __init__(self, record: JobRecord) -> None:
        self._record = record
        self.job = record.job()
        self.measurements = Measurements(self.job)
        """Last values and trends of the records that were read. The statistics of `measurements` lack the
        records that were skipped."""
        self._listing = NodeListing(record)
        self._nodes: dict[int, _NewestOfNode] = {}
        self.states: dict[int, RunState] = {}
        """States of the nodes, by the node's number."""
        self.generation: GenerationStatus | None = None
        """The newest generation of an elastic job."""
        self._list_nodes()
        self.result: JobResult | None = None
        self.repeat: int | None = None
        """The newest run, if the job runs its benchmark repeatedly."""

    @property
    def state(self) -> RunState:
        """Phase of the node that decides for the job: the first node or, in an elastic job, the node with
        rank 0."""
        first = self.generation.leader if self.generation is not None else 0
        return self.states.get(first) or self.states[min(self.states)]

    @property
    def skipped(self) -> int:
        """Number of bytes of records that were skipped."""
        return sum(each.records.skipped for each in self._nodes.values())

    @property
    def last_heard(self) -> int | None:
        """Time of the last observed write of the job (ms UTC)."""
        times = [self.measurements.last_timestamp, *(each.last_event for each in self.states.values())]
        return max((each for each in times if each is not None), default=None)

    def look(self) -> None:
        """Read the new content of the job's record. Raises StoreError."""
        # The result is read first, so that this read gets everything that was written before the result.
        result = result_of(self._record)
        if self._listing.is_elastic:
            self.generation = generation_status(self._record, self.job)
        self._list_nodes()
        for number, node in self._nodes.items():
            for content in islice(node.events.pieces(), _EVENT_PIECES):
                self.states[number].apply_all(events_in(content))
            if records := node.records.read():
                self.measurements.add_lines(records, rank=number if self.job.strategy.nodes > 1 else None)
                self._note_repeat(records)
        self.result = result

    def _list_nodes(self) -> None:
        """List the nodes to read: the first nodes of a job with a fixed number of nodes, or the newest nodes
        of an elastic job."""
        found = self._listing.look()
        self.node_count = len(found)
        for node in found[-NODES:] if self._listing.is_elastic else found[:NODES]:
            if node.rank not in self._nodes:
                self._nodes[node.rank] = _NewestOfNode(LineStream(node, "events"), NewestRecords(node))
                self.states[node.rank] = RunState()

    def _note_repeat(self, records: bytes) -> None:
        last = records[records.rfind(b"\n", 0, -1) + 1 :]
        for each in records_in(last):
            repeat = each.get("repeat")
            if type(repeat) is int and repeat >= 0:
                self.repeat = repeat
