"""Reads lines of `metrics.jsonl` by the million: one pattern reads a line in the form of our own writer,
without parsing its JSON.

Lines of another version or tool, or damaged ones, are decoded one by one, together with all lines of the same
piece, because the order matters. Both ways find the same records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from bai_agent.decode import parse_json
from bai_agent.errors import RecordError
from bai_agent.job.figures import LIMIT
from bai_agent.light_dataclass import dataclass, field
from executor.records.reading import is_number, records_in

K = TypeVar("K")

RANK_LABELS = ("rank", "process_rank")
"""Labels of the node, and of the process of the benchmark, from which a record comes."""

_INTEGER = r"(?:0|[1-9]\d{0,17})"
_EXPONENT = r"[eE][-+]?\d{1,2}"
_NUMBER = rf"-?{_INTEGER}(?:\.\d{{1,24}}(?:{_EXPONENT})?|{_EXPONENT})?"
"""Such numbers are within `LIMIT`, whatever their digits; others are left to the slower reader."""
_ANY_NUMBER = rf"[-.\d]{{1,44}}(?:{_EXPONENT})?"
"""Matches such numbers, and texts that are no JSON; faster, if the numbers are decoded anyway."""
_TEXT = r'"[ !#-\[\]-~]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[ !#-\[\]-~]*)*"'
"""ASCII, and valid JSON: matching text needs no check by a decoder."""
_ANY_TEXT = r'"[^"]*(?:\\"[^"]*)*"'
"""Matches also invalid texts; faster, if each different one is checked once."""
_REPEAT = rf'(?:,"repeat":{_INTEGER})?'
_GENERATION = rf'(?:,"generation":{_INTEGER})?'
_LABEL = rf"{_TEXT}: ?{_TEXT}"
_LABELS = rf',"labels":\{{(?:{_LABEL}(?:, ?{_LABEL})*)?\}}'
_END = rf'(?:{_LABELS})?(?:,"late":(?:true|false))?(?:,"gen":{_INTEGER})?{_REPEAT}{_GENERATION}'

Row: TypeAlias = tuple[bytes, ...]
"""Parts of a record as written, at the places below; b"" for no step."""
_PARTS = ("seq", "head", "off", "name", "value", "units", "timestamp", "step", "tail")
_, HEAD, _, NAME, _, UNITS, _, _, TAIL = range(len(_PARTS))
shared_text = itemgetter(HEAD, NAME, UNITS, TAIL)
"""Returns the properties that a row shares with others of its series."""
_SERIES_PARTS = ("head", "name", "value", "units", "time", "tail")
"""Parts that a series needs: each part takes time."""
_series_text, _series_value, _series_time = itemgetter(0, 1, 3, 5), itemgetter(2), itemgetter(4)
_KNOWN = 2**16
"""Series whose keys are remembered."""


@cache
def _line(*parts: str, text: str, number: str, end: str) -> re.Pattern[bytes]:
    """Return the pattern of a line as `bai_agent/metrics/records.py` writes it, with a group for each of `parts`; compiled
    where lines are read, as it takes 2 ms."""
    # A timestamp of at most 14 digits is before the latest valid time.
    line = (
        rf'^\{{"seq":<seq>{_INTEGER}),<head>"src":{text}{_REPEAT}),"off":<off>{_INTEGER}),"i":{_INTEGER},"k":{_INTEGER}'
        rf',"name":<name>{text}),"value":<value>{number}),"units":<units>{text})'
        rf',"timestamp":<time><timestamp>0|[1-9]\d{{0,13}})(?:,"step":<step>{_NUMBER}))?)<tail>{end})\}}$'
    )
    groups = re.sub(r"<(\w+)>", lambda part: "(" if part[1] in parts else "(?:", line)
    return re.compile(groups.encode(), re.MULTILINE)


@cache
def _shared() -> re.Pattern[bytes]:
    """Return the pattern of the texts that rows share, one a line."""
    return re.compile(rf'"src":{_TEXT}{_REPEAT}\n{_TEXT}\n{_TEXT}\n{_END}'.encode())


def rows_in(content: bytes) -> list[Row] | None:
    """Return the rows of whole lines; None unless all of them are as our writer writes them."""
    rows = _line(*_PARTS, text=_ANY_TEXT, number=_NUMBER, end=r"[^\n]*").findall(content)
    if len(rows) == content.count(b"\n") and all(map(_is_valid, set(map(shared_text, rows)))):
        return rows
    return None


def _is_valid(text: tuple[bytes, ...]) -> bool:
    """Return whether what a row shares with others is as our writer writes it."""
    return _shared().fullmatch(b"\n".join(text)) is not None


def record_like(text: tuple[bytes, ...]) -> Mapping[str, Any]:
    """Return a record without numbers whose rows share `text`."""
    record: Mapping[str, Any] = json.loads(b'{%b,"name":%b,"value":0,"units":%b,"timestamp":0%b}' % text)
    return record


def numbers(rows: Iterable[Row]) -> list[list[float | str]]:
    """Return sequence number, offset, value, timestamp and step of each row; "" in place of a step if it has
    none."""
    lists = [
        b"[%b,%b,%b,%b,%b]" % (seq, off, value, timestamp, step or b'""')
        for seq, _, off, _, value, _, timestamp, step, _ in rows
    ]
    found: list[list[float | str]] = json.loads(b"[%b]" % b",".join(lists))
    return found


@dataclass
class SeriesBatch:
    """Records of one series, in the order in which they were written."""

    record: Mapping[str, Any]
    """The first record of the series: all have its name, source, units and labels."""
    values: list[float] = field(default_factory=list)
    """The values, whole numbers as `int`."""
    times: list[bytes] = field(default_factory=list)
    """The time of reading of each value, and its step if it has one, as in the line: `1795000000000,"step":3`."""
    beyond: int = 0
    """Number of values beyond `LIMIT`, which are not among the values."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a decoded record."""
        value, step = record["value"], record.get("step")
        if abs(value) > LIMIT:
            self.beyond += 1
            return
        self.values.append(value)
        time = f'{record["timestamp"]},"step":{step!r}' if is_number(step) else str(record["timestamp"])
        self.times.append(time.encode())

    def read_times(self) -> tuple[list[int], list[float]]:
        """Return the times of reading, in ms UTC, and the steps, NaN for a record without one; none if no
        record has one."""
        found, text = self.times, b",".join(self.times)
        with_step = text.count(b"step")
        if not with_step:
            return json.loads(b"[%b]" % text), []
        if with_step < len(found):
            text = b",".join([each if b"step" in each else each + b',"step":NaN' for each in found])
        numbers = json.loads(b"[%b]" % text.replace(b'"step":', b""))
        return numbers[::2], list(map(float, numbers[1::2]))


class RecordLines(NamedTuple):
    """Whole lines of one node's `metrics.jsonl`."""

    content: bytes
    rank: int | None = None
    """Rank of the node, in a job of several."""

    def with_rank(self) -> bytes:
        """Return the lines with the label `rank`, in a job of several nodes."""
        return self.content if self.rank is None else with_rank(self.content, self.rank)


@dataclass(frozen=True)
class SeriesLines(Generic[K]):
    """Content of some lines."""

    batches: dict[K, SeriesBatch]
    """Values by series, in the order of their first values within `LIMIT`, or of their last ones if there are
    none."""
    count: int
    """Number of records."""
    late: int
    """Number of records that were read only after a restart: their times are those of the reading."""
    last_timestamp: int | None
    """Time of the last record, in ms UTC; None without a record."""


class SeriesReader(Generic[K]):
    """Reads lines, and assigns them to series."""

    def __init__(self, key_of: Callable[[Mapping[str, Any]], K]) -> None:
        """key_of: returns the series of a valid record, whatever its numbers; called at least once for each
        series."""
        self._key_of = key_of
        self._known: dict[tuple[int | None, Any], tuple[K, Mapping[str, Any]]] = {}

    def read(self, content: bytes, *, rank: int | None = None) -> SeriesLines[K]:
        """Return the records in whole lines. rank: the label `rank` of all, in a job of several nodes."""
        rows = _line(*_SERIES_PARTS, text=_ANY_TEXT, number=_ANY_NUMBER, end=r"[^\n]*").findall(content)
        batches = self._batches(rows, rank) if len(rows) == content.count(b"\n") else None
        if batches is None:
            return self._read_slowly(content, rank)
        # No text within such a line can contain this marker: its quotes would be escaped.
        late = content.count(b',"late":true')
        last = int(_series_time(rows[-1]).partition(b",")[0]) if rows else None
        return SeriesLines(batches, len(rows), late, last)

    def _batches(self, rows: list[Row], rank: int | None) -> dict[K, SeriesBatch] | None:
        """Return the series of the rows; None unless all of them are as our writer writes them."""
        try:
            values = json.loads(b"[%b]" % b",".join(map(_series_value, rows)))
        except ValueError:
            return None
        batches: dict[K, SeriesBatch] = {}
        of_text: dict[Any, list[tuple[Row, float]]] = {}
        pairs_of: dict[K, list[tuple[Row, float]]] = {}
        for pair in zip(rows, values, strict=True):
            text = _series_text(pair[0])
            try:
                of_text[text].append(pair)
            except KeyError:
                if (found := self._series(text, rank)) is None:
                    return None
                key, record = found
                batches.setdefault(key, SeriesBatch(record))
                of_text[text] = pairs_of.setdefault(key, [])
                of_text[text].append(pair)
        for key, pairs in pairs_of.items():
            batches[key].values = [value for _, value in pairs]
            batches[key].times = [_series_time(row) for row, _ in pairs]
        return batches

    def _series(self, text: Any, rank: int | None) -> tuple[K, Mapping[str, Any]] | None:
        """Return the series of rows that share `text`; None unless that is as our writer writes it."""
        found = self._known.get((rank, text))
        if found is None and _is_valid(text):
            if len(self._known) >= _KNOWN:
                self._known.clear()
            record = labelled(record_like(text), rank)
            found = self._known[rank, text] = self._key_of(record), record
        return found

    def _read_slowly(self, content: bytes, rank: int | None) -> SeriesLines[K]:
        batches: dict[K, SeriesBatch] = {}
        count = late = 0
        last = None
        for decoded in records_in(content):
            count += 1
            late += decoded.get("late") is True
            last = decoded["timestamp"]
            record = labelled(decoded, rank)
            key = self._key_of(record)
            batch = batches.get(key) or SeriesBatch(record)
            if not batch.values:
                # Values beyond `LIMIT` do not affect the order of series.
                batches[key] = batches.pop(key, batch)
            batch.add(decoded)
        return SeriesLines(batches, count, late, last)


def labelled(record: Mapping[str, Any], rank: int | None) -> Mapping[str, Any]:
    """Return a record with the label `rank`, if there is one."""
    if rank is None:
        return record
    return {**record, "labels": {**(record.get("labels") or {}), "rank": str(rank)}}


def with_rank(records: bytes, rank: int) -> bytes:
    """Return whole lines of `metrics.jsonl` with the label `rank`; lines that are not records do not
    change."""
    label = b'"rank":"%d"' % rank
    if len(_line(text=_TEXT, number=_NUMBER, end="").findall(records)) == records.count(b"\n"):
        return records.replace(b"}\n", b',"labels":{%b}}\n' % label)
    rows = rows_in(records) if b'"rank":' not in records else None
    if rows is None:
        return b"".join(_with_rank(line, rank) for line in records.splitlines(keepends=True))
    tails = {tail: _tail_with(label, tail) for tail in {row[TAIL] for row in rows}}
    lines = zip(records.split(b"\n"), rows, strict=False)
    return b"".join(line[: len(line) - len(row[TAIL]) - 1] + tails[row[TAIL]] for line, row in lines)


def _tail_with(label: bytes, tail: bytes) -> bytes:
    """Return the end of a line with such a tail if it has one more label."""
    labels, brace, rest = tail.rpartition(b"}")
    if not brace:
        return b',"labels":{%b}%b}\n' % (label, tail)
    comma = b"" if labels.endswith(b"{") else b","
    return b"%b%b%b}%b}\n" % (labels, comma, label, rest)


def _with_rank(line: bytes, rank: int) -> bytes:
    try:
        record = labelled(parse_json(line, where="metrics.jsonl"), rank)
    except (RecordError, TypeError, AttributeError):
        return line
    return json.dumps(record).encode() + b"\n"
