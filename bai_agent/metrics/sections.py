"""Lines of a log that affect the lines after them, and the sections in which a metric is searched (`after`
and `until`).

The most recent earlier line that matched one of a section's two patterns decides whether the section is open.
Whether a section is open is saved together with each log's position, so a restarted extractor continues
correctly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from bai_agent.job.descriptor.metric_tables import Metric
from bai_agent.metrics.search.extract import Closed, Extraction, Guard, MatchingLine
from bai_agent.metrics.search.patterns import compile_patterns


class LineMarkers:
    """Searches a log for marker lines, such as beginnings of sections and units of tables. Each pattern
    belongs to the metrics that use the pattern."""

    def __init__(
        self, patterns: Sequence[str], users: Sequence[Sequence[int]], *, guard: Guard, fast: bool
    ) -> None:
        """users: the indexes of the metrics of each pattern."""
        self._patterns = patterns
        self._users = users
        self._guard = guard
        self._fast = fast
        self._search: tuple[frozenset[int], Extraction] | None = None

    def matching(self, data: bytes, offset: int, *, without: frozenset[int]) -> list[MatchingLine]:
        """Return the marker lines of `data`, which are complete lines from `offset` on. without: disabled metrics."""
        return self._extraction(without).matching(data, offset)

    def guard(self, without: frozenset[int]) -> Guard:
        """Return the guard of the searches for markers. The guard attributes a slow search to a metric, so
        that this metric is disabled."""
        users = [[metric for metric in metrics if metric not in without] for metrics in self._users]
        return _Blaming(self._guard, {number: metrics[0] for number, metrics in enumerate(users) if metrics})

    def _extraction(self, without: frozenset[int]) -> Extraction:
        if self._search is None or self._search[0] != without:
            markers = [Metric(name="", pattern=pattern) for pattern in self._patterns]
            unused = frozenset(
                number for number, metrics in enumerate(self._users) if without.issuperset(metrics)
            )
            patterns = compile_patterns(markers, without=unused, fast=self._fast)
            self._search = without, Extraction(patterns, findings=_Silent(), guard=self.guard(without))
        return self._search[1]


class _Blaming:
    """The guard of a search for marker lines."""

    def __init__(self, guard: Guard, metrics: dict[int, int]) -> None:
        self._guard = guard
        self._metrics = metrics
        self.careful = guard.careful
        self.lines: Callable[[], None] = guard.lines
        self.rest: Callable[[], None] = guard.rest
        self.resume: Callable[[], None] = guard.resume

    def search(self, index: int, offset: int) -> None:
        self._guard.search(self._metrics[index], offset)


class _Silent:
    """`MatchFindings` that ignore all findings. A search for marker lines reads no values, so the findings have no meaning."""

    def not_a_number(self, index: int, text: str) -> None: ...
    def doubtful(self, *_about: object) -> None: ...


_Section = tuple[str | None, str | None]


class SectionMarkers:
    """The lines at which sections begin and end. Metrics with the same two patterns share a section."""

    def __init__(self, metrics: Sequence[Metric], *, guard: Guard, fast: bool) -> None:
        sections: dict[_Section, list[int]] = {}
        for index, metric in enumerate(metrics):
            if metric.after is not None or metric.until is not None:
                sections.setdefault((metric.after, metric.until), []).append(index)
        self._sections = list(sections)
        self._metrics = list(sections.values())
        """For each section, the metrics that are only searched inside the section."""
        self._patterns = list(dict.fromkeys(each for pair in sections for each in pair if each is not None))
        users = [
            [metric for pair, indexes in sections.items() if pattern in pair for metric in indexes]
            for pattern in self._patterns
        ]
        self._lines = LineMarkers(self._patterns, users, guard=guard, fast=fast)
        self.at_start = frozenset(number for number, (after, _) in enumerate(self._sections) if after is None)
        """The sections that are open at the beginning of a log."""

    def __bool__(self) -> bool:
        return bool(self._sections)

    def read(
        self, data: bytes, offset: int, opened: frozenset[int], *, without: frozenset[int]
    ) -> tuple[list[Closed], frozenset[int]]:
        """Return the offsets in `data` from which on metrics are not searched, and the sections that are open
        after `data`.

        data: complete lines, from `offset` of the file on. opened: the sections that are open before `data`. without: disabled
        metrics.
        """
        closed = [Closed(offset, self._closed(opened))]
        for line, matched in self._lines.matching(data, offset, without=without):
            patterns = {self._patterns[number] for number, _ in matched}
            at_line = set(opened)
            after_line = set(opened)
            for number, (after, until) in enumerate(self._sections):
                if after in patterns or until in patterns:
                    at_line.discard(number)
                    after_line.discard(number)
                if after in patterns:
                    after_line.add(number)
            opened = frozenset(after_line)
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
    """The open sections of one log at the position up to which it was read."""

    def __init__(self, markers: SectionMarkers, opened: Collection[int] | None = None) -> None:
        """opened: the sections that are open at the position where reading continues. None at the beginning of the log."""
        self._markers = markers
        self.opened = markers.at_start if opened is None else frozenset(opened)

    def reset(self) -> None:
        """Close all sections, as at the beginning of a log."""
        self.opened = self._markers.at_start

    def read(self, data: bytes, offset: int, *, without: frozenset[int] = frozenset()) -> list[Closed]:
        """Return the offsets in `data` from which on metrics are not searched. data: the log's next complete
        lines."""
        closed, self.opened = self._markers.read(data, offset, self.opened, without=without)
        return closed
