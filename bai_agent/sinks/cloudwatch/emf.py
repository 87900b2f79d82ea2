"""CloudWatch's embedded metric format: records become log events from which CloudWatch makes metrics.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bai_agent.job.descriptor import MOST_DIMENSIONS, CloudWatch
from bai_agent.sinks.record import Record

_MOST_METRICS = 100
_MOST_VALUES = 100
_LONGEST_EVENT = 256 * 1024
_LONGEST_NAME, _LONGEST_VALUE = 255, 1024
_LARGEST, _SMALLEST = 1.174271e108, 8.515920e-109
"""Beyond them CloudWatch takes no value, but for 0."""
_NOT_PRINTABLE = re.compile(r"[^\x20-\x7e]")
_NO_DIMENSIONS = frozenset(["action-id", "parent-action-id"])
"""Labels that are another in each job: each would make a metric of its own, which is charged for."""


@dataclass(frozen=True)
class LogEvent:
    """A log event, and how many records are in it."""

    timestamp: int
    """ms UTC."""
    message: str
    records: int


@dataclass
class _Document:
    """What becomes one log event: values of one moment with the same labels."""

    timestamp: int
    labels: dict[str, str]
    metrics: dict[str, tuple[str, list[float]]] = field(default_factory=dict)
    """Name → units and values."""

    def add(self, record: Record) -> bool:
        """Add a record; return False where it has to go into another document."""
        name = _name(record.name)
        found = self.metrics.get(name)
        if found is None:
            if len(self.metrics) == _MOST_METRICS:
                return False
            self.metrics[name] = record.units, [record.value]
            return True
        units, values = found
        if units != record.units or len(values) == _MOST_VALUES:
            return False
        values.append(record.value)
        return True


class EventWriter:
    """Makes log events of the records of one node of a job."""

    def __init__(self, table: CloudWatch, labels: Mapping[str, str]) -> None:
        """labels: of every record, beside its own."""
        self._table = table
        self._labels = dict(labels)

    def events(self, records: Iterable[Record]) -> tuple[list[LogEvent], int]:
        """Return the events of `records`, the oldest first as CloudWatch wants them, and how many records it would not take."""
        open_documents: dict[tuple[int, tuple[tuple[str, str], ...]], _Document] = {}
        documents: list[_Document] = []
        refused = 0
        for record in records:
            if record.value and not _SMALLEST <= abs(record.value) <= _LARGEST:
                refused += 1
                continue
            key = record.timestamp, tuple(record.labels.items())
            document = open_documents.get(key)
            if document is None or not document.add(record):
                document = _Document(record.timestamp, {**record.labels, **self._labels})
                document.add(record)
                documents.append(document)
                open_documents[key] = document
        events = []
        for document in documents:
            count = sum(len(values) for _, values in document.metrics.values())
            message = self._message(document)
            if len(message.encode("utf-8", "replace")) > _LONGEST_EVENT:
                refused += count
            else:
                events.append(LogEvent(document.timestamp, message, count))
        return sorted(events, key=lambda event: event.timestamp), refused

    def _message(self, document: _Document) -> str:
        dimensions = self._dimensions(document.labels)
        root: dict[str, Any] = {
            _name(label): value.encode("utf-8", "replace").decode()
            for label, value in document.labels.items()
        }
        root |= dimensions
        definitions = []
        for name, (units, values) in document.metrics.items():
            key = name
            while key in root or key == "_aws":
                key = f"{key[: _LONGEST_NAME - 6]}_value"
            root[key] = values[0] if len(values) == 1 else values
            definition: dict[str, Any] = {"Name": key}
            if unit := cloudwatch_unit(units):
                definition["Unit"] = unit
            if self._table.high_resolution:
                definition["StorageResolution"] = 1
            definitions.append(definition)
        directive = {
            "Namespace": self._table.namespace,
            "Dimensions": [list(dimensions)],
            "Metrics": definitions,
        }
        root["_aws"] = {"Timestamp": document.timestamp, "CloudWatchMetrics": [directive]}
        return json.dumps(root)

    def _dimensions(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Return those labels that are dimensions, as CloudWatch takes them: printable ASCII, neither empty nor too long."""
        names = self._table.dimensions
        if names is None:
            names = tuple(sorted(labels.keys() - _NO_DIMENSIONS))[:MOST_DIMENSIONS]
        return {_name(name): _value(labels[name]) for name in names if labels.get(name, "").strip()}


_NAMED = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "Seconds"),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), "Milliseconds"),
    **dict.fromkeys(("us", "µs", "usec", "microsecond", "microseconds"), "Microseconds"),
    **dict.fromkeys(("%", "percent", "pct"), "Percent"),
    "count": "Count",
}
_PREFIXES = {"": "", "k": "Kilo", "K": "Kilo", "M": "Mega", "G": "Giga", "T": "Tera"}
_AMOUNT = re.compile(r"(?P<prefix>[kKMGT]?)(?P<kind>B|[bB]ytes?|b|[bB]its?)(?P<rate>/s|/sec|ps)?")
_COUNT_RATE = re.compile(r"(?:1|[A-Za-z_ ]+)?/s(?:ec|econd)?")


def cloudwatch_unit(units: str) -> str | None:
    """Return CloudWatch's word for `units`; None where it has none, such as for KiB, hours and nats.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_MetricDatum.html
    """
    if found := _NAMED.get(units):
        return found
    if amount := _AMOUNT.fullmatch(units):
        is_bytes = amount["kind"] == "B" or amount["kind"].lower().startswith("byte")
        name = (_PREFIXES[amount["prefix"]] + ("bytes" if is_bytes else "bits")).capitalize()
        return f"{name}/Second" if amount["rate"] else name
    return "Count/Second" if _COUNT_RATE.fullmatch(units) and not _is_size(units) else None


def _name(text: str) -> str:
    """Return a name that CloudWatch takes for a metric or a dimension."""
    name = _NOT_PRINTABLE.sub("_", text).strip().lstrip(":")[:_LONGEST_NAME]
    return name if name not in ("", "_aws") else "_"


def _value(text: str) -> str:
    return _NOT_PRINTABLE.sub("_", text)[:_LONGEST_VALUE].strip() or "_"


def _is_size(units: str) -> bool:
    """Return whether `units` is an amount of data that CloudWatch has no word for: "MiB/s"."""
    return re.match(r"[KMGTPE]i?(?:B|b)", units) is not None
