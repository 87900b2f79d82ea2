"""What is known of a metric while its values stream by: a few numbers and a bounded picture, whatever the count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bai_agent.job import Better, Job
from executor.records import Foreign, records_in

_TREND_POINTS = 256


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
    units: str = ""
    better: Better | None = None
    count: int = 0
    first: float = 0.0
    last: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf
    mean: float = 0.0
    trend: Trend = field(default_factory=Trend)

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
        table: dict[str, Any] = {"name": self.name, "units": self.units, "count": self.count}
        if self.count:
            table |= {"first": self.first, "last": self.last, "min": self.minimum, "max": self.maximum}
            table |= {"mean": self.mean}
        if self.better is not None:
            table |= {"better": self.better.value, "best": self.best}
        return table


class Measurements:
    """The statistics of all metrics of a run, by where they come from."""

    def __init__(self, job: Job | None = None) -> None:
        self.benchmark: dict[str, Series] = {}
        """What the benchmark printed or emitted, in the descriptor's order, then as it came."""
        self.host: dict[str, Series] = {}
        self.run: dict[str, Series] = {}
        self.records = 0
        self.foreign = Foreign()
        self.last_timestamp: int | None = None
        for metric in job.metrics if job is not None else ():
            self.benchmark[metric.name] = Series(metric.name, metric.units, metric.better)

    def add_lines(self, content: bytes) -> None:
        """Take in whole lines of `metrics.jsonl`."""
        values: dict[tuple[str, str], list[float]] = {}
        units: dict[tuple[str, str], str] = {}
        before = self.records
        for record in records_in(content):
            key = (record["src"], record["name"])
            if key in values:
                values[key].append(record["value"])
            else:
                values[key] = [record["value"]]
                units[key] = record.get("units") or ""
            self.records += 1
            self.last_timestamp = record["timestamp"]
        self.foreign.add(content, taken=self.records - before)
        for (source, name), found in values.items():
            group = {"host": self.host, "run": self.run}.get(source, self.benchmark)
            series = group.get(name)
            if series is None:
                series = group[name] = Series(name, units[source, name])
            series.add_all(found)
