"""Tells in which sections of a log a metric counts: `after` and `until` of its table.

Whether a section is open follows from the last line in front that matched one of its two patterns. That is kept with each log's place,
so a restarted extractor goes on with it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bai_agent.job.descriptor import Metric
from bai_agent.metrics.extract import Closed, Guard
from bai_agent.metrics.line_markers import LineMarkers

_Section = tuple[str | None, str | None]


class SectionMarkers:
    """The lines at which sections of some metrics begin and end. Metrics with the same two patterns share a section."""

    def __init__(self, metrics: Sequence[Metric], *, guard: Guard, fast: bool) -> None:
        sections: dict[_Section, list[int]] = {}
        for index, metric in enumerate(metrics):
            if metric.after is not None or metric.until is not None:
                sections.setdefault((metric.after, metric.until), []).append(index)
        self._sections = list(sections)
        self._metrics = list(sections.values())
        """By section: the metrics that count in it alone."""
        self._patterns = list(dict.fromkeys(each for pair in sections for each in pair if each is not None))
        users = [
            [metric for pair, indexes in sections.items() if pattern in pair for metric in indexes]
            for pattern in self._patterns
        ]
        self._lines = LineMarkers(self._patterns, users, guard=guard, fast=fast)
        self.at_start = frozenset(number for number, (after, _) in enumerate(self._sections) if after is None)
        """The sections that are open where a log begins."""

    def __bool__(self) -> bool:
        return bool(self._sections)

    def read(
        self, data: bytes, offset: int, opened: frozenset[int], *, without: frozenset[int]
    ) -> tuple[list[Closed], frozenset[int]]:
        """Return which metrics do not count from where on in `data`, and what is open behind it.

        data: whole lines, from `offset` of the file on. opened: the sections that are open in front of it. without: metrics that are
        switched off.
        """
        closed = [Closed(offset, self._closed(opened))]
        for line, matched in self._lines.matching(data, offset, without=without):
            patterns = {self._patterns[number] for number, _ in matched}
            at_line = set(opened)
            behind = set(opened)
            for number, (after, until) in enumerate(self._sections):
                if after in patterns or until in patterns:
                    at_line.discard(number)
                    behind.discard(number)
                if after in patterns:
                    behind.add(number)
            opened = frozenset(behind)
            closed.append(Closed(line, self._closed(at_line)))
            closed.append(Closed(offset + data.index(b"\n", line - offset) + 1, self._closed(opened)))
        return closed, opened

    def _closed(self, opened: Collection[int]) -> frozenset[int]:
        return frozenset(
            metric
            for number, metrics in enumerate(self._metrics)
            if number not in opened
            for metric in metrics
        )


class Sections:
    """Which sections are open in one log, up to where it has been read."""

    def __init__(self, markers: SectionMarkers, opened: Collection[int] | None = None) -> None:
        """opened: as it was at the place where reading goes on; None: the log is read from its beginning."""
        self._markers = markers
        self.opened = markers.at_start if opened is None else frozenset(opened)

    def reset(self) -> None:
        """Begin anew, as at the beginning of a log: no section reaches over this place."""
        self.opened = self._markers.at_start

    def read(self, data: bytes, offset: int, *, without: frozenset[int] = frozenset()) -> list[Closed]:
        """Return which metrics do not count from where on in `data`, whole lines that follow what was read before."""
        closed, self.opened = self._markers.read(data, offset, self.opened, without=without)
        return closed
