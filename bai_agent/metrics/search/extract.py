"""Extracts numbers from lines, without side effects. Every way of finding lines (see `patterns.py`) gives the
same result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import accumulate, compress, count
from operator import add, itemgetter
from typing import NamedTuple, Protocol

from bai_agent.metrics.follow import CHUNK
from bai_agent.metrics.search.dense import Columns, MetricColumn, find_column, in_order, search_at_once
from bai_agent.metrics.search.patterns import Found, Occurrences, PatternSet, Searcher, occurrences_without
from bai_agent.metrics.search.reading import MatchFindings
from bai_agent.metrics.search.terminal import visible

_Candidate = tuple[int, str, Sequence[Searcher]]
"""A line to search: its place in the block, its text (decoded as Latin-1), and the searchers of the patterns
that search the line."""
_Hit = tuple[int, int, int]
"""An occurrence of a required text: the text's number, and the occurrence's start and end."""
_Line = tuple[int, int, list[int]]
"""Start and end of a line that contains required texts, and the numbers of these texts."""

BATCH = 4096
"""Approximate number of values that are returned at once. The number is limited to bound memory."""
_LINES_AT_ONCE = 512
_FEWEST_AT_ONCE = 8
"""Minimum number of lines that are searched at once."""
_PLANS = 4096
_WINDOW = 64 * 1024
_DENSE = 0.75
"""If more than this share of the lines contains a required text, the text's patterns search all lines at
once."""
_DOUBT, _MOST_DOUBTS = 8, 128
"""`_DOUBT`: weight of a failed search of many lines. A successful search has the weight -1. `_MOST_DOUBTS`: if the sum of a
pattern's weights reaches this number, the pattern searches line by line."""
_SCANS = 8
"""Maximum number of sets of required texts for which separate automatons are stored."""
_MOST_AT_ONCE = 2**16
"""Maximum number of values in a block whose lines are searched at once. A block with more values is searched
line by line, so that memory is bounded."""
_MOST_SETTLED = 32
"""Maximum number of patterns that search a block without a count of their required texts."""


class Closed(NamedTuple):
    """Metrics that are not searched from an offset of the file on, up to the offset of the next `Closed`."""

    offset: int
    metrics: frozenset[int]


class _Lines(NamedTuple):
    """Some lines of a block."""

    text: str
    offsets: Sequence[int]
    """Beginning of each line in the file."""


class MatchingLine(NamedTuple):
    """A line with matches."""

    offset: int
    """Offset of the line in the file."""
    matched: list[tuple[int, str]]
    """For each metric that the line matches: the metric's index, and the line in the form in which it is
    searched."""


class Guard(Protocol):
    """Limits the time of each search; see `search_limit.py`."""

    careful: bool

    def lines(self) -> None:
        """Set the timer for a search of several lines."""

    def search(self, index: int, offset: int) -> None:
        """Set the timer for a search with one pattern in the line at `offset`. Called only if `careful` is set."""

    def rest(self) -> None:
        """Stop the timer after a search."""

    def resume(self) -> None:
        """Continue the timer that `rest` stopped."""


class Extraction:
    """Finds the numbers of one set of patterns."""

    def __init__(self, patterns: PatternSet, *, findings: MatchFindings, guard: Guard) -> None:
        self._everywhere = patterns.everywhere
        self._last_only = patterns.last_only
        self._in_sections = patterns.in_sections
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
        """Metrics of each required text, by the text's number. Texts that ignore case come last."""
        self._folded_from = len(patterns.exact.metrics) if patterns.exact else 0
        self._doubts: Counter[int] = Counter()
        """For each metric, the weighted number of failed searches of many lines minus the number of
        successful searches."""
        self._odd: Counter[int] = Counter()
        """For each metric, the weighted number of searches in which a line did not have exactly one value, minus the number of
        other searches and of skipped searches."""
        self._settled: frozenset[int] = frozenset()
        """Required texts that occurred in nearly every line of the last block."""
        self._scans: dict[frozenset[int], Callable[[bytes], list[_Hit]]] = {}

    def find(
        self, data: bytes, offset: int, repainted: frozenset[int] = frozenset(), closed: Sequence[Closed] = ()
    ) -> Iterator[list[Found]]:
        """Yield the numbers that `find_many` finds, one by one."""
        for each in self.find_many(data, offset, repainted, closed):
            yield each.found() if isinstance(each, Columns) else each

    def find_many(
        self, data: bytes, offset: int, repainted: frozenset[int] = frozenset(), closed: Sequence[Closed] = ()
    ) -> Iterator[Columns | list[Found]]:
        """Yield the numbers in `data` (complete lines, from `offset` on) in their order.

        Metrics that want only the last state of a progress bar are not searched in lines at `repainted`.
        A metric with sections is not searched in the lines for which `closed` lists the metric.
        """
        clean = visible(data)
        if len(data) > 4 * CHUNK:
            lines = self._hits_by_windows(clean)
        else:
            settled = frozenset() if self._guard.careful else self._settled
            hits = self._scan_without(settled)(clean)
            dense = settled if self._guard.careful else settled | self._dense(hits, clean)
            if dense:
                yield from self._find_dense(data, clean, offset, hits, dense, repainted, closed)
                return
            lines = _lines_of(clean, hits)
        candidates = self._to_search(self._candidates(data, clean, lines), offset, repainted, closed)
        for begin in range(0, len(candidates), _LINES_AT_ONCE):
            batch = candidates[begin : begin + _LINES_AT_ONCE]
            columns = self._columns_of_lines(batch, offset)
            if columns is not None:
                yield columns
                continue
            self._guard.lines()
            yield from self._search(batch, offset)
        self._guard.rest()

    def _columns_of_lines(self, candidates: Sequence[_Candidate], base: int) -> Columns | None:
        """Return the values of all patterns in lines that contain the required texts of all these patterns.
        Return None if a line does not have exactly one value of each pattern."""
        searchers = candidates[0][2]
        if len(candidates) < _FEWEST_AT_ONCE or self._guard.careful:
            return None
        if any(each is not searchers for _, _, each in candidates):
            return None
        text = "\n".join([*(line for _, line, _ in candidates), ""])
        columns = self._columns(searchers, text, len(candidates))
        self._guard.rest()
        return None if columns is None else Columns([base + place for place, _, _ in candidates], columns)

    def _columns(self, searchers: Sequence[Searcher], text: str, lines: int) -> list[MetricColumn] | None:
        """Return the values of each pattern in a text of `lines` lines. Return None if a pattern does not
        have one value in each line."""
        odd = self._odd
        doubtful = [each.metric for each in searchers if odd[each.metric] >= _MOST_DOUBTS]
        if doubtful:
            odd.subtract(doubtful)
            return None
        columns = []
        for searcher in searchers:
            many = searcher.many()
            self._guard.lines()
            column = None if many is None else find_column(many, text, lines)
            if column is None:
                odd[searcher.metric] += _DOUBT
                return None
            odd[searcher.metric] = max(0, odd[searcher.metric] - 1)
            columns.append(column)
        return columns

    def matching(self, data: bytes, offset: int) -> list[MatchingLine]:
        """Return the lines of `data` with matches, in their order."""
        clean = visible(data)
        windows = len(data) > 4 * CHUNK
        lines = self._hits_by_windows(clean) if windows else _lines_of(clean, self._scan(clean))
        guard = self._guard
        found = []
        for number, (place, line, searchers) in enumerate(self._candidates(data, clean, lines)):
            if number % _LINES_AT_ONCE == 0:
                guard.lines()
            matched = []
            for searcher in searchers:
                if guard.careful:
                    guard.search(searcher.metric, offset + place)
                text = line.encode("latin-1").decode("utf-8", "replace") if searcher.decodes else line
                if searcher.search(text):
                    matched.append((searcher.metric, text))
            if matched:
                found.append(MatchingLine(offset + place, matched))
        guard.rest()
        return found

    def _dense(self, hits: Sequence[_Hit], data: bytes) -> frozenset[int]:
        """Return the required texts that most lines of `data` contain. Patterns with these texts should search all lines at
        once."""
        # In most blocks with few occurrences, a quarter of the lines already shows that the text is rare.
        # Counting all lines would take longer.
        if len(hits) < _DENSE * data.count(b"\n", 0, len(data) // 4):
            return frozenset()
        lines = data.count(b"\n")
        if len(hits) < _DENSE * lines:
            return frozenset()
        counts = Counter(map(_number, hits))
        often = [number for number, count in counts.items() if count >= _DENSE * lines]
        found = {number for number in often if all(map(self._goes_at_once, self._metrics[number]))}
        at_most = sum(counts[number] * len(self._metrics[number]) for number in found)
        return frozenset(found) if at_most <= _MOST_AT_ONCE else frozenset()

    def _goes_at_once(self, metric: int) -> bool:
        return (
            metric not in self._last_only
            and metric not in self._in_sections
            and self._doubts[metric] < _MOST_DOUBTS
            and self._searcher(metric).many() is not None
        )

    def _find_dense(
        self,
        data: bytes,
        clean: bytes,
        base: int,
        hits: Sequence[_Hit],
        dense: frozenset[int],
        repainted: frozenset[int],
        closed: Sequence[Closed],
    ) -> Iterator[Columns | list[Found]]:
        """Yield the numbers of a block in which nearly each line contains the texts `dense`.

        Patterns that require a text of `dense` search some hundred lines at once, which is much faster. All other patterns search
        line by line.
        """
        searchers = [self._searcher(metric) for metric in self._metrics_of(dense)]
        hits = [each for each in hits if each[0] not in dense] if dense != self._settled else hits
        candidates = self._to_search(
            self._candidates(data, clean, _lines_of(clean, hits)), base, repainted, closed
        )
        text = clean.decode("latin-1")
        offsets = _line_starts(data, base)
        starts, shift = (offsets, base) if clean is data else (_line_starts(clean), 0)
        matches = done = 0
        for first in range(0, len(starts) - 1, _LINES_AT_ONCE):
            last = min(first + _LINES_AT_ONCE, len(starts) - 1)
            lines = _Lines(text[starts[first] - shift : starts[last] - shift], offsets[first:last])
            begin = done
            while done < len(candidates) and base + candidates[done][0] < offsets[last]:
                done += 1
            columns, found = self._search_lines(searchers, lines)
            matches += len(columns.offsets) * len(columns.columns) + len(found)
            if begin < done:
                found += self._search_all(candidates[begin:done], base)
            self._guard.rest()
            if columns.offsets or found:
                yield from in_order(columns, found)
        self._settle(dense, matches >= _DENSE * len(searchers) * (len(starts) - 1))

    def _settle(self, dense: frozenset[int], is_so: bool) -> None:
        """Stop searching for required texts that are in every line. Patterns with such a text search all
        lines, until too few lines match."""
        metrics = self._metrics_of(dense)
        kept = is_so and len(metrics) <= _MOST_SETTLED and all(map(self._goes_at_once, metrics))
        if not kept:
            self._settled = frozenset()
        elif dense in self._scans or len(self._scans) < _SCANS:
            self._settled = dense

    def _metrics_of(self, numbers: Set[int]) -> list[int]:
        """Return the metrics that require at least one of the texts with these `numbers`."""
        return sorted({metric for number in numbers for metric in self._metrics[number]})

    def _search_lines(self, searchers: Sequence[Searcher], lines: _Lines) -> tuple[Columns, list[Found]]:
        """Search lines with patterns that match nearly all lines; return the values in columns, and the other
        values."""
        columns = self._columns(searchers, lines.text, len(lines.offsets))
        if columns is not None:
            return Columns(lines.offsets, columns), []
        literals = [many.literal for each in searchers if (many := each.many())]
        texts = lines.text.split("\n")[:-1]
        whole = [all(literal in text for literal in literals) for text in texts] if all(literals) else []
        if _FEWEST_AT_ONCE <= sum(whole) < len(whole):
            text = "\n".join([*compress(texts, whole), ""])
            columns = self._columns(searchers, text, sum(whole))
            if columns is not None:
                others = [
                    (offset, text, searchers)
                    for offset, text, is_whole in zip(lines.offsets, texts, whole, strict=True)
                    if text and not is_whole
                ]
                return Columns(list(compress(lines.offsets, whole)), columns), self._search_all(others, 0)
        found = []
        starts = [0, *map(add, accumulate(map(len, texts)), count(1))]
        for searcher in searchers:
            self._guard.lines()
            many = searcher.many()
            at_once = None if many is None else search_at_once(many, lines.text, starts, lines.offsets)
            if at_once is None:
                candidates = [
                    (offset, text, (searcher,))
                    for offset, text in zip(lines.offsets, texts, strict=True)
                    if text
                ]
                at_once = self._search_all(candidates, 0)
                self._doubts[searcher.metric] += _DOUBT
            elif self._doubts[searcher.metric]:
                self._doubts[searcher.metric] -= 1
            found += at_once
        return Columns([], []), found

    def _search_all(self, candidates: Sequence[_Candidate], base: int) -> list[Found]:
        self._guard.lines()
        return [each for batch in self._search(candidates, base) for each in batch]

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
                *_,
            ) in searchers:
                if careful:
                    guard.search(index, offset)
                text = line.encode("latin-1").decode("utf-8", "replace") if decodes else line
                first = search(text)
                if first is None:
                    continue
                # finditer is not used, because most lines have one match, and a search for a second match is
                # cheaper than the iterator.
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

    def _to_search(
        self, candidates: list[_Candidate], base: int, repainted: frozenset[int], closed: Sequence[Closed]
    ) -> list[_Candidate]:
        """Return `candidates` without the metrics that are not searched in a line. A metric is not searched in a replaced state
        of a progress bar (`repainted`), or in a closed section."""
        if repainted and self._last_only:
            candidates = [
                (place, line, _others(searchers, self._last_only) if base + place in repainted else searchers)
                for place, line, searchers in candidates
            ]
        return _in_sections(candidates, base, closed) if closed else candidates

    def _candidates(self, data: bytes, clean: bytes, lines: Sequence[_Line]) -> list[_Candidate]:
        """Return the lines of `data` to search, in the order of the lines. lines: the lines with required texts."""
        if self._everywhere:
            return self._every_line(data, clean, {start: ids for start, _, ids in lines})
        hits = [
            (start, clean[start:end].decode("latin-1"), self._plan(tuple(ids))) for start, end, ids in lines
        ]
        if clean is data or not hits:
            return hits
        places = dict(zip(_line_starts(clean), _line_starts(data), strict=True))
        return [(places[start], line, plan) for start, line, plan in hits]

    def _every_line(self, data: bytes, clean: bytes, hits: Mapping[int, list[int]]) -> list[_Candidate]:
        candidates: list[_Candidate] = []
        place = start = 0
        for raw, line in zip(data.split(b"\n"), clean.split(b"\n"), strict=True):
            if raw:
                candidates.append((place, line.decode("latin-1"), self._plan(tuple(hits.get(start, ())))))
            place += len(raw) + 1
            start += len(line) + 1
        return candidates

    def _plan(self, ids: tuple[int, ...]) -> Sequence[Searcher]:
        """Return the searchers of the texts `ids`, without duplicates, in the order of the metrics."""
        plan = self._plans.get(ids)
        if plan is None:
            metrics = {metric for number in ids for metric in self._metrics[number]}
            plan = [self._searcher(metric) for metric in sorted(metrics.union(self._everywhere))]
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            self._plans[ids] = plan
        return plan

    def _hits_by_windows(self, data: bytes) -> list[_Line]:
        """Return the lines with required texts, like `_lines_of`, but search in windows. In a very long line, one window's
        occurrences are held in memory at a time."""
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

    def _scan(self, data: bytes) -> list[_Hit]:
        return self._scan_without(frozenset())(data)

    def _scan_without(self, numbers: frozenset[int]) -> Callable[[bytes], list[_Hit]]:
        """Return an automaton that finds all required texts except the texts with these `numbers`."""
        scan = self._scans.get(numbers)
        if scan is None:
            exact = occurrences_without(self._exact, numbers, shift=0)
            folded = occurrences_without(self._folded, numbers, shift=self._folded_from)
            scan = self._scans[numbers] = _both(exact, folded)
        return scan


def _others(searchers: Sequence[Searcher], metrics: Set[int]) -> Sequence[Searcher]:
    return [each for each in searchers if each.metric not in metrics]


def _in_sections(candidates: Sequence[_Candidate], base: int, closed: Sequence[Closed]) -> list[_Candidate]:
    """Return `candidates` without the searchers of metrics whose sections are closed in these lines. The first
    item of `closed` is at or before the first candidate."""
    found = []
    at = 0
    for place, line, searchers in candidates:
        while at + 1 < len(closed) and closed[at + 1].offset <= base + place:
            at += 1
        metrics = closed[at].metrics
        found.append((place, line, _others(searchers, metrics) if metrics else searchers))
    return found


def _both(exact: Occurrences | None, folded: Occurrences | None) -> Callable[[bytes], list[_Hit]]:
    def scan(data: bytes) -> list[_Hit]:
        hits = exact(data) if exact else []
        more = folded(data.lower()) if folded else []
        return sorted([*hits, *more], key=_start) if more else hits

    return scan


def _lines_of(data: bytes, hits: Sequence[_Hit]) -> list[_Line]:
    """Return the lines of `data` that contain the occurrences `hits`."""
    lines: list[_Line] = []
    line_end = -1
    ids: list[int] = []
    for number, start, _ in hits:
        if start < line_end:
            if number not in ids:
                ids.append(number)
            continue
        line_start = data.rfind(b"\n", line_end + 1, start) + 1 or line_end + 1
        line_end = data.find(b"\n", start)
        ids = [number]
        lines.append((line_start, line_end, ids))
    return lines


_number = itemgetter(0)
_start = itemgetter(1)


def _line_starts(data: bytes, base: int = 0) -> list[int]:
    """Return the start of each line of `data`, which begins at `base`, and the end of the last line."""
    lengths = map(len, data.split(b"\n")[:-1])
    return [base, *map(add, accumulate(lengths), count(base + 1))]
