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
from typing import Any, NamedTuple

from bai_agent.job import Metric
from bai_agent.metrics.literal import Shape, read_shape

_SHORTEST_LITERAL = 2
"""A single character stands in so many lines that looking for it costs more than it saves."""


Scan = Callable[..., list[tuple[int, int, int]]]
"""`scan(data, overlapping=True)`: (index of the text, start, end) of each occurrence, by rising end."""


class Searcher(NamedTuple):
    """One metric's pattern, ready to search a line."""

    metric: int
    """The metric's index in the descriptor."""
    search: Callable[..., re.Match[str] | None]
    search_all: Callable[[str], Iterator[re.Match[str]]]
    group: int
    step: int
    """The number of the group `step`; 0 where there is none."""
    decodes: bool
    """It searches the line decoded as UTF-8."""
    can_be_empty: bool


@dataclass(frozen=True)
class Prefilter:
    """One automaton, and which searchers each of its texts stands for."""

    literals: tuple[bytes, ...]
    searchers: tuple[tuple[Searcher, ...], ...]
    scan: Scan


@dataclass(frozen=True)
class PatternSet:
    """What to look for: by exact text, by text in lower case, and in every line."""

    exact: Prefilter | None
    folded: Prefilter | None
    """For patterns that ignore the case; scans the block in lower case."""
    everywhere: tuple[Searcher, ...]


def prefilter_available() -> bool:
    """Return whether the automaton's library is there for this Python."""
    return importlib.util.find_spec("ahocorasick_rs") is not None


def compile_patterns(
    metrics: Sequence[Metric], *, without: frozenset[int] = frozenset(), fast: bool
) -> PatternSet:
    """Return the patterns of `metrics` but for those `without`; with `fast` through the prefilter where that works."""
    exact: dict[bytes, list[Searcher]] = {}
    folded: dict[bytes, list[Searcher]] = {}
    everywhere: list[Searcher] = []
    for index, metric in enumerate(metrics):
        if index in without:
            continue
        shape = read_shape(metric.pattern)
        searcher = _searcher(index, metric, shape)
        literal = shape.literal.encode("utf-8")
        if not fast or len(literal) < _SHORTEST_LITERAL or (shape.ignore_case and searcher.decodes):
            everywhere.append(searcher)
        elif shape.ignore_case:
            folded.setdefault(literal.lower(), []).append(searcher)
        else:
            exact.setdefault(literal, []).append(searcher)
    return PatternSet(_prefilter(exact), _prefilter(folded), tuple(everywhere))


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
    compiled = None if shape.beyond_ascii else _compile_for_bytes(metric.pattern)
    decodes = compiled is None
    compiled = compiled or re.compile(metric.pattern)
    names = compiled.groupindex
    return Searcher(
        metric=index,
        search=compiled.search,
        search_all=compiled.finditer,
        group=names.get("value", 1 if compiled.groups else 0),
        step=names.get("step", 0),
        decodes=decodes,
        can_be_empty=shape.can_be_empty,
    )


def _compile_for_bytes(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern, re.ASCII)
    except ValueError:  # it asks for Unicode itself: (?u)
        return None


def _prefilter(literals: dict[bytes, list[Searcher]]) -> Prefilter | None:
    if not literals:
        return None
    return Prefilter(tuple(literals), tuple(map(tuple, literals.values())), _scanner(list(literals)))


def _scanner(literals: list[bytes]) -> Scan:
    library: Any = importlib.import_module("ahocorasick_rs")
    scan: Scan = library.BytesAhoCorasick(
        literals, matchkind=library.MatchKind.Standard
    ).find_matches_as_indexes
    return scan
