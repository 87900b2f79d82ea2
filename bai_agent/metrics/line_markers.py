"""Searches a log for lines that say something about the lines after them: where a section begins, which unit a table is in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bai_agent.job.descriptor import Metric
from bai_agent.metrics.extract import Extraction, Guard, MatchingLine
from bai_agent.metrics.patterns import compile_patterns


class LineMarkers:
    """Patterns of marking lines, each with the metrics that use it."""

    def __init__(
        self, patterns: Sequence[str], users: Sequence[Sequence[int]], *, guard: Guard, fast: bool
    ) -> None:
        """users: by pattern, the indexes of its metrics."""
        self._patterns = patterns
        self._users = users
        self._guard = guard
        self._fast = fast
        self._search: tuple[frozenset[int], Extraction] | None = None

    def matching(self, data: bytes, offset: int, *, without: frozenset[int]) -> list[MatchingLine]:
        """Return the marking lines of `data`, whole lines from `offset` on; without: metrics that are switched off."""
        return self._extraction(without).matching(data, offset)

    def guard(self, without: frozenset[int]) -> Guard:
        """Return what bounds a search with one of the patterns: what takes too long is a metric's, which is then switched off."""
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
    """The guard of a search for markers."""

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
    """Of a marker no value is read, so there is nothing to remark."""

    def not_a_number(self, index: int, text: str) -> None: ...
    def doubtful(self, *_about: object) -> None: ...
