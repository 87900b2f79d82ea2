"""Compiles a job's metrics, and finds the lines that are worth a search.

Most lines of a log match nothing. The text that each pattern requires (`literal.py`) goes into one Aho-Corasick
automaton, which scans a block of lines once; only lines that contain such a text are searched, with only the patterns
that require it. A pattern without one has every line searched: same records, slower.

A pattern of ASCII characters searches bytes, one that names others searches text. Both work on `str`: bytes are decoded
as Latin-1 and searched with `re.ASCII`, which is the same as a search of the bytes, and yields text at no further cost.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from bai_agent.job.descriptor import Metric, Repaint
from bai_agent.job.pattern_groups import read_groups
from bai_agent.metrics.json_lines import JsonLines, JsonSearch, required_text
from bai_agent.metrics.line_bound import SearchReach, search_reach
from bai_agent.metrics.literal import Shape, has_open_end, read_shape
from bai_agent.metrics.reading import Extra, MatchFindings, Reader, extra_of

_SHORTEST_LITERAL = 2
"""A single character stands in so many lines that looking for it costs more than it saves."""


Found = tuple[int, int, int, str, str]
"""One number: the line's offset, the metric's index, the match's number, the value as JSON, and what else the record has:
JSON members, each with a comma in front."""

Scan = Callable[..., list[tuple[int, int, int]]]
"""`scan(data, overlapping=True)`: (index of the text, start, end) of each occurrence, by rising end."""


class Searcher(NamedTuple):
    """One metric's pattern, ready to search a line."""

    metric: int
    """The metric's index in the descriptor."""
    search: Callable[..., Any]
    """Returns a match, of `re` or as `JsonMatch`; None where there is none."""
    search_all: Callable[..., Iterator[Any]]
    group: int
    fast_number: Callable[[str, int], re.Match[str] | None]
    """Matches a value that is recorded as it stands."""
    read: Callable[[str, Any, MatchFindings], tuple[str | None, int]]
    """Reads any other one."""
    extra: Extra | None
    decodes: bool
    """It searches the line decoded as UTF-8."""
    can_be_empty: bool
    reach: SearchReach
    """Whether it may search many lines at once."""
    needs_look: Callable[[str], bool]
    """Whether a JSON number with these two characters behind it may be one that `fast_number` does not match."""


@dataclass(frozen=True)
class Prefilter:
    """One automaton, and which metrics each of its texts stands for."""

    literals: tuple[bytes, ...]
    metrics: tuple[tuple[int, ...], ...]
    scan: Scan


@dataclass(frozen=True)
class PatternSet:
    """What to look for: by exact text, by text in lower case, and in every line."""

    exact: Prefilter | None
    folded: Prefilter | None
    """For patterns that ignore the case; scans the block in lower case."""
    everywhere: tuple[int, ...]
    """Metrics whose pattern is searched in every line."""
    last_only: frozenset[int]
    """Metrics that are not searched in a state of a progress bar which a later one repaints."""
    in_sections: frozenset[int]
    """Metrics that count in sections of the log only."""
    searcher: Callable[[int], Searcher]
    """Compiles a metric's pattern when it is first needed: of a thousand, most may never be."""


def prefilter_available() -> bool:
    """Return whether the automaton's library is there for this Python."""
    return importlib.util.find_spec("ahocorasick_rs") is not None


def wants_last_states(metrics: Sequence[Metric]) -> bool:
    """Return whether any of `metrics` needs to know which states of a progress bar are repainted."""
    return any(metric.repaint is Repaint.LAST for metric in metrics)


def compile_patterns(
    metrics: Sequence[Metric], *, without: frozenset[int] = frozenset(), fast: bool
) -> PatternSet:
    """Return the patterns of `metrics` but for those `without`; with `fast` through the prefilter where that works."""
    exact: dict[bytes, list[int]] = {}
    folded: dict[bytes, list[int]] = {}
    everywhere: list[int] = []
    shapes = {
        i: shape_of(metric) for i, metric in enumerate(metrics) if i not in without and metric.of_run is None
    }
    lines = JsonLines()
    for index, shape in shapes.items():
        literal = shape.literal.encode("utf-8")
        if not fast or len(literal) < _SHORTEST_LITERAL or (shape.ignore_case and shape.beyond_ascii):
            everywhere.append(index)
        elif shape.ignore_case:
            folded.setdefault(literal.lower(), []).append(index)
        else:
            exact.setdefault(literal, []).append(index)

    @cache
    def searcher(index: int) -> Searcher:
        metric = metrics[index]
        return (
            _searcher(index, metric, shapes[index])
            if metric.json is None
            else _json_searcher(index, metric, lines)
        )

    last_only = frozenset(i for i, metric in enumerate(metrics) if metric.repaint is Repaint.LAST)
    in_sections = frozenset(
        i for i, metric in enumerate(metrics) if metric.after is not None or metric.until is not None
    )
    return PatternSet(
        _prefilter(exact), _prefilter(folded), tuple(everywhere), last_only, in_sections, searcher
    )


def shape_of(metric: Metric) -> Shape:
    """Return what lines must hold for `metric` to be taken from them."""
    if metric.json is None:
        return read_shape(metric.pattern)
    return Shape(
        beyond_ascii=False, ignore_case=False, can_be_empty=False, literal=required_text(metric.json)
    )


Occurrences = Callable[[bytes], list[tuple[int, int, int]]]


def occurrences_without(
    prefilter: Prefilter | None, numbers: frozenset[int], *, shift: int
) -> Occurrences | None:
    """Return what finds the texts of `prefilter` under their numbers, the first of which is `shift`; but for those of `numbers`."""
    if prefilter is None:
        return None
    kept = [shift + i for i in range(len(prefilter.literals)) if shift + i not in numbers]
    if not kept:
        return None
    if len(kept) == len(prefilter.literals):
        scan = prefilter.scan
        if not shift:
            return lambda data: scan(data, overlapping=True)
    else:
        scan = _scanner([prefilter.literals[number - shift] for number in kept])
    return lambda data: [(kept[i], start, end) for i, start, end in scan(data, overlapping=True)]


def line_counter(*, fast: bool) -> Callable[[bytes], int]:
    """Return what counts the lines of a block that are not empty."""
    blank = b"\n\n"
    if not fast:
        return lambda data: sum(map(bool, data.split(b"\n")))
    # Twenty times as fast as `blank in data`, which costs as much as finding the numbers.
    scan = _scanner([blank])

    def count(data: bytes) -> int:
        return data.count(b"\n") - data.startswith(b"\n") - len(scan(data, overlapping=True))

    return count


def _searcher(index: int, metric: Metric, shape: Shape) -> Searcher:
    compiled = re.compile(metric.pattern, 0 if shape.beyond_ascii else re.ASCII)
    groups = read_groups(compiled)
    decodes = shape.beyond_ascii
    reader = Reader(
        index, metric, groups, decodes=decodes, open_end=has_open_end(metric.pattern, groups.value)
    )
    fast = reader.fast_number
    # Units with a newline are nobody's, but they would be looked for beyond the line's end.
    is_by_line = fast is None or decodes or shape.can_be_empty or "\n" in metric.units
    return Searcher(
        metric=index,
        search=compiled.search,
        search_all=compiled.finditer,
        group=groups.value,
        fast_number=_nothing if fast is None else _compiled(fast).match,
        read=reader.read,
        extra=extra_of(groups, decodes=decodes),
        decodes=decodes,
        can_be_empty=shape.can_be_empty,
        reach=SearchReach.ANYWHERE if is_by_line else search_reach(metric.pattern),
        needs_look=reader.needs_look,
    )


def _json_searcher(index: int, metric: Metric, lines: JsonLines) -> Searcher:
    search = JsonSearch(index, metric, lines)
    return Searcher(
        metric=index,
        search=search.search,
        search_all=search.search_all,
        group=0,
        fast_number=_nothing,
        read=search.read,
        extra=_extra_of_json,
        decodes=False,
        can_be_empty=False,
        reach=SearchReach.ANYWHERE,
        needs_look=lambda _behind: True,
    )


def _extra_of_json(match: Any) -> str:
    extra: str = match.extra
    return extra


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


def _nothing(text: str, start: int) -> None:
    """Match no value: each is read."""


def _prefilter(literals: dict[bytes, list[int]]) -> Prefilter | None:
    if not literals:
        return None
    return Prefilter(tuple(literals), tuple(map(tuple, literals.values())), _scanner(list(literals)))


def _scanner(literals: list[bytes]) -> Scan:
    library: Any = importlib.import_module("ahocorasick_rs")
    scan: Scan = library.BytesAhoCorasick(
        literals, matchkind=library.MatchKind.Standard
    ).find_matches_as_indexes
    return scan
