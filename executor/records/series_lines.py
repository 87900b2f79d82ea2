"""Reads lines of `metrics.jsonl` by the million: one pattern reads a line in the form of our own writer,
without parsing its JSON.

Lines of another version or tool, or damaged ones, are decoded one by one, together with all lines of the same
piece, because the order matters. Both ways find the same records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
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

_NUMBER = r"-?(?:0|[1-9]\d{0,17})(?:\.\d{1,24})?(?:[eE][-+]?\d{1,2})?"
"""Such numbers are within `LIMIT`, whatever their digits; others are left to the slower reader."""
_INTEGER = r"(?:0|[1-9]\d{0,17})"
_TEXT = r'"[ !#-\[\]-~]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[ !#-\[\]-~]*)*"'
"""ASCII, and valid JSON: matching text needs no check by a decoder."""
_REPEAT = rf'(?:,"repeat":{_INTEGER})?'
_GENERATION = rf'(?:,"generation":{_INTEGER})?'
_LABEL = rf"{_TEXT}: ?{_TEXT}"
_LABELS = rf',"labels":\{{(?:{_LABEL}(?:, ?{_LABEL})*)?\}}'
# A timestamp of at most 14 digits is before the latest valid time.
_START = (
    rf'^\{{"seq":({_INTEGER}),("src":{_TEXT}{_REPEAT}),"off":({_INTEGER}),"i":{_INTEGER},"k":{_INTEGER}'
    rf',"name":({_TEXT}),"value":({_NUMBER}),"units":({_TEXT}),"timestamp":(0|[1-9]\d{{0,13}})(?:,"step":({_NUMBER}))?'
)
_END = rf'((?:{_LABELS})?(?:,"late":(?:true|false))?(?:,"gen":{_INTEGER})?{_REPEAT}{_GENERATION})\}}$'

Row: TypeAlias = tuple[bytes, ...]
"""Parts of a record as written, at the places below; b"" for no step."""
SEQ, HEAD, OFF, NAME, VALUE, UNITS, TIMESTAMP, STEP, TAIL = range(9)
shared_text = itemgetter(HEAD, NAME, UNITS, TAIL)
"""Returns the properties that a row shares with others of its series."""
_KNOWN = 2**16
"""Series whose keys are remembered."""


@cache
def _line() -> re.Pattern[bytes]:
    """Return the pattern of a line as `bai_agent/metrics/records.py` writes it; compiled where lines are read,
    as it takes 2 ms."""
    return re.compile((_START + _END).encode(), re.MULTILINE)


@cache
def _bare_line() -> re.Pattern[bytes]:
    """Return the pattern of a line without labels and the text after them; it has no groups, which take
    time."""
    return re.compile(re.sub(r"(?<!\\)\((?!\?)", "(?:", _START).encode() + rb"\}$", re.MULTILINE)


def rows_in(content: bytes) -> list[Row] | None:
    """Return the rows of whole lines; None unless all of them are as our writer writes them."""
    found = _line().findall(content)
    return found if len(found) == content.count(b"\n") else None


def record_like(row: Row) -> Mapping[str, Any]:
    """Return a record that differs from that of the row in its numbers alone."""
    line = b'{%b,"name":%b,"value":0,"units":%b,"timestamp":0%b}' % shared_text(row)
    record: Mapping[str, Any] = json.loads(line)
    return record


def numbers(row: Row) -> tuple[float | str, ...]:
    """Return sequence number, offset, value, timestamp and step of a row as JSON; "" in place of a step if it
    has none."""
    seq, _, off, _, value, _, timestamp, step, _ = row
    return int(seq), int(off), _number(value), int(timestamp), _number(step) if step else ""


@dataclass
class SeriesBatch:
    """Records of one series, in the order in which they were written."""

    record: Mapping[str, Any]
    """The first record of the series: all have its name, source, units and labels."""
    rows: list[Row] = field(default_factory=list)
    beyond: int = 0
    """Number of values beyond `LIMIT`; they have no row."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a decoded record."""
        value, step = record["value"], record.get("step")
        if abs(value) > LIMIT:
            self.beyond += 1
            return
        step = repr(step).encode() if is_number(step) else b""
        time = repr(record["timestamp"]).encode()
        self.rows.append((b"", b"", b"", b"", repr(value).encode(), b"", time, step, b""))

    @property
    def values(self) -> list[float]:
        """The values, whole numbers as `int`."""
        texts = list(map(itemgetter(VALUE), self.rows))
        # Each text has one point at most, and `float` alone is faster.
        have_points = b" ".join(texts).count(b".") == len(texts)
        return list(map(float if have_points else _number, texts))

    @property
    def timestamps(self) -> list[int]:
        """The times of reading, in ms UTC."""
        return list(map(int, map(itemgetter(TIMESTAMP), self.rows)))

    @property
    def steps(self) -> list[float]:
        """The steps, NaN for a record without one; none if no record has one."""
        every = [row[STEP] for row in self.rows]
        return [float(step or "nan") for step in every] if any(every) else []


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
        rows = rows_in(content)
        if rows is None:
            return self._read_slowly(content, rank)
        # No text within such a line can contain this marker: its quotes would be escaped.
        late = content.count(b',"late":true')
        return SeriesLines(
            self._batches(rows, rank), len(rows), late, int(rows[-1][TIMESTAMP]) if rows else None
        )

    def _batches(self, rows: list[Row], rank: int | None) -> dict[K, SeriesBatch]:
        batches: dict[K, SeriesBatch] = {}
        of_text: dict[Any, list[Row]] = {}
        for row in rows:
            text = shared_text(row)
            try:
                of_text[text].append(row)
            except KeyError:
                key, record = self._series(row, text, rank)
                if key not in batches:
                    batches[key] = SeriesBatch(record)
                of_text[text] = batches[key].rows
                of_text[text].append(row)
        return batches

    def _series(self, row: Row, text: Any, rank: int | None) -> tuple[K, Mapping[str, Any]]:
        found = self._known.get((rank, text))
        if found is None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            record = labelled(record_like(row), rank)
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
            if not batch.rows:
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
    if len(_bare_line().findall(records)) == records.count(b"\n"):
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


def _number(text: bytes) -> float:
    """Return a number as JSON text."""
    if b"." not in text:
        try:
            return int(text)
        except ValueError:
            pass
    return float(text)
