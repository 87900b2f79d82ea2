"""The last value of each series of a run, and how many there were. All of it comes from `metrics.jsonl`, again after a restart."""

from __future__ import annotations

from pathlib import Path

from bai_agent.sinks.backlog import Backlog
from bai_agent.sinks.prometheus.exposition import Family, exposition, label_names, labels_text, metric_name
from bai_agent.sinks.record import HOST, Record, read_record

MOST_SERIES = 10_000
"""Of one run: a label that is another one each time would otherwise fill this memory, and Prometheus'."""
_COUNT_NAME = "bai_values_total"
_COUNT_HELP = "Values of the metric so far."


class LatestValues:
    """Reads what has been appended since the last look."""

    def __init__(self, metrics: Path, labels: dict[str, str], *, host_metrics: bool) -> None:
        """labels: of every series."""
        self._backlog: Backlog[Record] = Backlog(metrics, self._wanted)
        self._labels = labels
        self._host_metrics = host_metrics
        self._offset = 0
        self._families: dict[str, Family] = {}
        self._counts = Family(name=_COUNT_NAME, kind="counter", help=_COUNT_HELP, samples={})
        self._texts: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[Family, str, str]] = {}
        self.records = 0
        """Those whose value is, or was, the last one of its series."""
        self.malformed = 0
        self.left_out = 0
        """Records of series beyond `MOST_SERIES`."""

    def look(self) -> bool:
        """Take what is new; return whether there was any. Raises OSError."""
        any_new = False
        while (batch := self._backlog.read(self._offset)).end != self._offset:
            for record in batch.messages:
                self._take(record)
            self.malformed += batch.malformed
            self._offset = batch.end
            any_new = True
        return any_new

    def left(self, *, deadline: float) -> int:
        """Return how many records were not looked at; as many as were counted until `deadline` (of `time.monotonic()`)."""
        return self._backlog.count(self._offset, deadline=deadline, host_metrics=self._host_metrics)

    def text(self) -> bytes:
        """Return all series in Prometheus' text format."""
        return exposition([*self._families.values(), *([self._counts] if self._counts.samples else [])])

    def _wanted(self, line: bytes) -> Record | None:
        record = read_record(line)
        return None if record.src == HOST and not self._host_metrics else record

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
