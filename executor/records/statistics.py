"""What is known of a metric while its values stream by: a few numbers and a bounded picture, whatever the count."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bai_agent.job.descriptor import Better, Job
from executor.records.reading import MalformedLines, records_in

_TREND_POINTS = 256
_LABEL_SETS = 64
"""Rows of one metric; what has other labels shares the last one."""
_OTHERS = "{…}"


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


@dataclass
class Series:
    """One metric's statistics so far. `first`, `last`, `minimum`, `maximum` and `mean` count only where `count` > 0."""

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

    def add_all(self, values: Sequence[float]) -> None:
        """Take in `values`, in the order in which they were read; all finite."""
        if not values:
            return
        if not self.count:
            self.first = values[0]
        self.last = values[-1]
        self.minimum = min(self.minimum, min(values))
        self.maximum = max(self.maximum, max(values))
        self.count += len(values)
        # A running mean instead of a sum: the sum of large values would overflow, or lose the small ones.
        share = len(values) / self.count
        half = math.fsum(value / 2 / len(values) for value in values)
        # Rounded up, what is left of values near the largest float would be infinite: no mean is outside of all values.
        mean = self.mean * (1 - share) + half * share * 2
        self.mean = min(max(mean, self.minimum), self.maximum)
        self.trend.add_all(values)

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
            table |= {"mean": self.mean}
        if self.better is not None:
            table |= {"better": self.better.value, "best": self.best}
        return table


def labelled_name(record: Mapping[str, Any]) -> str:
    """Return a record's name with its labels."""
    labels = record.get("labels")
    if not labels:
        return str(record["name"])
    return f"{record['name']}{{{','.join(f'{key}={value}' for key, value in labels.items())}}}"


class Measurements:
    """The statistics of all metrics of a run, by where they come from."""

    def __init__(self, job: Job | None = None) -> None:
        self.benchmark: dict[str, Series] = {}
        """What the benchmark printed or emitted, in the descriptor's order, then as it came."""
        self.host: dict[str, Series] = {}
        self.run: dict[str, Series] = {}
        self.records = 0
        self.foreign = MalformedLines()
        self.last_timestamp: int | None = None
        self._better = {metric.name: metric.better for metric in (job.metrics if job is not None else ())}
        self._label_sets: dict[str, set[str]] = {}
        for metric in job.metrics if job is not None else ():
            self.benchmark[metric.name] = Series(metric.name, metric.units, metric.better)

    def add_lines(self, content: bytes) -> None:
        """Take in whole lines of `metrics.jsonl`."""
        values: dict[tuple[str, str], list[float]] = {}
        firsts: dict[tuple[str, str], Mapping[str, Any]] = {}
        before = self.records
        for record in records_in(content):
            key = (record["src"], record["name"] if "labels" not in record else self._row(record))
            if key in values:
                values[key].append(record["value"])
            else:
                values[key] = [record["value"]]
                firsts[key] = record
            self.records += 1
            self.last_timestamp = record["timestamp"]
        self.foreign.add(content, taken=self.records - before)
        for (source, name), found in values.items():
            group = {"host": self.host, "run": self.run}.get(source, self.benchmark)
            series = group.get(name)
            if series is None:
                series = group[name] = self._new_series(name, firsts[source, name])
                self._forget_bare(series.metric)
            series.add_all(found)

    def _row(self, record: Mapping[str, Any]) -> str:
        """Return the name of the row that a record with labels belongs to: there are at most so many of a metric."""
        name = labelled_name(record)
        rows = self._label_sets.setdefault(record["name"], set())
        if name not in rows:
            if len(rows) >= _LABEL_SETS:
                return f"{record['name']}{_OTHERS}"
            rows.add(name)
        return name

    def _new_series(self, name: str, record: Mapping[str, Any]) -> Series:
        units = record.get("units") or ""
        if name == record["name"]:
            return Series(name, units)
        labels = {} if name.endswith(_OTHERS) else dict(record["labels"])
        better = self._better.get(record["name"])
        return Series(name, units, better, metric=record["name"], labels=labels)

    def _forget_bare(self, metric: str) -> None:
        """Leave the metric itself out where all its records have labels: it is not one that was never seen."""
        if metric in self.benchmark and not self.benchmark[metric].count:
            del self.benchmark[metric]
