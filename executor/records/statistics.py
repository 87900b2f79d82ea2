"""Statistics of metrics while their values arrive. All values are kept, 8 bytes each, so every figure is exact."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

from bai_agent.job.descriptor import Better, Headline, Job, OverRanks
from bai_agent.job.job_headlines import ARM, LastGenerations, headline_of, over_runs
from bai_agent.job.job_headlines import labelled_name as name_with_labels
from bai_agent.light_dataclass import dataclass, field, replace
from executor.records.figures import Figures, figures
from executor.records.memory_floor import LEAST, RUN_FACT, floor_of
from executor.records.reading import MalformedLines
from executor.records.series_lines import SeriesBatch, SeriesReader

_RUN = "run"
"""The source of the resources that runs used."""
_TREND_POINTS = 256
LABEL_SETS = 64
"""Most rows of one metric; series with other labels share the last one."""
_ROWS = 1024
"""Most rows of one metric if ranks are shown separately."""
OTHERS = "{…}"
RANK_LABELS = ("rank", "process_rank")
"""The node, and the process of the benchmark, from which a record comes."""
_PLACE_LABELS = (*RANK_LABELS, ARM)
_Place: TypeAlias = tuple[int, str]
"""Identity of a group of rows, and a name in it."""
_RowKey: TypeAlias = tuple[str, str, int | None, int | None]
"""Source, name of the row, repeat, generation."""


@dataclass
class Trend:
    """At most 256 values, evenly spread over all values: when it is full, every second one is dropped and the
    step doubles."""

    points: list[float] = field(default_factory=list)
    step: int = 1
    _seen: int = 0

    def add_all(self, values: Sequence[float]) -> None:
        first = -self._seen % self.step
        self._seen += len(values)
        kept = values[first :: self.step]
        while len(self.points) + len(kept) > _TREND_POINTS:
            # Both halves keep the values whose index is a multiple of the doubled step.
            odd = len(self.points) % 2
            self.points = self.points[::2]
            self.step *= 2
            kept = kept[odd::2]
        self.points.extend(kept)


@dataclass
class Series:
    """Running statistics of one metric. `first`, `last`, `minimum`, … are valid only if `count` > 0. The
    warm-up is left out of all figures."""

    name: str
    """Name with the labels of its records, if any: "latency{threads=4}"."""
    units: str = ""
    better: Better | None = None
    count: int = 0
    first: float = 0.0
    last: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf
    mean: float = 0.0
    trend: Trend = field(default_factory=Trend)
    metric: str = ""
    """The metric's name alone, if `name` contains labels."""
    labels: dict[str, str] = field(default_factory=dict)
    headline_is: Headline | None = None
    """Kind of the headline. None for samples of a machine and for rows of many series."""
    tolerance: float | None = None
    left_out: int = 0
    """Values of the warm-up."""
    newest: float = 0.0
    """The last value that was read, including the warm-up."""
    of_failed: int = 0
    """Number of values of runs that failed; no other figure includes them."""
    of_earlier: int = 0
    """Number of values of earlier generations; no other figure includes them."""
    beyond: int = 0
    """Number of values beyond `LIMIT`; no other figure includes them."""
    over: dict[str, float] = field(default_factory=dict)
    """Figures of a row over several ranks: "median", "stdev", "p95", "runs" and "headline", combined from theirs."""
    floor: float | None = None
    """Smallest measurable value (peak memory); lower ones are only bounds. None if all values are exact."""
    _total: float = 0.0
    _runs: dict[int | None, array[float]] = field(default_factory=dict)
    """All values, by their run."""
    _figures: Figures | None = None
    """Current figures of the values, if requested."""

    def add_all(self, values: Sequence[float], *, repeat: int | None = None) -> None:
        """Add `values`, in the order in which they were read; none beyond `LIMIT`. repeat: their run."""
        if not values:
            return
        if not self.count:
            self.first = values[0]
        self.last = self.newest = values[-1]
        self.minimum = min(self.minimum, min(values))
        self.maximum = max(self.maximum, max(values))
        self.count += len(values)
        self._total += math.fsum(values)
        self.mean = self._total / self.count
        self.trend.add_all(values)
        self._runs.setdefault(repeat, array("d")).extend(values)
        self._figures = None

    def leave_out(self, values: Sequence[float]) -> None:
        """Note values of the warm-up."""
        if values:
            self.left_out += len(values)
            self.newest = values[-1]

    def of_next_generation(self, *, left_out: int) -> Series:
        """Return the same without the values of earlier generations, except `left_out` of a warm-up."""
        earlier = self.of_earlier + self.count + self.left_out - left_out
        return replace(self._empty(), of_earlier=earlier, left_out=left_out)

    def without(self, failed: Collection[int]) -> Series:
        """Return the same without the values of runs that failed."""
        if not any(repeat in failed for repeat in self._runs):
            return self
        left = self._empty()
        for repeat, values in self._runs.items():
            if repeat in failed:
                left.of_failed += len(values)
            else:
                left.add_all(values, repeat=repeat)
        left.newest = self.newest
        return left

    def _empty(self) -> Series:
        """Return a copy without the counted values."""
        return replace(
            self,
            count=0,
            minimum=math.inf,
            maximum=-math.inf,
            mean=0.0,
            trend=Trend(),
            _total=0.0,
            _runs={},
            _figures=None,
        )

    @property
    def runs(self) -> int:
        """Number of runs with values, in a job that repeats its benchmark; 0 in others."""
        return int(self.over["runs"]) if self.over else sum(repeat is not None for repeat in self._runs)

    @property
    def seen(self) -> bool:
        """Whether it has any value, even if none counts."""
        return bool(self.count or self.left_out or self.of_failed or self.of_earlier or self.beyond)

    @property
    def is_past(self) -> bool:
        """Whether all its values are of earlier generations: its node is not a member of the one that
        counts."""
        return bool(self.of_earlier) and not (self.count or self.left_out or self.of_failed or self.beyond)

    @property
    def has_rank(self) -> bool:
        """Whether it is of one rank."""
        return any(label in self.labels for label in RANK_LABELS)

    @property
    def without_ranks(self) -> str:
        """Its name without its ranks."""
        if not self.has_rank:
            return self.name
        return name_with_labels(self.metric, without_rank_labels(self.labels).items())

    @property
    def is_bound(self) -> bool:
        """Whether some of its values are only bounds."""
        return self.floor is not None and self.minimum <= self.floor

    @property
    def numbers(self) -> dict[int | None, float]:
        """Headline of each run, by repeat; None: the only run."""
        how = self.headline_is or Headline.LAST
        return {repeat: headline_of(how, values) for repeat, values in self._runs.items()}

    @property
    def figures(self) -> Figures:
        """The figures of all values (one or more)."""
        if self._figures is None:
            self._figures = figures(array("d", chain.from_iterable(self._runs.values())))
        assert self._figures is not None
        return self._figures

    @property
    def median(self) -> float:
        return self.over["median"] if self.over else self.figures.median

    @property
    def p95(self) -> float:
        return self.over["p95"] if self.over else self.figures.p95

    @property
    def stdev(self) -> float | None:
        """The standard deviation of a sample; None for one value."""
        return self.over.get("stdev") if self.over else self.figures.stdev

    @property
    def headline(self) -> float:
        """Headline of the run; of several runs their median."""
        if self.over:
            return self.over["headline"]
        return over_runs(list(self.numbers.values()))

    @property
    def best(self) -> float | None:
        """Best value in the direction of the descriptor. None if it has none."""
        if not self.count or self.better is None:
            return None
        return self.minimum if self.better is Better.LOWER else self.maximum

    def as_table(self) -> dict[str, Any]:
        """Return the statistics as JSON values."""
        table: dict[str, Any] = {"name": self.metric or self.name, "units": self.units, "count": self.count}
        if self.labels:
            table["labels"] = self.labels
        if self.count:
            table |= {"first": self.first, "last": self.last, "min": self.minimum, "max": self.maximum}
            table |= {"mean": self.mean, "median": self.median, "stdev": self.stdev, "p95": self.p95}
            if self.headline_is is not None:
                table |= {"headline": self.headline, "headline_is": self.headline_is.value}
        if self.is_bound:
            table |= {"below": self.floor}
        left_out = {
            "warmup_left_out": self.left_out,
            "failed_left_out": self.of_failed,
            "earlier_left_out": self.of_earlier,
            "beyond_left_out": self.beyond,
        }
        table |= {name: count for name, count in left_out.items() if count}
        if self.better is not None:
            table |= {"better": self.better.value, "best": self.best}
        return table


def without_rank_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels without those of ranks."""
    return {key: value for key, value in labels.items() if key not in RANK_LABELS}


def with_arm(record: Mapping[str, Any], arms: Sequence[str]) -> Mapping[str, Any]:
    """Return a record with the label of its run's arm. arms: by the run's number; empty if there are none."""
    repeat = record.get("repeat") if arms else None
    if repeat is None or repeat >= len(arms):
        return record
    return {**record, "labels": {**(record.get("labels") or {}), ARM: arms[repeat]}}


def labelled_name(record: Mapping[str, Any]) -> str:
    """Return a record's name with its labels."""
    return name_with_labels(record["name"], (record.get("labels") or {}).items())


class Measurements:
    """Statistics of all metrics of a run, by source."""

    def __init__(
        self,
        job: Job | None = None,
        *,
        starts: Mapping[int | None, int] | None = None,
        failed: Collection[int] = (),
        memory_floor: float = LEAST,
    ) -> None:
        """failed: runs whose values count in no figure. memory_floor: smallest measurable peak memory
        (bytes)."""
        self.benchmark: dict[str, Series] = {}
        """Metrics of the benchmark, in the descriptor's order, then in order of appearance."""
        self.host: dict[str, Series] = {}
        self.run: dict[str, Series] = {}
        self.records = 0
        self.malformed = MalformedLines()
        self.last_timestamp: int | None = None
        self.starts: dict[int | None, int] = dict(starts or {})
        """Start of the benchmark (ms UTC), by repeat; None: the only run. If it is missing, the time of the first value counts."""
        self.failed = frozenset(failed)
        self._memory_floor = memory_floor
        self._arms = job.repeat.arms_of_runs if job is not None and job.repeat is not None else []
        named = job.named_metrics() if job is not None else ()
        self._metrics = {metric.name: metric for metric in named}
        self._last_generations = LastGenerations()
        self._of_place: dict[_Place, set[str]] = {}
        """The rows of a metric and set of labels, one for each rank."""
        self._left_out: dict[_Place, dict[int, int]] = {}
        """Number of warm-up values of each generation, by row."""
        self._reader = SeriesReader(self._key_of)
        self._warmed: dict[_RowKey, int] = {}
        """Number of warm-up values that were left out."""
        self.over_ranks: Mapping[str, OverRanks] = {metric.name: metric.over_ranks for metric in named}
        """Rows of a metric that several ranks print, by its name."""
        self._rows: dict[str, set[str]] = {}
        self._label_sets: dict[str, set[str]] = {}
        """Labels of the rows of each metric, without ranks."""
        for metric in job.metrics if job is not None else ():
            self.benchmark[metric.name] = self._described(Series(metric.name, metric.units), metric.name)

    def add_lines(self, content: bytes, *, rank: int | None = None) -> None:
        """Add whole lines of `metrics.jsonl`. rank: of the node, in a job of several."""
        lines = self._reader.read(content, rank=rank)
        self.records += lines.count
        self.malformed.add(content, taken=lines.count)
        if lines.last_timestamp is not None:
            self.last_timestamp = lines.last_timestamp
        for key, batch in lines.batches.items():
            self._add(key, batch)

    def _add(self, key: _RowKey, batch: SeriesBatch) -> None:
        source, row, repeat, generation = key
        group = {"host": self.host, _RUN: self.run}.get(source, self.benchmark)
        series = group.get(row)
        if series is None:
            series = group[row] = self._new_series(row, with_arm(batch.record, self._arms))
            self._forget_bare(series.metric)
        series.beyond += batch.beyond
        if not batch.rows:
            return
        warm_up, values = self._split_warm_up(key, batch)
        if generation is not None:
            if not self._is_of_last(group, series, row, generation, has_number=bool(values)):
                series.of_earlier += len(batch.rows)
                return
            series = group[row]
            left_out = self._left_out.setdefault((id(group), row), {})
            left_out[generation] = left_out.get(generation, 0) + len(warm_up)
        if repeat in self.failed:
            series.of_failed += len(batch.rows)
            series.newest = [*warm_up, *values][-1]
            return
        series.leave_out(warm_up)
        series.add_all(values, repeat=repeat)

    def _is_of_last(
        self, group: dict[str, Series], series: Series, row: str, generation: int, *, has_number: bool
    ) -> bool:
        """Return whether values of a generation count. If they are its first number, remove the values of
        earlier generations from all figures."""
        place = id(group), series.without_ranks
        rows = self._of_place.setdefault(place, set())
        rows.add(row)
        if has_number and self._last_generations.add(place, generation):
            for each in rows:
                left_out = self._left_out.get((id(group), each), {}).get(generation, 0)
                group[each] = group[each].of_next_generation(left_out=left_out)
        return not self._last_generations.is_past(place, generation)

    def leave_out_runs(self, failed: Collection[int]) -> None:
        """Remove the values of these runs, which failed, from all figures."""
        self.failed |= frozenset(failed)
        for group in (self.benchmark, self.run):
            for name, series in group.items():
                group[name] = series.without(self.failed)

    def raise_memory_floor(self, floor: float) -> None:
        """Treat peak memory up to `floor` bytes as a bound, now that the shim's own peak is known."""
        self._memory_floor = floor
        for series in (*self.benchmark.values(), *self.run.values()):
            series.floor = floor if series.floor is not None else None

    def _key_of(self, record: Mapping[str, Any]) -> _RowKey:
        """Return the row that a record belongs to."""
        record = with_arm(record, self._arms)
        return (
            record["src"],
            self._row(record) if "labels" in record else record["name"],
            record.get("repeat"),
            record.get("generation"),
        )

    def _split_warm_up(self, key: _RowKey, batch: SeriesBatch) -> tuple[Sequence[float], Sequence[float]]:
        """Return the values of the warm-up, and those that count."""
        source, _, repeat, generation = key
        values = batch.values
        metric = self._metrics.get(batch.record["name"])
        if metric is None or source in ("host", _RUN):
            return (), values
        if metric.warmup is None:
            left_out = self._warmed.get(key, 0)
            count = min(metric.warmup_values - left_out, len(values))
            self._warmed[key] = left_out + count
            return values[:count], values[count:]
        times = batch.timestamps
        start = self._start(generation if repeat is None else repeat, first_value=times[0])
        end = start + metric.warmup.total_seconds() * 1000
        timed = list(zip(times, values, strict=True))
        return [value for time, value in timed if time < end], [value for time, value in timed if time >= end]

    def _start(self, part: int | None, *, first_value: int) -> int:
        """Return the start of a run or generation (ms UTC): the time of its first value if it is not
        recorded."""
        known = self.starts.get(None) if not part else None
        return self.starts.setdefault(part, first_value if known is None else known)

    def _row(self, record: Mapping[str, Any]) -> str:
        """Return the name of the row for a record with labels: the number of rows of a metric is limited."""
        name = labelled_name(record)
        rows = self._rows.setdefault(record["name"], set())
        if name not in rows:
            own = {key: each for key, each in (record["labels"] or {}).items() if key not in _PLACE_LABELS}
            row = labelled_name({**record, "labels": own})
            sets = self._label_sets.setdefault(record["name"], set())
            if (row not in sets and len(sets) >= LABEL_SETS) or len(rows) >= _ROWS:
                return f"{record['name']}{OTHERS}"
            sets.add(row)
            rows.add(name)
        return name

    def _new_series(self, name: str, record: Mapping[str, Any]) -> Series:
        units = record.get("units") or ""
        if name.endswith(OTHERS) and name != record["name"]:
            # A row of many series has no headline.
            return Series(name, units, metric=record["name"])
        labels = dict(record["labels"]) if name != record["name"] else {}
        series = Series(name, units, metric=record["name"] if labels else "", labels=labels)
        return series if record["src"] == "host" else self._described(series, record["name"])

    def _described(self, series: Series, metric: str) -> Series:
        """Return a series of the benchmark or the run with its metric's settings in the descriptor."""
        known = self._metrics.get(metric)
        series.headline_is = Headline.LAST
        if known is not None:
            series.better, series.headline_is = known.better, known.headline
            series.tolerance = known.tolerance
        is_fact = known is None and metric == RUN_FACT
        series.floor = self._memory_floor if is_fact else floor_of(known, self._memory_floor)
        return series

    def _forget_bare(self, metric: str) -> None:
        """Remove the metric's own row if all its records have labels: it is not a metric that was never
        seen."""
        bare = self.benchmark.get(metric)
        if bare is not None and not bare.seen:
            del self.benchmark[metric]
