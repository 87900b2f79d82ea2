"""Reads all metric records of a job into columns, one set per series, for code that needs every value. A
million records take about 24 MB of memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bai_agent.job.job_headlines import arm_of, labelled_name
from bai_agent.job.record import JobRecord, Stream
from executor.records.nodes import arms_of_runs, has_ranks, node_records
from executor.records.reading import HOST, RUN, LineStream, MalformedLines
from executor.records.series_lines import RANK_LABELS, SeriesBatch, SeriesReader

_PIECE = 4 * 2**20
"""Number of bytes of a stream that are read at once. In a bucket, a read of this size takes two requests."""
_RANK, _PROCESS_RANK = RANK_LABELS
OF_BENCHMARK = ("log", "emit", "exit", "file")
"""Sources of the benchmark's own measurements. The source "log" also stands for the log of a single
process."""


@dataclass(frozen=True, order=True)
class SeriesKey:
    """The key that identifies a series of a job."""

    src: str
    """Source of the series: "log" ("log/3" for a process with its own log), "emit", "exit", "file", "host" or
    "run"."""
    name: str
    labels: tuple[tuple[str, str], ...] = ()
    """Labels in sorted order, without the labels that identify the origin of a record."""
    rank: str | None = None
    """Number of the node in a job of several nodes; otherwise None."""
    process_rank: str | None = None
    repeat: int | None = None
    """Number of the run in a job that repeats its benchmark; otherwise None."""
    arm: str | None = None
    """Arm of the run in a job that compares arms; otherwise None."""
    generation: int | None = None
    """Generation of a job with restarts; None for a job without restarts."""

    @property
    def is_own(self) -> bool:
        """Whether the series is a measurement by bai, not by the benchmark."""
        return self.src in (HOST, RUN)

    @property
    def part(self) -> int | None:
        """Number of the run or generation; None if the job is a single run."""
        return self.repeat if self.repeat is not None else self.generation

    @property
    def part_words(self) -> str:
        """Text that names the run or generation."""
        return f"repeat {self.repeat}" if self.generation is None else f"generation {self.generation}"

    @property
    def labelled(self) -> str:
        """The metric's name with its labels, for example "latency{threads=4}"."""
        return labelled_name(self.name, self.labels)

    @property
    def place(self) -> tuple[tuple[str, tuple[tuple[str, str], ...]], int | None]:
        """Metric with its labels, and generation: an item for `LastGenerations`."""
        return (self.name, self.labels), self.generation


@dataclass
class PointSeries:
    """The values of one series, in the order in which they were read."""

    key: SeriesKey
    units: str = ""
    timestamps: array[int] = field(default_factory=lambda: array("q"))
    """Times at which the values were read (ms UTC)."""
    values: array[float] = field(default_factory=lambda: array("d"))
    """The values. No value is beyond `LIMIT`."""
    steps: array[float] | None = None
    """Step of each value, NaN for a record without a step; None if no record has a step."""

    def __len__(self) -> int:
        return len(self.values)

    def extend(self, batch: SeriesBatch) -> None:
        """Add the times, values and steps of records."""
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
        """sources: if set, only records from these sources are read. arms: the arm of each run, in a job that
        compares arms."""
        self.series: dict[SeriesKey, PointSeries] = {}
        self.malformed = MalformedLines()
        self.records = 0
        """Number of records, from any source."""
        self.late = 0
        """Number of records that the agent read only after a restart. The times of late records are not the
        times at which the benchmark printed the values."""
        self.beyond = 0
        """Number of records whose values are beyond `LIMIT`. Records with values beyond `LIMIT` are in no
        series."""
        self._sources = sources
        self._arms = arms
        self._reader = SeriesReader(self._key_of)

    def add_lines(self, content: bytes, *, rank: int | None = None) -> None:
        """Add whole lines of `metrics.jsonl`. rank: number of the node, in a job of several nodes."""
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
        """Return the key of the series that a valid record belongs to; None if the record's source was not
        requested."""
        # "log/3" is the log of one process, "log/3/0" the log of one run of this process. `SeriesKey` has the
        # run's number in a separate field.
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
    """Return all metric records of a job, from all of its nodes. With several nodes, the records have their
    ranks. Raises StoreError.

    A last line without a newline is left out. sources: as for `Points`.
    """
    points = Points(sources=sources, arms=arms_of_runs(record))
    ranked = has_ranks(record)
    for node in node_records(record):
        for content in LineStream(node, stream, piece=_PIECE).pieces():
            points.add_lines(content, rank=node.rank if ranked else None)
    return points
