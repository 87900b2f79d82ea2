"""Compiles the patterns of a job's metrics, and finds the lines that can match.

Most lines of a log match nothing. The text that each pattern requires (`literal.py`) goes into one
Aho-Corasick automaton, which scans a block of lines once. Only lines that contain a required text are
searched, and only with the patterns that require this text. A pattern without a required text searches every
line, which gives the same records but takes longer.

A pattern of ASCII characters searches bytes, and a pattern with other characters searches text. Patterns of bytes and of text
both work on `str`. Bytes are decoded as Latin-1 and searched with `re.ASCII`. A search in Latin-1 text finds the same
matches as a search in bytes, and returns text at no further cost.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from bai_agent.job.descriptor.metric_tables import Metric, Repaint
from bai_agent.job.schema.pattern_groups import Groups, read_groups
from bai_agent.light_dataclass import dataclass
from bai_agent.metrics.search.json_lines import JsonLines, JsonSearch, required_text
from bai_agent.metrics.search.line_bound import bound_to_lines, first_in_each_line
from bai_agent.metrics.search.literal import Shape, has_open_end, read_shape
from bai_agent.metrics.search.reading import Extra, Extras, MatchFindings, Reader

_SHORTEST_LITERAL = 2
"""Minimum length of a required text (characters). A single character is in so many lines that a search for it
does not pay off."""


Found = tuple[int, int, int, str, str]
"""A number that was found: the line's offset, the metric's index, the match's number in the line, the value
as JSON, and the further members of the record as JSON, each beginning with a comma.
"""

Scan = Callable[..., list[tuple[int, int, int]]]
"""`scan(data, overlapping=True)`: (index of the text, start, end) of each occurrence, sorted by end."""


class Searcher(NamedTuple):
    """One metric's pattern, ready to search a line."""

    metric: int
    """Index of the metric in the descriptor."""
    search: Callable[..., Any]
    """Function that returns a match (an `re.Match` or a `JsonMatch`), or None."""
    search_all: Callable[..., Iterator[Any]]
    group: int
    fast_number: Callable[[str, int], re.Match[str] | None]
    """Function that matches a value that can be recorded unchanged."""
    read: Callable[[str, Any, MatchFindings], tuple[str | None, int]]
    """Function that reads all values that `fast_number` does not match."""
    extra: Extra | None
    decodes: bool
    """Whether the pattern searches the line decoded as UTF-8."""
    can_be_empty: bool
    many: Callable[[], ManyLines | None]
    """Function that returns a search of many lines at once, or None if each line must be searched
    separately."""


class ManyLines(NamedTuple):
    """One metric's pattern, ready to search many lines at once."""

    metric: int
    first: re.Pattern[str] | None
    """Expression that finds the first match of each line. After a value that needs a second check, the
    expression finds no further match."""
    search_all: Callable[..., Iterator[re.Match[str]]]
    literal: str
    """Text that each match contains; empty if no such text is known."""
    group: int
    extras: Extras
    needs_look: Callable[[str], re.Match[str] | None]
    """Function that returns a match if the text after a JSON number shows that the number may need a change before it is
    recorded."""
    reach: int
    """Number of characters that `needs_look` examines."""
    no_exponents: bool
    """Whether numbers with an exponent also need a second check."""


@dataclass(frozen=True)
class Prefilter:
    """An automaton that finds required texts, and the metrics that require each text."""

    literals: tuple[bytes, ...]
    metrics: tuple[tuple[int, ...], ...]
    scan: Scan


@dataclass(frozen=True)
class PatternSet:
    """The compiled patterns of a job: automatons for exact and for lower-case texts, and patterns that search
    every line."""

    exact: Prefilter | None
    folded: Prefilter | None
    """Automaton for patterns that ignore case. This automaton scans the block in lower case."""
    everywhere: tuple[int, ...]
    """Metrics whose pattern searches every line."""
    last_only: frozenset[int]
    """Metrics that are not searched in states of a progress bar which a later state replaced."""
    in_sections: frozenset[int]
    """Metrics that are only searched in sections of the log."""
    searcher: Callable[[int], Searcher]
    """Function that compiles a metric's pattern when it is first needed, because most of a thousand patterns
    may never be needed."""


def prefilter_available() -> bool:
    """Return whether the automaton's library is installed for this Python."""
    return importlib.util.find_spec("ahocorasick_rs") is not None


def wants_last_states(metrics: Sequence[Metric]) -> bool:
    """Return whether any of `metrics` is taken only from the last states of progress bars."""
    return any(metric.repaint is Repaint.LAST for metric in metrics)


def compile_patterns(
    metrics: Sequence[Metric], *, without: frozenset[int] = frozenset(), fast: bool
) -> PatternSet:
    """Compile the patterns of `metrics` except `without`. With `fast`, the prefilter is used if possible."""
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
    """Return the properties of the texts that the pattern of `metric` matches."""
    if metric.json is None:
        return read_shape(metric.pattern)
    return Shape(
        beyond_ascii=False, ignore_case=False, can_be_empty=False, literal=required_text(metric.json)
    )


Occurrences = Callable[[bytes], list[tuple[int, int, int]]]


def occurrences_without(
    prefilter: Prefilter | None, numbers: frozenset[int], *, shift: int
) -> Occurrences | None:
    """Return an automaton for the texts of `prefilter` except `numbers`. The texts are numbered from `shift`
    on."""
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
    """Return a function that counts the non-empty lines of a block."""
    blank = b"\n\n"
    if not fast:
        return lambda data: sum(map(bool, data.split(b"\n")))
    # The automaton is twenty times as fast as `blank in data`, which would take as long as the search for
    # numbers.
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
    extras = Extras(groups, decodes=decodes)
    # Units with a newline are left out, because they would be searched for beyond the line's end.
    is_by_line = fast is None or decodes or shape.can_be_empty or "\n" in metric.units
    return Searcher(
        metric=index,
        search=compiled.search,
        search_all=compiled.finditer,
        group=groups.value,
        fast_number=_nothing if fast is None else _compiled(fast).match,
        read=reader.read,
        extra=extras.of_match if extras else None,
        decodes=decodes,
        can_be_empty=shape.can_be_empty,
        many=cache(lambda: None if is_by_line else _many_lines(index, metric, shape, groups, reader, extras)),
    )


def _many_lines(
    index: int, metric: Metric, shape: Shape, groups: Groups, reader: Reader, extras: Extras
) -> ManyLines | None:
    bound = bound_to_lines(metric.pattern)
    if bound is None:
        return None
    return ManyLines(
        metric=index,
        first=first_in_each_line(metric.pattern, groups.value, reader.needs_look),
        search_all=bound.finditer,
        literal="" if shape.ignore_case else shape.literal,
        group=groups.value,
        extras=extras,
        needs_look=_compiled(reader.needs_look).match,
        # The sign of an exponent is between its letter and its digit.
        reach=max(3, len(metric.units.encode()) + 2),
        no_exponents=bool(metric.units),
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
        many=_nothing_at_once,
    )


def _extra_of_json(match: Any) -> str:
    extra: str = match.extra
    return extra


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


def _nothing_at_once() -> None:
    """Return None, so that each line is searched separately."""


def _nothing(text: str, start: int) -> None:
    """Match no value, so that each value is parsed by `read`."""


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
