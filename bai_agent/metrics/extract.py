"""Lines in, numbers out: pure, and the same whichever way the lines were found (see `patterns.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from bai_agent.metrics.follow import CHUNK
from bai_agent.metrics.patterns import PatternSet, Searcher
from bai_agent.metrics.reading import Findings
from bai_agent.metrics.terminal import visible

Found = tuple[int, int, int, str, str]
"""One number: the line's offset, the metric's index, the match's number, the value as JSON, and what else the record has:
JSON members, each with a comma in front."""
_Candidate = tuple[int, str, Sequence[Searcher]]
"""A line to search: its place in the block, its text (Latin-1) and the patterns to search it with, by index."""

BATCH = 4096
"""About so many numbers are handed over at once, so that memory stays flat."""
_LINES_AT_ONCE = 256
_PLANS = 4096
_WINDOW = 64 * 1024


class Guard(Protocol):
    """Bounds the time of a search; see `watchdog.py`."""

    careful: bool

    def lines(self) -> None:
        """Some lines are about to be searched."""

    def search(self, index: int, offset: int) -> None:
        """With `careful`: one pattern is about to search the line at `offset`."""

    def rest(self) -> None:
        """Nothing is being searched."""

    def resume(self) -> None:
        """The search that `rest` interrupted goes on."""


class Extraction:
    """Finds the numbers of one set of patterns."""

    def __init__(self, patterns: PatternSet, *, findings: Findings, guard: Guard) -> None:
        self._everywhere = patterns.everywhere
        self._last_only = patterns.last_only
        self._exact = patterns.exact
        self._folded = patterns.folded
        self._findings = findings
        self._guard = guard
        self._plans: dict[tuple[int, ...], Sequence[Searcher]] = {}
        self._searcher = patterns.searcher
        self._metrics = [
            *(patterns.exact.metrics if patterns.exact else ()),
            *(patterns.folded.metrics if patterns.folded else ()),
        ]
        """By the number of a hit: the metrics that it stands for, exact texts before folded ones."""
        self._folded_from = len(patterns.exact.metrics) if patterns.exact else 0

    def find(
        self, data: bytes, offset: int, repainted: frozenset[int] = frozenset()
    ) -> Iterator[list[Found]]:
        """Yield the numbers in `data` (whole lines, each ended by a newline, from `offset` on) in their order.

        Metrics that want only the last state of a progress bar are not searched in lines that begin at `repainted`.
        """
        candidates = self._candidates(data)
        if repainted and self._last_only:
            candidates = [
                (place, line, self._without_last(searchers) if offset + place in repainted else searchers)
                for place, line, searchers in candidates
            ]
        for begin in range(0, len(candidates), _LINES_AT_ONCE):
            self._guard.lines()
            yield from self._search(candidates[begin : begin + _LINES_AT_ONCE], offset)
        self._guard.rest()

    def _search(self, candidates: Sequence[_Candidate], base: int) -> Iterator[list[Found]]:
        found: list[Found] = []
        add = found.append
        guard = self._guard
        findings = self._findings
        careful = guard.careful
        for place, line, searchers in candidates:
            offset = base + place
            for (
                index,
                search,
                search_all,
                group,
                fast_number,
                read,
                extra,
                decodes,
                can_be_empty,
            ) in searchers:
                if careful:
                    guard.search(index, offset)
                text = line.encode("latin-1").decode("utf-8", "replace") if decodes else line
                first = search(text)
                if first is None:
                    continue
                # Most lines hold one match; to look for a second costs less than the iterator.
                several = can_be_empty or search(text, first.end())
                taken = 0
                for k, match in enumerate(search_all(text) if several else (first,)):
                    start, end = match.span(group)
                    if taken and 0 <= start < taken:
                        continue
                    number: str | None
                    if (whole := fast_number(text, start)) and whole.end() == end:
                        number = whole[0]
                    else:
                        number, taken = read(text, match, findings)
                        if number is None:
                            continue
                    add((offset, index, k, number, extra(match) if extra else ""))
                    if k >= BATCH and len(found) >= BATCH:
                        guard.rest()
                        yield found
                        guard.resume()
                        found = []
                        add = found.append
            if len(found) >= BATCH:
                guard.rest()
                yield found
                guard.resume()
                found = []
                add = found.append
        if found:
            guard.rest()
            yield found

    def _without_last(self, searchers: Sequence[Searcher]) -> Sequence[Searcher]:
        return [each for each in searchers if each.metric not in self._last_only]

    def _candidates(self, data: bytes) -> list[_Candidate]:
        """Return the lines of `data` to search, by their place."""
        clean = visible(data) if b"\x1b" in data or b"\x08" in data else data
        if self._everywhere:
            return self._every_line(data, clean)
        lines = self._hits_by_windows(clean) if len(data) > 4 * CHUNK else self._hits(clean)
        hits = [
            (start, clean[start:end].decode("latin-1"), self._plan(tuple(ids))) for start, end, ids in lines
        ]
        if clean is data or not hits:
            return hits
        places = dict(zip(_line_starts(clean), _line_starts(data), strict=True))
        return [(places[start], line, plan) for start, line, plan in hits]

    def _every_line(self, data: bytes, clean: bytes) -> list[_Candidate]:
        windowed = len(data) > 4 * CHUNK
        hits = {
            start: ids for start, _, ids in (self._hits_by_windows(clean) if windowed else self._hits(clean))
        }
        candidates: list[_Candidate] = []
        place = start = 0
        for raw, line in zip(data.split(b"\n"), clean.split(b"\n"), strict=True):
            if raw:
                candidates.append((place, line.decode("latin-1"), self._plan(tuple(hits.get(start, ())))))
            place += len(raw) + 1
            start += len(line) + 1
        return candidates

    def _plan(self, ids: tuple[int, ...]) -> Sequence[Searcher]:
        """Return the searchers that the texts `ids` call for, each once, by the metrics' order."""
        plan = self._plans.get(ids)
        if plan is None:
            metrics = {metric for number in ids for metric in self._metrics[number]}
            plan = [self._searcher(metric) for metric in sorted(metrics.union(self._everywhere))]
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            self._plans[ids] = plan
        return plan

    def _hits(self, data: bytes) -> list[tuple[int, int, list[int]]]:
        """Return start, end and required texts of each line that contains one."""
        lines: list[tuple[int, int, list[int]]] = []
        line_end = -1
        ids: list[int] = []
        for number, start, _ in self._scan(data):
            if start < line_end:
                if number not in ids:
                    ids.append(number)
                continue
            line_start = data.rfind(b"\n", line_end + 1, start) + 1 or line_end + 1
            line_end = data.find(b"\n", start)
            ids = [number]
            lines.append((line_start, line_end, ids))
        return lines

    def _hits_by_windows(self, data: bytes) -> list[tuple[int, int, list[int]]]:
        """Return what `_hits` does, without holding an entry for each occurrence in a very long line."""
        prefilters = [each for each in (self._exact, self._folded) if each]
        overlap = max((len(text) for each in prefilters for text in each.literals), default=1) - 1
        lines = []
        start = 0
        for line in data.split(b"\n"):
            ids: set[int] = set()
            for begin in range(0, len(line), _WINDOW):
                ids.update(number for number, _, _ in self._scan(line[begin : begin + _WINDOW + overlap]))
            if ids:
                lines.append((start, start + len(line), sorted(ids)))
            start += len(line) + 1
        return lines

    def _scan(self, data: bytes) -> list[tuple[int, int, int]]:
        hits = self._exact.scan(data, overlapping=True) if self._exact else []
        if self._folded:
            more = self._folded.scan(data.lower(), overlapping=True)
            if more:
                shift = self._folded_from
                hits = sorted(
                    [*hits, *((number + shift, start, end) for number, start, end in more)], key=_start
                )
        return hits


def _start(hit: tuple[int, int, int]) -> int:
    return hit[1]


def _line_starts(data: bytes) -> list[int]:
    return [0, *(match.end() for match in re.finditer(b"\n", data))]
