"""All metric records of a job as columns, series by series: for what needs every value, where statistics do not do.

A million records take some 24 MB and a few seconds: what our own writer wrote is read by one pattern for all of a line,
and no object is made for a record.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bai_agent.job.job_headlines import labelled_name
from bai_agent.job.record import JobRecord, NodeRecord, Stream
from executor.records.follower import LineStream
from executor.records.nodes import arms_of_runs, node_records
from executor.records.reading import MalformedLines, is_number, records_in

_NUMBER = rb"-?(?:0|[1-9]\d{0,17})(?:\.\d{1,24})?(?:[eE][-+]?\d{1,2})?"
"""Such numbers are finite, whatever their digits are; others are left to the careful reading."""
_INTEGER = rb"(?:0|[1-9]\d{0,17})"
_TEXT = rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_REPEAT = rb'(?:,"repeat":' + _INTEGER + rb")?"
_LINE = re.compile(
    rb'^\{"seq":' + _INTEGER
    + rb',("src":' + _TEXT + _REPEAT + rb')'
    + rb',"off":' + _INTEGER + rb',"i":' + _INTEGER + rb',"k":' + _INTEGER
    + rb',"name":(' + _TEXT + rb'),"value":(' + _NUMBER + rb'),"units":(' + _TEXT + rb")"
    # Of at most 14 digits, it is before the latest time that there is.
    + rb',"timestamp":(0|[1-9]\d{0,13})(?:,"step":(' + _NUMBER + rb"))?"
    + rb'((?:,"labels":\{(?:' + _TEXT + rb": ?" + _TEXT + rb"(?:, ?)?)*\})?"
    + rb'(?:,"late":(?:true|false))?(?:,"gen":' + _INTEGER + rb")?" + _REPEAT + rb")\}$",
    re.MULTILINE,
)  # fmt: skip
"""A line as `bai_agent/metrics/records.py` writes it: what is the same for a whole series, and its three numbers."""

_PIECE = 4 * 2**20
"""Bytes of a stream that are read at once: in a bucket each piece is two requests."""
_RANK, _PROCESS_RANK = "rank", "process_rank"


@dataclass(frozen=True, order=True)
class SeriesKey:
    """What tells the series of a job apart."""

    src: str
    """"log", of a process with a log of its own "log/3", "emit", "exit", "file", "host", "run"."""
    name: str
    labels: tuple[tuple[str, str], ...] = ()
    """Sorted, without those that say where a record comes from."""
    rank: str | None = None
    """The node, in a job of several."""
    process_rank: str | None = None
    repeat: int | None = None
    """Which run of a job that runs its benchmark again and again; None where a job is one run."""
    arm: str | None = None
    """Which arm that run is of, in a job that compares some."""

    @property
    def labelled(self) -> str:
        """The metric's name with its labels: "latency{threads=4}"."""
        return labelled_name(self.name, self.labels)


@dataclass
class PointSeries:
    """The values of one series, in the order in which they were read."""

    key: SeriesKey
    units: str = ""
    timestamps: array[int] = field(default_factory=lambda: array("q"))
    """ms UTC, when each was read."""
    values: array[float] = field(default_factory=lambda: array("d"))
    """Finite."""
    steps: array[float] | None = None
    """Where records have them; NaN for one that has none."""

    def __len__(self) -> int:
        return len(self.values)

    def add_step(self, step: float | None) -> None:
        """Note the step of the newest value."""
        if self.steps is None:
            self.steps = array("d", [math.nan]) * (len(self.values) - 1)
        self.steps.append(math.nan if step is None else step)


class Points:
    """The series of a job, in the order in which their first records were read."""

    def __init__(self, *, sources: Collection[str] | None = None, arms: Sequence[str] = ()) -> None:
        """sources: only records that come from these; unset: all. arms: the arm of each run, in a job that compares some."""
        self.series: dict[SeriesKey, PointSeries] = {}
        self.malformed = MalformedLines()
        self.records = 0
        """How many there were, of any source."""
        self.late = 0
        """Of them, those that were read only after a restart: their times are of the reading."""
        self._sources = sources
        self._arms = arms
        self._known: dict[tuple[Any, ...], _Writer | None] = {}
        """By the bytes that all records of a series share: where its values go; None: they are no records."""

    def add_lines(self, content: bytes, *, rank: int | None = None) -> None:
        """Take in whole lines of `metrics.jsonl`. rank: of the node, in a job of several."""
        found = _LINE.findall(content)
        # What another version or another tool wrote, or somebody has damaged, is read with care: all around it too, as the
        # order counts.
        taken = self._fast(found, rank) if len(found) == content.count(b"\n") else self._slow(content, rank)
        self.records += taken
        self.malformed.add(content, taken=taken)

    def _fast(self, found: Iterable[tuple[bytes, ...]], rank: int | None) -> int:
        known = self._known
        taken = late = 0
        for head, name, value, units, timestamp, step, tail in found:
            key = (head, name, units, tail, rank)
            if key not in known:
                known[key] = self._writer(head, name, units, tail, rank=rank)
            writer = known[key]
            if writer is None:
                continue
            taken += 1
            late += writer.late
            if writer.series is not None:
                writer.add_time(int(timestamp))
                writer.add_value(float(value))
                if step or writer.series.steps is not None:
                    writer.series.add_step(float(step) if step else None)
        self.late += late
        return taken

    def _slow(self, content: bytes, rank: int | None) -> int:
        taken = 0
        for record in records_in(content):
            taken += 1
            self.late += record.get("late") is True
            series = self._series_of(record, rank)
            if series is None:
                continue
            series.timestamps.append(record["timestamp"])
            series.values.append(float(record["value"]))
            step: Any = record.get("step")
            if is_number(step) or series.steps is not None:
                series.add_step(float(step) if is_number(step) else None)
        return taken

    def _writer(
        self, head: bytes, name: bytes, units: bytes, tail: bytes, *, rank: int | None
    ) -> _Writer | None:
        """Return where records go that differ from this one in their numbers alone; None where they are none."""
        line = b'{%b,"name":%b,"value":0,"units":%b,"timestamp":0%b}' % (head, name, units, tail)
        record = next(iter(records_in(line)), None)
        if record is None:
            return None
        series = self._series_of(record, rank)
        late = record.get("late") is True
        if series is None:
            return _Writer(None, late, _nothing, _nothing)
        return _Writer(series, late, series.timestamps.append, series.values.append)

    def _series_of(self, record: Mapping[str, Any], rank: int | None) -> PointSeries | None:
        """Return the series that a valid record belongs to; None where its source was not asked for."""
        # "log/3" is the log of one process, "log/3/0" that of one run of it; the run's number is the key's own.
        source, *process = record["src"].split("/")[:2]
        if self._sources is not None and source not in self._sources:
            return None
        labels = dict(record.get("labels") or {})
        # As `with_rank` does it: where a job has several nodes, their rank is the label.
        of_node = labels.pop(_RANK, None) if rank is None else str(rank)
        labels.pop(_RANK, None)
        number = record.get("repeat")
        repeat = number if type(number) is int else None
        key = SeriesKey(
            src="/".join([source, *process]),
            name=record["name"],
            rank=of_node,
            process_rank=labels.pop(_PROCESS_RANK, None),
            labels=tuple(sorted(labels.items())),
            repeat=repeat,
            arm=self._arms[repeat] if repeat is not None and repeat < len(self._arms) else None,
        )
        series = self.series.get(key)
        if series is None:
            series = self.series[key] = PointSeries(key, record.get("units") or "")
        return series


class _Writer(NamedTuple):
    series: PointSeries | None
    late: bool
    add_time: Callable[[int], None]
    add_value: Callable[[float], None]


def _nothing(value: float) -> None:
    return


def read_points(
    record: JobRecord, stream: Stream = "metrics", *, sources: Collection[str] | None = None
) -> Points:
    """Return all metric records of a job, of all its nodes; of several with their ranks. Raises StoreError.

    A last line without a newline is left out. sources: as for `Points`.
    """
    points = Points(sources=sources, arms=arms_of_runs(record))
    nodes = node_records(record)
    for node in nodes:
        for content in _contents(node, stream):
            points.add_lines(content, rank=node.rank if len(nodes) > 1 else None)
    return points


def _contents(node: NodeRecord, stream: Stream) -> Iterator[bytes]:
    lines, more = LineStream(node, stream, piece=_PIECE), True
    while more:
        content, more = lines.read()
        yield content
