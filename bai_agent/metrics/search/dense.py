"""Searches many lines at once if nearly every line contains a pattern's required text. One search of many
lines takes a fraction of the time of a search of each line.

A pattern searches many lines at once on two conditions. The search must find the same values as a search of each line (see
`line_bound.py`), and no number may need a second check (see `number.py`).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import lt
from typing import NamedTuple

from bai_agent.metrics.search.number import are_json
from bai_agent.metrics.search.patterns import Found, ManyLines

_FEW_ROWS = 8
"""Minimum ratio between the lines whose values form columns and all other lines. Below this ratio, all numbers are handled
one by one."""


class MetricColumn(NamedTuple):
    """The numbers of one metric in a sequence of lines, one number per line."""

    metric: int
    values: Sequence[str]
    """Values as JSON."""
    extras: Sequence[str] | None
    """Further members of the values' records. None if the records have no further members."""


class Columns(NamedTuple):
    """The numbers of some metrics in the lines at `offsets`, sorted by the metric's index. Each line has one
    number of each metric."""

    offsets: Sequence[int]
    columns: Sequence[MetricColumn]

    def found(self) -> list[Found]:
        """Return the numbers in their order."""
        every = [
            zip(self.offsets, repeat(metric), repeat(0), values, extras or repeat(""), strict=False)
            for metric, values, extras in self.columns
        ]
        return [each for line in zip(*every, strict=True) for each in line]

    def part(self, first: int, last: int) -> Columns:
        """Return the columns of the lines from `first` up to, but not including, `last`."""
        return Columns(
            self.offsets[first:last],
            [
                MetricColumn(metric, values[first:last], None if extras is None else extras[first:last])
                for metric, values, extras in self.columns
            ],
        )


def find_column(many: ManyLines, text: str, lines: int) -> MetricColumn | None:
    """Return the values of one pattern in a text of `lines` lines. Return None unless each line has exactly
    one value and no value needs a second check."""
    if many.first is None:
        return None
    rows = many.first.findall(text)
    if len(rows) != lines or _takes_all(many.first, text) or not _once_in_each(many, text, lines):
        return None
    columns = [rows] if many.first.groups == 1 else list(zip(*rows, strict=True))
    values = columns[many.group - 1]
    if not _are_plain(many, values):
        return None
    if not many.extras:
        return MetricColumn(many.metric, values, None)
    extras = many.extras.of_columns(columns)
    return None if extras is None else MetricColumn(many.metric, values, extras)


def search_at_once(
    many: ManyLines, text: str, starts: Sequence[int], offsets: Sequence[int]
) -> list[Found] | None:
    """Return the values of one pattern in the lines of a text; None if the lines must be searched one by one.

    starts, offsets: the beginnings of the lines in `text` and in the file. The last item of `starts` is the
    end of the text.
    """
    matches = list(many.search_all(text, starts[0], starts[-1]))
    if not matches:
        return []
    index, group, extras = many.metric, many.group, many.extras
    values = [match[group] for match in matches]
    if None in values or not _are_plain(many, values):
        return None
    ends = [match.end(group) for match in matches]
    if any(map(many.needs_look, {text[end : end + many.reach] for end in ends})):
        return None
    more = list(map(extras.of_match, matches)) if extras else repeat("")
    begins, line_ends = starts[:-1], starts[1:]
    if len(matches) == len(begins) and all(map(lt, begins, ends)) and all(map(lt, ends, line_ends)):
        return list(zip(offsets, repeat(index), repeat(0), values, more, strict=False))
    found: list[Found] = []
    places = zip(line_ends, offsets, strict=True)
    line_end = offset = k = 0
    for end, value, extra in zip(ends, values, more, strict=False):
        k += 1
        while end >= line_end:
            line_end, offset = next(places)
            k = 0
        found.append((offset, index, k, value, extra))
    return found


def in_order(columns: Columns, others: list[Found]) -> Iterator[Columns | list[Found]]:
    """Yield columns and other values in the order of their lines."""
    if not others:
        yield columns
        return
    places = sorted({each[0] for each in others})
    if len(places) * _FEW_ROWS > len(columns.offsets):
        yield sorted([*columns.found(), *others])
        return
    others = sorted(others)
    row = number = 0
    for place in places:
        end = bisect_left(columns.offsets, place, row)
        if end > row:
            yield columns.part(row, end)
        row = end
        last = bisect_left(others, (place + 1,), number)
        if row < len(columns.offsets) and columns.offsets[row] == place:
            yield sorted([*columns.part(row, row + 1).found(), *others[number:last]])
            row += 1
        else:
            yield others[number:last]
        number = last
    if row < len(columns.offsets):
        yield columns.part(row, len(columns.offsets))


def _takes_all(first: re.Pattern[str], text: str) -> bool:
    """Return whether the value in the last line needs a second check. In this case, the value's match includes the
    rest of the text."""
    match = first.search(text, text.rfind("\n", 0, -1) + 1)
    return match is None or match.end() == len(text)


def _once_in_each(many: ManyLines, text: str, lines: int) -> bool:
    """Return whether the pattern has exactly `lines` matches in `text`, at least one of them in each line."""
    if many.literal and text.count(many.literal) == lines:
        return True
    return sum(1 for _ in many.search_all(text)) == lines


def _are_plain(many: ManyLines, values: Sequence[str]) -> bool:
    if not are_json(values):
        return False
    return not many.no_exponents or not any(e in "".join(values) for e in "eE")
