"""Computes the figures and the trend of one series while its values arrive. All values are held in memory (8
bytes each), so that every figure is exact."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from bai_agent.job.descriptor.metric_tables import Better, Headline
from bai_agent.job.job_headlines import ARM, arm_of, headline_of, over_runs
from bai_agent.job.job_headlines import labelled_name as name_with_labels
from bai_agent.light_dataclass import dataclass, field, replace
from executor.records.figures import Figures, figures
from executor.records.series_lines import RANK_LABELS

_TREND_POINTS = 256


@dataclass
class Trend:
    """The trend of a series: at most 256 of its values, evenly spread. When the trend is full, every second
    value is dropped, and the step between values doubles."""

    points: list[float] = field(default_factory=list)
    step: int = 1
    _seen: int = 0

    def add_all(self, values: Sequence[float]) -> None:
        first = -self._seen % self.step
        self._seen += len(values)
        kept = values[first :: self.step]
        while len(self.points) + len(kept) > _TREND_POINTS:
            # The trend and the new values both keep only the values whose index is a multiple of the doubled
            # step.
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
    """Name with the labels of the series' records, for example "latency{threads=4}"."""
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
    """Name of the metric without labels, if `name` contains labels."""
    labels: dict[str, str] = field(default_factory=dict)
    headline_is: Headline | None = None
    """How the headline is computed. None for samples of a machine and for rows of many series."""
    tolerance: float | None = None
    left_out: int = 0
    """Number of values in the warm-up."""
    newest: float = 0.0
    """The latest value, including the warm-up."""
    of_failed: int = 0
    """Number of values of failed runs; no other figure includes these values."""
    of_earlier: int = 0
    """Number of values of earlier generations; no other figure includes these values."""
    beyond: int = 0
    """Number of values beyond `LIMIT`; no other figure includes these values."""
    over: dict[str, float] = field(default_factory=dict)
    """The figures "median", "stdev", "p95", "runs" and "headline" of a row over several ranks, combined from
    the ranks' figures. Empty for any other row."""
    floor: float | None = None
    """For peak memory, the smallest value that can be measured. A value below `floor` is only an upper bound.
    None if all values are exact."""
    _total: float = 0.0
    _runs: dict[int | None, array[float]] = field(default_factory=dict)
    """All values, by the number of their run."""
    _figures: Figures | None = None
    """Cached figures of the values; None if the figures are not computed yet."""

    def add_all(self, values: Sequence[float], *, repeat: int | None = None) -> None:
        """Add `values`, in the order in which they were read. No value may be beyond `LIMIT`. repeat: number
        of the values' run."""
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
        """Count values of the warm-up, which are in no figure."""
        if values:
            self.left_out += len(values)
            self.newest = values[-1]

    def of_next_generation(self, *, left_out: int) -> Series:
        """Return a copy of the series for the next generation. No figure of the copy includes values of
        earlier generations. left_out: number of warm-up values of the next generation, which stay counted."""
        earlier = self.of_earlier + self.count + self.left_out - left_out
        return replace(self._empty(), of_earlier=earlier, left_out=left_out)

    def without(self, failed: Collection[int]) -> Series:
        """Return a copy without the values of failed runs."""
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
        """Return a copy of the series without its values."""
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
        """Number of runs with values, in a job that repeats its benchmark; 0 in any other job."""
        return int(self.over["runs"]) if self.over else sum(repeat is not None for repeat in self._runs)

    @property
    def seen(self) -> bool:
        """Whether the series has a value. Values that no figure includes also count."""
        return bool(self.count or self.left_out or self.of_failed or self.of_earlier or self.beyond)

    @property
    def is_past(self) -> bool:
        """Whether all values are from earlier generations, because the node is not a member of the last
        generation."""
        return bool(self.of_earlier) and not (self.count or self.left_out or self.of_failed or self.beyond)

    @property
    def has_rank(self) -> bool:
        """Whether the series is from one rank."""
        return any(label in self.labels for label in RANK_LABELS)

    @property
    def without_ranks(self) -> str:
        """Name of the series without the labels of its rank."""
        if not self.has_rank:
            return self.name
        return name_with_labels(self.metric, without_rank_labels(self.labels).items())

    @property
    def is_bound(self) -> bool:
        """Whether some values are only upper bounds."""
        return self.floor is not None and self.minimum <= self.floor

    @property
    def numbers(self) -> dict[int | None, float]:
        """Headline of each run, by the run's number; the key None stands for the only run."""
        how = self.headline_is or Headline.LAST
        return {repeat: headline_of(how, values) for repeat, values in self._runs.items()}

    @property
    def figures(self) -> Figures:
        """The figures of all values of the series (one or more)."""
        if self._figures is None:
            self._figures = figures(list(chain.from_iterable(self._runs.values())))
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
        """Sample standard deviation; None for one value."""
        return self.over.get("stdev") if self.over else self.figures.stdev

    @property
    def headline(self) -> float:
        """Headline of the run, or the median of the headlines of several runs."""
        if self.over:
            return self.over["headline"]
        return over_runs(list(self.numbers.values()))

    @property
    def best(self) -> float | None:
        """Best value in the descriptor's direction; None if the descriptor names no direction."""
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
    """Return labels without the labels that identify a rank."""
    return {key: value for key, value in labels.items() if key not in RANK_LABELS}


def with_arm(record: Mapping[str, Any], arms: Sequence[str]) -> Mapping[str, Any]:
    """Return a record with its run's arm as a label. arms: arm by the run's number; empty if the job has no
    arms."""
    arm = arm_of(record.get("repeat"), arms)
    if arm is None:
        return record
    return {**record, "labels": {**(record.get("labels") or {}), ARM: arm}}


def labelled_name(record: Mapping[str, Any]) -> str:
    """Return a record's name with its labels."""
    return name_with_labels(record["name"], (record.get("labels") or {}).items())
