"""All metric records of a job as columns, series by series, for whatever needs every value. A million take some 24 MB."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bai_agent.job.job_headlines import arm_of, labelled_name
from bai_agent.job.record import JobRecord, Stream
from executor.records.nodes import arms_of_runs, has_ranks, node_records
from executor.records.reading import LineStream, MalformedLines
from executor.records.series_lines import RANK_LABELS, SeriesBatch, SeriesReader

_PIECE = 4 * 2**20
"""Bytes of a stream that are read at once: in a bucket each piece is two requests."""
_RANK, _PROCESS_RANK = RANK_LABELS
HOST, RUN = "host", "run"
"""Sources of our own measurements: of a machine, and of a run as a whole."""
OF_BENCHMARK = ("log", "emit", "exit", "file")
"""The other sources; the log of one process is among them as "log"."""


@dataclass(frozen=True, order=True)
class SeriesKey:
    """The key that identifies a series of a job."""

    src: str
    """"log", of a process with a log of its own "log/3", "emit", "exit", "file", "host", "run"."""
    name: str
    labels: tuple[tuple[str, str], ...] = ()
    """Sorted, without the labels that say where a record comes from."""
    rank: str | None = None
    """The node, in a job of several."""
    process_rank: str | None = None
    repeat: int | None = None
    """Run of a job that repeats its benchmark; None if a job is one run."""
    arm: str | None = None
    """The arm of that run, in a job that compares several."""
    generation: int | None = None
    """Generation of a job with restarts; None for other jobs."""

    @property
    def is_own(self) -> bool:
        """Whether it is a measurement of ours, not of the benchmark."""
        return self.src in (HOST, RUN)

    @property
    def part(self) -> int | None:
        """The run or generation; None if a job is one run."""
        return self.repeat if self.repeat is not None else self.generation

    @property
    def part_words(self) -> str:
        """The run or generation for people."""
        return f"repeat {self.repeat}" if self.generation is None else f"generation {self.generation}"

    @property
    def labelled(self) -> str:
        """The metric's name with its labels: "latency{threads=4}"."""
        return labelled_name(self.name, self.labels)

    @property
    def place(self) -> tuple[tuple[str, tuple[tuple[str, str], ...]], int | None]:
        """Metric with labels, and generation: the arguments of `LastGenerations`."""
        return (self.name, self.labels), self.generation


@dataclass
class PointSeries:
    """The values of one series, in the order in which they were read."""

    key: SeriesKey
    units: str = ""
    timestamps: array[int] = field(default_factory=lambda: array("q"))
    """Times at which the values were read (ms UTC)."""
    values: array[float] = field(default_factory=lambda: array("d"))
    """None beyond `LIMIT`."""
    steps: array[float] | None = None
    """Step of each value; NaN for a record without one."""

    def __len__(self) -> int:
        return len(self.values)

    def extend(self, batch: SeriesBatch) -> None:
        """Add records."""
        timestamps, steps = batch.read_times()
        if self.steps is None and steps:
            self.steps = array("d", [math.nan]) * len(self)
        if self.steps is not None:
            self.steps.extend(steps or [math.nan] * len(batch.values))
        self.timestamps.extend(timestamps)
        self.values.extend(map(float, batch.values))


class Points:
    """The series of a job, in the order in which their first records were read."""

    def __init__(self, *, sources: Collection[str] | None = None, arms: Sequence[str] = ()) -> None:
        """sources: only records from these; unset: all. arms: the arm of each run, in a job that compares
        several."""
        self.series: dict[SeriesKey, PointSeries] = {}
        self.malformed = MalformedLines()
        self.records = 0
        """Number of records, from any source."""
        self.late = 0
        """Number of records that were read only after a restart: their times are those of the reading."""
        self.beyond = 0
        """Number of records whose values are beyond `LIMIT`; they are in no series."""
        self._sources = sources
        self._arms = arms
        self._reader = SeriesReader(self._key_of)

    def add_lines(self, content: bytes, *, rank: int | None = None) -> None:
        """Add whole lines of `metrics.jsonl`. rank: of the node, in a job of several."""
        lines = self._reader.read(content, rank=rank)
        self.records += lines.count
        self.late += lines.late
        self.malformed.add(content, taken=lines.count)
        for key, batch in lines.batches.items():
            self.beyond += batch.beyond
            if key is None or not batch.values:
                continue
            if key not in self.series:
                self.series[key] = PointSeries(key, batch.record.get("units") or "")
            self.series[key].extend(batch)

    def _key_of(self, record: Mapping[str, Any]) -> SeriesKey | None:
        """Return the series of a valid record; None if its source was not requested."""
        # "log/3" is the log of one process, "log/3/0" that of one run of it; the run's number is the key's
        # own.
        source, *process = record["src"].split("/")[:2]
        if self._sources is not None and source not in self._sources:
            return None
        labels = dict(record.get("labels") or {})
        repeat = record.get("repeat")
        return SeriesKey(
            src="/".join([source, *process]),
            name=record["name"],
            rank=labels.pop(_RANK, None),
            process_rank=labels.pop(_PROCESS_RANK, None),
            labels=tuple(sorted(labels.items())),
            repeat=repeat,
            arm=arm_of(repeat, self._arms),
            generation=record.get("generation"),
        )


def read_points(
    record: JobRecord, stream: Stream = "metrics", *, sources: Collection[str] | None = None
) -> Points:
    """Return all metric records of a job, of all its nodes; of several with their ranks. Raises StoreError.

    A last line without a newline is left out. sources: as for `Points`.
    """
    points = Points(sources=sources, arms=arms_of_runs(record))
    ranked = has_ranks(record)
    for node in node_records(record):
        for content in LineStream(node, stream, piece=_PIECE).pieces():
            points.add_lines(content, rank=node.rank if ranked else None)
    return points
