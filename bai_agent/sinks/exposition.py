"""Writes the last value of each series of a run, and the number of its values, in Prometheus' text format.

A restarted agent reads all values again from `metrics.jsonl`.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
https://prometheus.io/docs/concepts/data_model/#metric-names-and-labels
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from bai_agent.light_dataclass import dataclass
from bai_agent.sinks.backlog import Backlog, Record, read_wanted

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "BAI_METRICS_"
"""Prefix of the names of all metrics of a benchmark. The benchmark service's own exporter uses the same
prefix, so that the same dashboards can be used."""
OWN_LABELS = frozenset(["job", "instance", "job_id", "rank"])
"""Labels that identify the run. A user's label with one of these names is renamed to `exported_…`, as
Prometheus itself does."""

MOST_SERIES = 10_000
"""Largest number of series of one run. Without this limit, a label with ever new values would fill the memory
of this process and of Prometheus."""
_COUNT_NAME = "bai_values_total"
_COUNT_HELP = "Values of the metric so far."
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


@dataclass
class Family:
    """All series with the same name."""

    name: str
    kind: str
    """gauge or counter."""
    help: str
    samples: dict[str, float]
    """Value of each series, by its labels as `labels_text` writes them."""


class LatestValues:
    """Reads new records of `metrics.jsonl`, and keeps the last value of each series."""

    def __init__(self, metrics: Path, labels: dict[str, str], *, host_metrics: bool) -> None:
        """labels: labels that every series gets."""
        wanted = partial(read_wanted, host_metrics=host_metrics)
        self._backlog: Backlog[Record] = Backlog(metrics, wanted)
        self._labels = labels
        self._host_metrics = host_metrics
        self._offset = 0
        self._families: dict[str, Family] = {}
        self._counts = Family(name=_COUNT_NAME, kind="counter", help=_COUNT_HELP, samples={})
        self._texts: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[Family, str, str]] = {}
        self.records = 0
        """Number of records that were added to a series."""
        self.malformed = 0
        self.left_out = 0
        """Number of records that belong to series beyond `MOST_SERIES`."""

    def look(self) -> bool:
        """Read the new records. Return whether there were new records. Raises OSError."""
        any_new = False
        while (batch := self._backlog.read(self._offset)).end != self._offset:
            for record in batch.messages:
                self._take(record)
            self.malformed += batch.malformed
            self._offset = batch.end
            any_new = True
        return any_new

    def left(self, *, deadline: float) -> int:
        """Return the number of records that were not read. Counting ends at `deadline` (time of
        `time.monotonic()`)."""
        return self._backlog.count(self._offset, deadline=deadline, host_metrics=self._host_metrics)

    def text(self) -> bytes:
        """Return all series in Prometheus' text format."""
        return exposition([*self._families.values(), *([self._counts] if self._counts.samples else [])])

    def _take(self, record: Record) -> None:
        key = record.name, tuple(record.labels.items())
        place = self._texts.get(key) or self._new_series(record)
        if place is None:
            self.left_out += 1
            return
        self._texts[key] = place
        family, labels, count_labels = place
        family.samples[labels] = record.value
        self._counts.samples[count_labels] = self._counts.samples.get(count_labels, 0) + 1
        self.records += 1

    def _new_series(self, record: Record) -> tuple[Family, str, str] | None:
        if len(self._texts) >= MOST_SERIES:
            return None
        name = metric_name(record.name)
        labels = {**label_names(record.labels), **self._labels}
        named = {**labels, "name": record.name.encode("utf-8", "replace").decode()}
        if not name.endswith(record.name):
            labels = named
        family = self._families.get(name)
        if family is None:
            help_text = f"{record.name}{f', in {record.units}' if record.units else ''}"
            family = self._families[name] = Family(name=name, kind="gauge", help=help_text, samples={})
        return family, labels_text(labels), labels_text(named)


def metric_name(name: str) -> str:
    """Return Prometheus' name of the metric `name`."""
    return PREFIX + _NOT_IN_A_NAME.sub("_", name)


def label_names(labels: Mapping[str, str]) -> dict[str, str]:
    """Return `labels` with names that Prometheus accepts. If the names of two labels become the same, the labels' values are
    joined by a semicolon."""
    found: dict[str, str] = {}
    for key in sorted(labels):
        name = _NOT_IN_A_NAME.sub("_", key)
        if not name or name[0].isdigit() or name.startswith("__"):
            name = f"label_{name}"
        if name in OWN_LABELS:
            name = f"exported_{name}"
        value = labels[key].encode("utf-8", "replace").decode()
        found[name] = f"{found[name]};{value}" if name in found else value
    return found


def labels_text(labels: Mapping[str, str]) -> str:
    """Return labels in the form in which they are written between a metric's name and its value."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(labels[name])}"' for name in sorted(labels)) + "}"


def exposition(families: Iterable[Family]) -> bytes:
    """Return the text of all families."""
    lines: list[str] = []
    for family in families:
        help_text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        lines += [f"# HELP {family.name} {help_text}\n", f"# TYPE {family.name} {family.kind}\n"]
        lines += [f"{family.name}{labels} {float(value)!r}\n" for labels, value in family.samples.items()]
    return "".join(lines).encode("utf-8", "replace")


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
