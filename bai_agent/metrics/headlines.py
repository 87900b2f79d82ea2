"""Computes the headlines of a node, which are single numbers that summarise its metrics. With headlines,
listings of many jobs need not read records.

Headlines are computed while records are written. If another process wrote some of the records, all records are read
once at the end. Values for medians that do not fit in memory are stored in a temporary file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bai_agent.job.descriptor.metric_tables import Headline, Metric
from bai_agent.job.figures import LIMIT
from bai_agent.job.job_headlines import (
    RunningHeadline,
    SeriesNumber,
    arm_of,
    generation_headlines,
    headline_values,
)
from bai_agent.job.record_types import HeadlineValue
from bai_agent.metrics.search.dense import Columns
from bai_agent.metrics.search.patterns import Found
from bai_agent.metrics.search.reading import LABELS
from bai_agent.metrics.spilled_values import SpilledValues, SpillFile

MOST_KEPT = 2_000_000
"""Maximum number of values that are held in memory for the medians of all series (16 MB). If there are more
values than this maximum, memory holds a sample."""
_MOST_SEARCHED = 500_000
"""Maximum number of values that are held in memory while a file is searched for a median."""
MOST_SERIES = 4096
"""Maximum number of series, over all runs. If there are more series, the series of the oldest generations are
dropped. If a job without generations has more series, listings show no headlines of the job."""
_MOST_METRICS = 16
_MOST_READS = 20
_PLACES = ("rank", "process_rank")
_CHUNK = 2**20

_Started = Callable[["int | None"], "int | None"]
"""Function that returns the start of the benchmark, or of a given repeat (ms UTC); None if unknown."""
_Key = tuple[str, tuple[tuple[str, str], ...], "str | None", "int | None"]
"""Metric, labels, process, repeat."""
_Group = tuple[str, str, "int | None"]
"""Metric's name, labels as members of a JSON object, and repeat."""

_TEXT = rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_RECORD = (
    rb'^\{"seq":\d+,"src":"(?!host"|run")[^"\n]+","off":\d+,"i":\d+,"k":\d+,"name":(%b),"value":(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?),"units":' + _TEXT
    + rb',"timestamp":(-?\d{1,18})(?:,"step":[^,}\n]+)?(?:,"labels":\{((?:' + _TEXT + rb": ?" + _TEXT + rb"(?:, ?)?)*)\})?"
    + rb'(?:,"late":true)?(?:,"gen":\d+)?(?:,"(?:repeat|generation)":(\d{1,18}))?\}$'
)  # fmt: skip
"""A record from output, `emit` or files, as `records.py` writes it: name, value, time, labels, repeat."""


class _Series:
    """Values of one series in one run, without the warm-up values."""

    def __init__(self, metric: Metric, running: RunningHeadline) -> None:
        self.metric = metric
        self.running = running
        self._warmup = metric.warmup_values
        """Number of warm-up values of the series that have not arrived yet."""
        self.spilled: SpilledValues | None = None
        """All values of the series in a file, if memory holds only a sample. None if memory holds all values,
        or if the disk is full."""

    def add(self, texts: Sequence[str | bytes], *, are_plain: bool) -> None:
        """Add the next values, in their order. Values beyond `LIMIT` are ignored. are_plain: whether `JSON`
        matches each value."""
        if not self._warmup and self.metric.headline is Headline.LAST:
            for text in reversed(texts):
                if -LIMIT <= (value := float(text)) <= LIMIT:
                    self.running.add((value,))
                    return
            return
        values = list(map(float, texts))
        # The exponent of a plain number has two digits.
        if not are_plain and (max(values) > LIMIT or min(values) < -LIMIT):
            values = [value for value in values if -LIMIT <= value <= LIMIT]
        left = self._warmup
        self._warmup = max(0, left - len(values))
        values = values[left:] if left else values
        self.running.add(values)
        if self.spilled is not None:
            try:
                self.spilled.add(values)
            except OSError:
                self.spilled = None

    def thin(self, file: SpillFile | None) -> None:
        """Keep only half of the series' values in memory. From now on, write all values of the series to `file`."""
        if file is not None and (values := self.running.all_values) is not None:
            with suppress(OSError):
                spilled = file.begin()
                spilled.add(values)
                self.spilled = spilled
        self.running.thin()

    def value(self, stopping: Callable[[], bool]) -> float | None:
        """Return the headline. Return None if the headline is still unknown. The caller must then add all values to the object
        that `running.again` returns."""
        found, running = self.running.value(), self.running
        for _ in range(_MOST_READS):
            if found is not None or self.spilled is None or stopping():
                break
            running = running.again()
            try:
                for block in self.spilled.blocks():
                    running.add(block)
                    while running.kept > _MOST_SEARCHED:
                        running.thin()
            except OSError:
                break
            found = running.value()
        return found


class NodeHeadlines(NamedTuple):
    """Headlines of a node, by metric with labels."""

    of_job: dict[str, HeadlineValue]
    of_generations: dict[int, dict[str, HeadlineValue]]
    """Headlines of each generation, by its number; empty if the job has no generations."""


class Headlines:
    """Computes the headlines of a job's first metrics from the records that this process writes."""

    def __init__(
        self,
        metrics: Sequence[Metric],
        *,
        started: _Started,
        restarts: bool = False,
        spill_folder: Path | None = None,
    ) -> None:
        """metrics: the metrics by their indexes. Metrics with patterns come first. restarts: whether each
        repeat is a generation.

        spill_folder: folder for values that do not fit in memory. If `spill_folder` is None, values that do not fit in memory are
        read again from the records.
        """
        first = metrics[:_MOST_METRICS]
        self._started = started
        self._names = {index: metric.name for index, metric in enumerate(first)}
        self._wanted = {metric.name: metric for metric in first}
        self._groups: dict[_Group, _Series | None] = {}
        self._series: dict[_Key, _Series] = {}
        self._starts: dict[int | None, int] = {}
        self._restarts = restarts
        self._spill_folder = spill_folder
        self._spill_file = SpillFile(spill_folder) if spill_folder is not None else None
        self._forgotten = -1
        """Number of the newest generation whose series were dropped."""
        self._kept = 0
        self._is_whole = self._takes = True
        """`_is_whole`: whether all records so far were added. `_takes`: whether further values are needed."""
        self._reads = False
        """Whether the headlines are being computed from records that are read. When records are read, the time of a run's
        first record replaces an unknown start of the run."""
        self._searches: Mapping[_Key, RunningHeadline] | None = None
        """Searches for the headlines that were still unknown after all values were added once. None in the first pass."""

    def miss(self) -> None:
        """Stop adding values, because another process wrote records."""
        self._is_whole = False
        self._stop_taking()

    def add_found(self, found: Sequence[Found], *, labels: str, timestamp: int, repeat: int | None) -> None:
        """Add values found by patterns, in their order. labels: JSON members of the labels, for values that
        have no further members of their own."""
        names = self._names
        if not self._takes or not any(each[1] in names for each in found):
            return
        values: dict[_Series, list[str | bytes]] = {}
        for _, index, _, value, extra in found:
            if index in names:
                series = self._series_of((names[index], members_of(extra) if extra else labels, repeat))
                if series is not None:
                    values.setdefault(series, []).append(value)
        for series, its in values.items():
            if self._is_measured(series.metric, timestamp, repeat):
                self._take(series, its)

    def add_columns(self, columns: Columns, *, labels: str, timestamp: int, repeat: int | None) -> None:
        """Add columns of values found by patterns."""
        if not self._takes:
            return
        wanted = [each for each in columns.columns if each.metric in self._names]
        names = [self._names[each.metric] for each in wanted]
        if len(set(names)) < len(names) or any(each.extras is not None for each in wanted):
            # Columns of values cannot be added as a whole if the order of the values matters, or if each
            # value may belong to a different series.
            found = columns._replace(columns=wanted).found()
            self.add_found(found, labels=labels, timestamp=timestamp, repeat=repeat)
            return
        for name, column in zip(names, wanted, strict=True):
            self.add(name, column.values, members=labels, timestamp=timestamp, repeat=repeat, are_plain=True)

    def add(
        self,
        name: str,
        values: Sequence[str | bytes],
        *,
        members: str,
        timestamp: int,
        repeat: int | None,
        are_plain: bool = False,
    ) -> None:
        """Add values of one metric, in their order. members: the members of the JSON object with the values'
        labels."""
        if not self._takes or name not in self._wanted:
            return
        series = self._series_of((name, members, repeat))
        if series is not None and self._is_measured(series.metric, timestamp, repeat):
            self._take(series, values, are_plain=are_plain)

    def _take(self, series: _Series, values: Sequence[str | bytes], *, are_plain: bool = False) -> None:
        if not self._takes:
            return
        before = series.running.kept
        series.add(values, are_plain=are_plain)
        self._kept += series.running.kept - before
        if self._kept > MOST_KEPT:
            largest = max(self._series.values(), key=lambda each: each.running.kept)
            before = largest.running.kept
            largest.thin(self._spill_file)
            self._kept += largest.running.kept - before

    def values(
        self,
        path: Path,
        *,
        arms: Sequence[str] = (),
        failed: Collection[int | None] = (),
        of_several_nodes: bool = False,
        stopping: Callable[[], bool] = lambda: False,
    ) -> NodeHeadlines:
        """Return a node's headlines by their names with labels. path: the records.

        arms: the arm of each repeat, in a job that compares arms. failed: repeats that are excluded.
        of_several_nodes: whether to include the numbers of each run, from which the headlines of the whole
        job are computed. stopping: function that returns whether the result is no longer needed. If
        `stopping()` returns True, no headlines are returned.
        """
        try:
            found = self._numbers(path, stopping)
        except OSError:
            found = {}
        numbers = [
            SeriesNumber(
                name=name,
                labels=labels,
                arm=arm_of(repeat, arms),
                repeat=None if self._restarts else repeat,
                generation=repeat if self._restarts else None,
                value=number,
                units=self._wanted[name].units,
            )
            for (name, labels, _, repeat), number in found.items()
        ]
        order = list(self._wanted)
        numbers.sort(key=lambda each: order.index(each.name))
        return NodeHeadlines(
            headline_values(numbers, self._wanted, failed=failed, with_runs=of_several_nodes),
            generation_headlines(numbers, self._wanted, with_runs=of_several_nodes),
        )

    def _numbers(self, path: Path, stopping: Callable[[], bool]) -> dict[_Key, float]:
        """Return the number that represents each series in each run."""
        now = self if self._is_whole else self._read(path, stopping, None)
        order = list(now._series)
        numbers: dict[_Key, float] = {}
        for _ in range(_MOST_READS):
            unknown = {}
            for key, series in now._series.items():
                if series.running.count and (number := series.value(stopping)) is not None:
                    numbers[key] = number
                elif series.running.count:
                    unknown[key] = series.running.again()
            if not unknown:
                break
            now = now._read(path, stopping, unknown)
        return {} if stopping() else {key: numbers[key] for key in order if key in numbers}

    def _read(
        self, path: Path, stopping: Callable[[], bool], searches: Mapping[_Key, RunningHeadline] | None
    ) -> Headlines:
        """Compute headlines from all records. searches: searches for headlines that are still unknown. If
        `searches` is None, compute all headlines."""
        metrics = [self._wanted[name] for name in self._names.values()]
        found = Headlines(
            metrics, started=self._started, restarts=self._restarts, spill_folder=self._spill_folder
        )
        found._reads, found._searches = True, searches
        warmup = any(metric.warmup is not None for metric in self._wanted.values())
        for records in _records(path, self._wanted) if self._wanted else ():
            if stopping():
                break
            found._add_records(records, with_times=warmup)
        return found

    def _add_records(self, records: Sequence[tuple[bytes, ...]], *, with_times: bool) -> None:
        """Add records that `_records` yielded. with_times: whether any metric's warm-up is a duration."""
        known: dict[tuple[bytes, bytes, bytes], tuple[_Series | None, int | None]] = {}
        values: dict[_Series, list[str | bytes]] = {}
        for name, value, timestamp, members, repeat in records:
            if (name, members, repeat) not in known:
                number = int(repeat) if repeat else None
                known[name, members, repeat] = (
                    self._series_of((json.loads(name), members.decode(), number)),
                    number,
                )
            series, number = known[name, members, repeat]
            if series is None:
                continue
            # Values beyond `LIMIT` are ignored, so such a value does not mark the beginning of a run.
            if with_times and (
                abs(float(value)) > LIMIT or not self._is_measured(series.metric, int(timestamp), number)
            ):
                continue
            values.setdefault(series, []).append(value)
        for series, its in values.items():
            self._take(series, its)

    def _series_of(self, group: _Group) -> _Series | None:
        """Return the series to which the values of `group` belong. Return None if the values are not
        needed."""
        found = self._groups.get(group)
        return found if found is not None or not self._takes else self._begin(group)

    def _begin(self, group: _Group) -> _Series | None:
        name, members, repeat = group
        try:
            labels = json.loads(f"{{{members}}}")
        except ValueError:  # written by another program
            return None
        own = tuple(sorted((label, text) for label, text in labels.items() if label not in _PLACES))
        key = name, own, labels.get("process_rank"), repeat
        if self._searches is not None and key not in self._searches:
            return None
        if key not in self._series:
            if self._restarts and repeat is not None and repeat <= self._forgotten:
                return None
            if self._is_full and not self._forget_oldest(repeat):
                self._stop_taking()
                return None
            metric = self._wanted[name]
            running = RunningHeadline(metric.headline) if self._searches is None else self._searches[key]
            self._series[key] = _Series(metric, running)
        found = self._groups[group] = self._series[key]
        return found

    def _stop_taking(self) -> None:
        self._takes = False
        self._groups.clear()
        self._series.clear()
        self._spill_file = None

    @property
    def _is_full(self) -> bool:
        return max(len(self._series), len(self._groups)) >= MOST_SERIES

    def _forget_oldest(self, generation: int | None) -> bool:
        """Drop the series of the oldest generation if this generation is before `generation`. Return whether
        a generation was dropped."""
        oldest = min((key[3] for key in self._series if key[3] is not None), default=None)
        if not self._restarts or generation is None or oldest is None or oldest >= generation:
            return False
        self._forgotten = oldest
        self._groups = {group: each for group, each in self._groups.items() if group[2] != oldest}
        self._series = {key: each for key, each in self._series.items() if key[3] != oldest}
        self._kept = sum(each.running.kept for each in self._series.values())
        return True

    def _is_measured(self, metric: Metric, timestamp: int, repeat: int | None) -> bool:
        """Return whether a value was measured after the warm-up, by the value's time."""
        if metric.warmup is None:
            return True
        start = self._starts.get(repeat)
        if start is None:
            start = self._started(repeat)
            if start is None and not self._reads:
                self.miss()
                return False
            start = self._starts[repeat] = timestamp if start is None else start
        return timestamp - start >= metric.warmup.total_seconds() * 1000


def members_of(more: str) -> str:
    """Return the JSON members of the labels. The labels are found in the part of a record's text that follows
    the value."""
    return more.partition(LABELS)[2][1:-1]


def _records(path: Path, names: Collection[str]) -> Iterator[list[tuple[bytes, ...]]]:
    """Yield the records of some metrics, several thousand records at once."""
    find = re.compile(
        _RECORD % b"|".join(re.escape(json.dumps(name).encode()) for name in names), re.MULTILINE
    )
    with path.open("rb") as file:
        rest = b""
        while chunk := file.read(_CHUNK):
            lines, newline, rest = (rest + chunk).rpartition(b"\n")
            yield find.findall(lines + newline)
