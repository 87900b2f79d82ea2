"""What is known of a metric while its values stream by.

Of what the benchmark says all values are kept, 8 bytes each: its median and its headline are exact. Of what is sampled of the machines
there are a few numbers and a bounded choice, whatever the count.
"""

from __future__ import annotations

import math
import random
import sys
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from bai_agent.job.descriptor import Better, Headline, Job, Metric, OverRanks
from bai_agent.job.job_headlines import ARM, headline_of, over_runs
from executor.records.memory_floor import LEAST, RUN_FACT, floor_of
from executor.records.reading import MalformedLines, records_in

_TREND_POINTS = 256
SAMPLE = 4096
"""Values of a machine's samples that quantiles are made of: all, or a random choice. A "p95" of a choice lies between p94 and p96."""
LABEL_SETS = 64
"""Rows of one metric; what has other labels shares the last one."""
_ROWS = 1024
"""The same where ranks are told apart."""
OTHERS = "{…}"
RANK_LABELS = ("rank", "process_rank")
"""Which node, and which process of the benchmark, a record comes from."""
_PLACE_LABELS = (*RANK_LABELS, ARM)


@dataclass
class Trend:
    """At most 256 values, evenly spread over all that came: when full, every second one goes and the step doubles."""

    points: list[float] = field(default_factory=list)
    step: int = 1
    _seen: int = 0

    def add_all(self, values: Sequence[float]) -> None:
        first = -self._seen % self.step
        self._seen += len(values)
        kept = values[first :: self.step]
        while len(self.points) + len(kept) > _TREND_POINTS:
            # Both halves keep the values whose number is a multiple of the doubled step.
            odd = len(self.points) % 2
            self.points = self.points[::2]
            self.step *= 2
            kept = kept[odd::2]
        self.points.extend(kept)


class Sample:
    """All values, while they are few; then a random choice of them, each as likely as any other (Vitter's reservoir, Li's skips)."""

    def __init__(self, size: int = SAMPLE) -> None:
        self.values: list[float] = []
        self.seen = 0
        self._size = size
        self._chance: random.Random | None = None
        self._weight = 1.0
        self._next = 0
        """Which of all values is the next to be chosen."""
        self._ordered: tuple[int, list[float]] = (0, [])

    def add_all(self, values: Sequence[float]) -> None:
        begin = self.seen
        self.seen += len(values)
        if (room := self._size - len(self.values)) > 0:
            self.values.extend(values[:room])
        if self.seen <= self._size:
            return
        if self._chance is None:
            # The same values give the same choice.
            self._chance = random.Random(0)  # noqa: S311 - no secret depends on it
            self._next = self._size - 1
            self._skip(self._chance)
        while self._next < self.seen:
            self.values[self._chance.randrange(self._size)] = values[self._next - begin]
            self._skip(self._chance)

    def quantile(self, share: float) -> float:
        """Return the value below which `share` of all lie, between the two nearest ones. There is one value at least."""
        if self._ordered[0] != self.seen:
            self._ordered = (self.seen, sorted(self.values))
        return quantile(self._ordered[1], share)

    def _skip(self, chance: random.Random) -> None:
        self._weight *= math.exp(math.log(1 - chance.random()) / self._size)
        self._next += 1 + math.floor(math.log(1 - chance.random()) / math.log1p(-self._weight))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of sorted values, interpolated: Hyndman and Fan's type 7."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    part = position - low
    if not part:
        return ordered[low]
    between = ordered[low] * (1 - part) + ordered[low + 1] * part
    return min(max(between, ordered[low]), ordered[low + 1])


@dataclass
class Series:
    """One metric's statistics so far. `first`, `last`, `minimum`, … count only where `count` > 0. Warm-up is left out of all."""

    name: str
    """With the labels of its records, where they have any: "latency{threads=4}"."""
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
    """The metric's name alone, where `name` holds labels."""
    labels: dict[str, str] = field(default_factory=dict)
    headline_is: Headline | None = None
    """Which of the numbers stands for a run; None of what has no headline: samples of a machine, and rows of many series."""
    tolerance: float | None = None
    left_out: int = 0
    """Values of the warm-up."""
    newest: float = 0.0
    """The last value that was read, of the warm-up too."""
    of_failed: int = 0
    """Values of runs that failed; they count in nothing else."""
    over: Mapping[str, float] = field(default_factory=dict)
    """Of a row that is over several ranks: "median", "stdev", "p95", "runs" and "headline", made of theirs."""
    floor: float | None = None
    """What its values are only bounds up to, of peak memory; None if all are exact."""
    sample: Sample | None = None
    """Of what quantiles are made, where not all values are kept."""
    _squares: float = 0.0
    """The sum of the squared distances from the mean."""
    _runs: dict[int | None, array[float]] = field(default_factory=dict)
    """All values, by the run that they are of."""
    _ordered: list[float] = field(default_factory=list)

    def add_all(self, values: Sequence[float], *, repeat: int | None = None) -> None:
        """Take in `values`, in the order in which they were read; all finite. repeat: the run that they are of."""
        if not values:
            return
        if not self.count:
            self.first = values[0]
        self.last = self.newest = values[-1]
        self.minimum = min(self.minimum, min(values))
        self.maximum = max(self.maximum, max(values))
        before, mean = self.count, self.mean
        self.count += len(values)
        # Rounded up, what is left of values near the largest float would be infinite: no mean is outside of all values.
        self.mean = min(max(_mean_with(mean, values, self.count), self.minimum), self.maximum)
        self._squares += _squares(values, before, mean)
        self.trend.add_all(values)
        if self.sample is not None:
            self.sample.add_all(values)
        else:
            self._runs.setdefault(repeat, array("d")).extend(values)

    def leave_out(self, values: Sequence[float]) -> None:
        """Take note of values of the warm-up."""
        self.left_out += len(values)
        self.newest = values[-1]

    def without(self, failed: Collection[int]) -> Series:
        """Return the same without the values of runs that failed."""
        if not any(repeat in failed for repeat in self._runs):
            return self
        left = replace(
            self,
            count=0,
            minimum=math.inf,
            maximum=-math.inf,
            mean=0.0,
            trend=Trend(),
            of_failed=self.of_failed,
            _squares=0.0,
            _runs={},
            _ordered=[],
        )
        for repeat, values in self._runs.items():
            if repeat in failed:
                left.of_failed += len(values)
            else:
                left.add_all(values, repeat=repeat)
        left.newest = self.newest
        return left

    @property
    def runs(self) -> int:
        """Of how many runs its values are, in a job that repeats its benchmark; 0 in others."""
        return int(self.over["runs"]) if self.over else sum(repeat is not None for repeat in self._runs)

    @property
    def is_bound(self) -> bool:
        """Whether some of its values are only bounds."""
        return self.floor is not None and self.minimum <= self.floor

    @property
    def numbers(self) -> dict[int | None, float]:
        """The number that stands for each run, by repeat; None: the only run."""
        if self.sample is not None:
            return {None: self.last} if self.count else {}
        how = self.headline_is or Headline.LAST
        return {repeat: headline_of(how, values) for repeat, values in self._runs.items()}

    @property
    def median(self) -> float:
        return self.over["median"] if self.over else self._quantile(0.5)

    @property
    def p95(self) -> float:
        return self.over["p95"] if self.over else self._quantile(0.95)

    @property
    def stdev(self) -> float | None:
        """The standard deviation of a sample; None of one value."""
        if self.over:
            return self.over.get("stdev")
        if self.count < 2:
            return None
        deviation = math.sqrt(self._squares / (self.count - 1))
        if math.isfinite(deviation):
            return deviation
        # The squares are beyond any float. No two values are further apart than this.
        return min(self.maximum / 2 - self.minimum / 2, sys.float_info.max / 2) * 2

    @property
    def headline(self) -> float:
        """The number that stands for the run; of several runs the median of theirs."""
        if self.over:
            return self.over["headline"]
        return over_runs(list(self.numbers.values()))

    @property
    def best(self) -> float | None:
        """The best value in the direction that the descriptor names; None where it names none."""
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
        if self.left_out:
            table |= {"warmup_left_out": self.left_out}
        if self.of_failed:
            table |= {"failed_left_out": self.of_failed}
        if self.better is not None:
            table |= {"better": self.better.value, "best": self.best}
        return table

    def _quantile(self, share: float) -> float:
        if self.sample is not None:
            return self.sample.quantile(share)
        if len(self._ordered) != self.count:
            self._ordered = sorted(chain.from_iterable(self._runs.values()))
        return quantile(self._ordered, share)


def _mean_with(mean: float, values: Sequence[float], count: int) -> float:
    """Return the mean of `count` values, of which the last ones are `values` and the others have `mean`."""
    # A running mean instead of a sum: the sum of large values would overflow, or lose the small ones.
    share = len(values) / count
    half = math.fsum(value / 2 / len(values) for value in values)
    return mean * (1 - share) + half * share * 2


def _squares(values: Sequence[float], before: int, mean: float) -> float:
    """Return what `values` add to the sum of squared distances from the mean of `before` others (Chan et al. 1979)."""
    own = _mean_with(0.0, values, len(values))
    inside = sum((value - own) * (value - own) for value in values)
    if not before:
        return inside
    apart = own - mean
    return inside + apart * apart * (before / (before + len(values)) * len(values))


def with_arms(records: Iterable[Mapping[str, Any]], arms: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield records with the label of the arm that their run is of. arms: by the run's number; none: as they are."""
    for record in records:
        repeat = record.get("repeat") if arms else None
        if repeat is None or repeat >= len(arms):
            yield record
        else:
            yield {**record, "labels": {**(record.get("labels") or {}), ARM: arms[repeat]}}


def labelled_name(record: Mapping[str, Any]) -> str:
    """Return a record's name with its labels."""
    labels = record.get("labels")
    if not labels:
        return str(record["name"])
    return f"{record['name']}{{{','.join(f'{key}={value}' for key, value in labels.items())}}}"


class Measurements:
    """The statistics of all metrics of a run, by where they come from."""

    def __init__(
        self,
        job: Job | None = None,
        *,
        starts: Mapping[int | None, int] | None = None,
        failed: Collection[int] = (),
        exact: bool = True,
        memory_floor: float = LEAST,
    ) -> None:
        """failed: runs whose values count in no figure. memory_floor: bytes up to which peak memory is only a bound. exact: whether all values of the benchmark are kept; else no more than a choice."""
        self.benchmark: dict[str, Series] = {}
        """What the benchmark printed or emitted, in the descriptor's order, then as it came."""
        self.host: dict[str, Series] = {}
        self.run: dict[str, Series] = {}
        self.records = 0
        self.malformed = MalformedLines()
        self.last_timestamp: int | None = None
        self.starts: dict[int | None, int] = dict(starts or {})
        """When the benchmark was started (ms UTC), by repeat; None: the only run. Else the first value's time stands for it."""
        self._exact = exact
        self.failed = frozenset(failed)
        self._memory_floor = memory_floor
        self._arms = job.repeat.arms_of_runs if job is not None and job.repeat is not None else []
        named = job.named_metrics() if job is not None else ()
        self._metrics = {metric.name: metric for metric in named}
        self._warmed: dict[tuple[str, str, int | None], int] = {}
        """How many values of a warm-up were left out."""
        self.over_ranks: Mapping[str, OverRanks] = {metric.name: metric.over_ranks for metric in named}
        """What is shown of a metric that several ranks print, by its name."""
        self._rows: dict[str, set[str]] = {}
        self._label_sets: dict[str, set[str]] = {}
        """By metric: the labels of its rows, without their ranks."""
        for metric in job.metrics if job is not None else ():
            self.benchmark[metric.name] = self._described(
                self._series(metric.name, metric.units), metric.name
            )

    def add_lines(self, content: bytes) -> None:
        """Take in whole lines of `metrics.jsonl`."""
        values: dict[tuple[str, str, int | None, bool], list[float]] = {}
        firsts: dict[tuple[str, str, int | None, bool], Mapping[str, Any]] = {}
        before = self.records
        for record in with_arms(records_in(content), self._arms):
            row = record["name"] if "labels" not in record else self._row(record)
            metric = self._metrics.get(record["name"])
            warm = metric is not None and self._is_warm_up(record, row, metric)
            key = (record["src"], row, record.get("repeat"), warm)
            if key in values:
                values[key].append(record["value"])
            else:
                values[key] = [record["value"]]
                firsts[key] = record
            self.records += 1
            self.last_timestamp = record["timestamp"]
        self.malformed.add(content, taken=self.records - before)
        for key, found in values.items():
            source, name, repeat, warm = key
            group = {"host": self.host, "run": self.run}.get(source, self.benchmark)
            series = group.get(name)
            if series is None:
                series = group[name] = self._new_series(name, firsts[key])
                self._forget_bare(series.metric)
            if repeat in self.failed:
                series.of_failed += len(found)
                series.newest = found[-1]
            elif warm:
                series.leave_out(found)
            else:
                series.add_all(found, repeat=repeat)

    def leave_out_runs(self, failed: Collection[int]) -> None:
        """Take the values of these runs, which failed, out of all figures."""
        self.failed |= frozenset(failed)
        for group in (self.benchmark, self.run):
            for name, series in group.items():
                group[name] = series.without(self.failed)

    def raise_memory_floor(self, floor: float) -> None:
        """Take peak memory up to `floor` bytes for a bound, as the shim's own is known now."""
        self._memory_floor = floor
        for series in (*self.benchmark.values(), *self.run.values()):
            series.floor = floor if series.floor is not None else None

    def _is_warm_up(self, record: Mapping[str, Any], row: str, metric: Metric) -> bool:
        """Return whether a value is to be left out."""
        if record["src"] in ("host", "run") or not (metric.warmup_values or metric.warmup is not None):
            return False
        repeat = record.get("repeat")
        if metric.warmup is not None:
            first = self.starts.get(None) if not repeat else None
            start: int = self.starts.setdefault(repeat, record["timestamp"] if first is None else first)
            return bool(record["timestamp"] < start + metric.warmup.total_seconds() * 1000)
        key = (record["src"], row, repeat)
        left_out = self._warmed.get(key, 0)
        if left_out >= metric.warmup_values:
            return False
        self._warmed[key] = left_out + 1
        return True

    def _row(self, record: Mapping[str, Any]) -> str:
        """Return the name of the row that a record with labels belongs to: there are at most so many of a metric."""
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
        exact = record["src"] != "host"
        if name == record["name"]:
            return self._described(self._series(name, units, exact=exact), name)
        if name.endswith(OTHERS):
            # Of many series together no number is the headline.
            return self._series(name, units, metric=record["name"])
        labels = dict(record["labels"])
        return self._described(
            self._series(name, units, metric=record["name"], labels=labels, exact=exact), record["name"]
        )

    def _series(
        self,
        name: str,
        units: str,
        *,
        metric: str = "",
        labels: dict[str, str] | None = None,
        exact: bool = True,
    ) -> Series:
        sample = None if exact and self._exact else Sample()
        return Series(name, units, metric=metric, labels=labels or {}, sample=sample)

    def _described(self, series: Series, metric: str) -> Series:
        """Return a series with what the descriptor says of its metric."""
        known = self._metrics.get(metric)
        if series.sample is None:
            series.headline_is = Headline.LAST
        if known is not None:
            series.better, series.headline_is = known.better, known.headline
            series.tolerance = known.tolerance
        is_fact = known is None and metric == RUN_FACT
        series.floor = self._memory_floor if is_fact else floor_of(known, self._memory_floor)
        return series

    def _forget_bare(self, metric: str) -> None:
        """Leave the metric itself out where all its records have labels: it is not one that was never seen."""
        bare = self.benchmark.get(metric)
        if bare is not None and not (bare.count or bare.left_out or bare.of_failed):
            del self.benchmark[metric]
