"""Reads millions of lines of `metrics.jsonl` quickly. One pattern matches a line as `bai` itself writes it,
without parsing the line's JSON.

All lines of a piece of the stream are decoded one by one if the piece contains damaged lines, or lines of
another version or tool. The order of the lines is kept in this way. The pattern and the decoder find the same
records.
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
"""Labels that identify the node and the benchmark's process from which a record comes."""

_INTEGER = r"(?:0|[1-9]\d{0,17})"
_EXPONENT = r"[eE][-+]?\d{1,2}"
_NUMBER = rf"-?{_INTEGER}(?:\.\d{{1,24}}(?:{_EXPONENT})?|{_EXPONENT})?"
"""Matches only numbers that are certainly within `LIMIT`. The slower decoder reads numbers that `_NUMBER`
does not match."""
_ANY_NUMBER = rf"[-.\d]{{1,44}}(?:{_EXPONENT})?"
"""Matches any number, and also texts that are not JSON. `_ANY_NUMBER` is faster than `_NUMBER`, and safe if
the numbers are decoded anyway."""
_TEXT = r'"[ !#-\[\]-~]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[ !#-\[\]-~]*)*"'
"""Matches only ASCII text that is valid JSON, so that a decoder need not check the text."""
_ANY_TEXT = r'"[^"]*(?:\\"[^"]*)*"'
"""Matches text that need not be valid JSON. `_ANY_TEXT` is faster than `_TEXT`, and safe if each distinct
text is checked once."""
_REPEAT = rf'(?:,"repeat":{_INTEGER})?'
_GENERATION = rf'(?:,"generation":{_INTEGER})?'
_LABEL = rf"{_TEXT}: ?{_TEXT}"
_LABELS = rf',"labels":\{{(?:{_LABEL}(?:, ?{_LABEL})*)?\}}'
_END = rf'(?:{_LABELS})?(?:,"late":(?:true|false))?(?:,"gen":{_INTEGER})?{_REPEAT}{_GENERATION}'

Row: TypeAlias = tuple[bytes, ...]
"""The parts of a record, as they were written in the line. The constants after `Row` define the indexes of
the parts. The step is b"" if the record has no step."""
_PARTS = ("seq", "head", "off", "name", "value", "units", "timestamp", "step", "tail")
_, HEAD, _, NAME, _, UNITS, _, _, TAIL = range(len(_PARTS))
shared_text = itemgetter(HEAD, NAME, UNITS, TAIL)
"""Function that returns those parts of a row that are equal in all rows of its series."""
_SERIES_PARTS = ("head", "name", "value", "units", "time", "tail")
"""Names of the parts of a record that a series needs. To save time, only these parts are read."""
_series_text, _series_value, _series_time = itemgetter(0, 1, 3, 5), itemgetter(2), itemgetter(4)
_KNOWN = 2**16
"""Maximum number of series whose keys are cached."""


@cache
def _line(*parts: str, text: str, number: str, end: str) -> re.Pattern[bytes]:
    """Return the pattern of a line as `bai_agent/metrics/records.py` writes it, with a group for each of
    `parts`. The pattern is compiled only when lines are read, because compiling it takes 2 ms."""
    # A timestamp of at most 14 digits needs no check, because it is always before the latest valid time.
    line = (
        rf'^\{{"seq":<seq>{_INTEGER}),<head>"src":{text}{_REPEAT}),"off":<off>{_INTEGER}),"i":{_INTEGER},"k":{_INTEGER}'
        rf',"name":<name>{text}),"value":<value>{number}),"units":<units>{text})'
        rf',"timestamp":<time><timestamp>0|[1-9]\d{{0,13}})(?:,"step":<step>{_NUMBER}))?)<tail>{end})\}}$'
    )
    groups = re.sub(r"<(\w+)>", lambda part: "(" if part[1] in parts else "(?:", line)
    return re.compile(groups.encode(), re.MULTILINE)


@cache
def _shared() -> re.Pattern[bytes]:
    """Return the pattern of the parts that are equal in all rows of a series, one part per line."""
    return re.compile(rf'"src":{_TEXT}{_REPEAT}\n{_TEXT}\n{_TEXT}\n{_END}'.encode())


def rows_in(content: bytes) -> list[Row] | None:
    """Return the rows of whole lines; None unless all lines are as `bai` itself writes them."""
    rows = _line(*_PARTS, text=_ANY_TEXT, number=_NUMBER, end=r"[^\n]*").findall(content)
    if len(rows) == content.count(b"\n") and all(map(_is_valid, set(map(shared_text, rows)))):
        return rows
    return None


def _is_valid(text: tuple[bytes, ...]) -> bool:
    """Return whether the parts that all rows of a series share are as `bai` itself writes them."""
    return _shared().fullmatch(b"\n".join(text)) is not None


def record_like(text: tuple[bytes, ...]) -> Mapping[str, Any]:
    """Return the record, without its numbers, of rows with the shared parts `text`."""
    record: Mapping[str, Any] = json.loads(b'{%b,"name":%b,"value":0,"units":%b,"timestamp":0%b}' % text)
    return record


def numbers(rows: Iterable[Row]) -> list[list[float | str]]:
    """Return sequence number, offset, value, timestamp and step of each row. The step is "" if the row has no
    step."""
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
    """The first record of the series. All records of a series have the same name, source, units and
    labels."""
    values: list[float] = field(default_factory=list)
    """The values of the records; whole numbers are `int`."""
    times: list[bytes] = field(default_factory=list)
    """The time at which each value was read, and its step if it has one, as written in the line:
    `1795000000000,"step":3`."""
    beyond: int = 0
    """Number of values beyond `LIMIT`, which are not in `values`."""

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
        """Return the times at which the values were read (ms UTC), and the steps. The step of a record
        without a step is NaN; the list is empty if no record has a step."""
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
    """Rank of the node that wrote the lines, in a job of several nodes; otherwise None."""

    def with_rank(self) -> bytes:
        """Return the lines with the label `rank`, in a job of several nodes."""
        return self.content if self.rank is None else with_rank(self.content, self.rank)


@dataclass(frozen=True)
class SeriesLines(Generic[K]):
    """The records that were read from some lines."""

    batches: dict[K, SeriesBatch]
    """Values by series. Series are in the order of their first values within `LIMIT`. A series whose values
    are all beyond `LIMIT` has the place of its last value."""
    count: int
    """Number of records."""
    late: int
    """Number of records that the agent read only after a restart. The times of late records are not the times
    at which the benchmark printed the values."""
    last_timestamp: int | None
    """Time of the last record (ms UTC); None if there is no record."""


class SeriesReader(Generic[K]):
    """Reads lines, and assigns the records in the lines to series."""

    def __init__(self, key_of: Callable[[Mapping[str, Any]], K]) -> None:
        """key_of: function that returns the series of a valid record. The result of `key_of` must not depend
        on the record's numbers, because `key_of` is not called for every record."""
        self._key_of = key_of
        self._known: dict[tuple[int | None, Any], tuple[K, Mapping[str, Any]]] = {}

    def read(self, content: bytes, *, rank: int | None = None) -> SeriesLines[K]:
        """Return the records in whole lines. rank: label `rank` for all records, in a job of several
        nodes."""
        rows = _line(*_SERIES_PARTS, text=_ANY_TEXT, number=_ANY_NUMBER, end=r"[^\n]*").findall(content)
        batches = self._batches(rows, rank) if len(rows) == content.count(b"\n") else None
        if batches is None:
            return self._read_slowly(content, rank)
        # No text within a line of bai's own writer can contain this marker, because the marker's quotes would
        # be escaped.
        late = content.count(b',"late":true')
        last = int(_series_time(rows[-1]).partition(b",")[0]) if rows else None
        return SeriesLines(batches, len(rows), late, last)

    def _batches(self, rows: list[Row], rank: int | None) -> dict[K, SeriesBatch] | None:
        """Return the series of the rows; None unless all rows are as `bai` itself writes them."""
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
        """Return the series of the rows with the shared parts `text`; None unless these parts are as `bai`
        itself writes them."""
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
                # Values beyond `LIMIT` do not affect the order of the series.
                batches[key] = batches.pop(key, batch)
            batch.add(decoded)
        return SeriesLines(batches, count, late, last)


def labelled(record: Mapping[str, Any], rank: int | None) -> Mapping[str, Any]:
    """Return a record with the label `rank`, unless `rank` is None."""
    if rank is None:
        return record
    return {**record, "labels": {**(record.get("labels") or {}), "rank": str(rank)}}


def with_rank(records: bytes, rank: int) -> bytes:
    """Return whole lines of `metrics.jsonl` with the label `rank` added. Lines that are not records stay
    unchanged."""
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
    """Return `tail`, the end of a line, with the label `label` added."""
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
