"""What the pattern of one metric takes from a log: its values, each set of labels a series of its own, and what is odd about them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bai_agent.job.descriptor import Metric
from executor.records.statistics import LABEL_SETS, OTHERS, Series, labelled_name


@dataclass
class PatternResult:
    """The result for one metric."""

    metric: Metric
    series: dict[str, Series] = field(default_factory=dict)
    """By labels, as JSON: each set of them is a series of its own."""
    not_numbers: int = 0
    not_number: str = ""
    """The first value that was not a finite number."""
    doubts: dict[str, int] = field(default_factory=dict)
    """How often which doubt arose about the values."""
    doubt_examples: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """What the pattern took the first time, what stood there, and the line."""
    near: list[str] = field(default_factory=list)
    """Lines without a match that hold the pattern's fixed text, or the metric's name."""

    @property
    def rows(self) -> list[Series]:
        """The series, in the order in which they came; an empty one if nothing was found."""
        return list(self.series.values()) or [self._new({})]

    @property
    def count(self) -> int:
        """How many values there are, without warm-up."""
        return sum(each.count for each in self.series.values())

    @property
    def has_values(self) -> bool:
        """Whether there is any value, even of the warm-up alone."""
        return any(each.count or each.left_out for each in self.series.values())

    def add(self, labels: str, values: Sequence[float], *, warmup: bool) -> None:
        """Take in values of a set of labels, in their order."""
        is_known = labels in self.series or len(self.series) < LABEL_SETS
        key = labels if is_known else OTHERS
        if key not in self.series:
            self.series[key] = self._new(
                json.loads(labels) if labels and is_known else {}, shared=not is_known
            )
        if warmup:
            self.series[key].leave_out(values)
        else:
            self.series[key].add_all(values)

    def as_table(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        rows = self.rows
        if len(rows) > 1 or rows[0].labels:
            own: dict[str, Any] = {"name": self.metric.name, "units": self.metric.units, "count": self.count}
            own["series"] = [each.as_table() for each in rows]
        else:
            own = rows[0].as_table()
        return {
            **own,
            "not_numbers": self.not_numbers,
            "not_number": self.not_number,
            "doubts": self.doubts,
            "doubt_examples": self.doubt_examples,
            "near": self.near,
        }

    @property
    def matched(self) -> bool:
        """Whether the pattern matched anywhere, even without a usable value."""
        return bool(self.has_values or self.not_numbers)

    @property
    def missing(self) -> bool:
        """Whether a run with this log would fail for lack of this metric."""
        return self.metric.required and not self.has_values

    def _new(self, labels: dict[str, str], *, shared: bool = False) -> Series:
        metric = self.metric
        name = metric.name + OTHERS if shared else labelled_name({"name": metric.name, "labels": labels})
        # Of many series together no number is the headline.
        how = None if shared else metric.headline
        return Series(name, metric.units, metric.better, metric=metric.name, labels=labels, headline_is=how)
