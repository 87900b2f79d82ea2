"""Writes `metrics.jsonl`. The file has one writer. Records are numbered without gaps and are never repeated,
even if the writer is killed.

A restarted writer extracts again from its last checkpoint, with the same result. The writer skips each record
that does not come after the last record of its source in the file, because skipped records are already in the
file.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from bai_agent.backoff import Backoff
from bai_agent.job.descriptor.metric_tables import Metric, OfRun
from bai_agent.job.record_types import BenchmarkExit
from bai_agent.job.run_directory import FULL, open_append, write_all
from bai_agent.metrics.headlines import Headlines, members_of
from bai_agent.metrics.search.dense import Columns
from bai_agent.metrics.search.patterns import Found
from bai_agent.metrics.search.reading import LABELS

log = logging.getLogger(__name__)

SOURCES = ("log", "emit", "host", "exit", "run", "file")
"""Values of `src` in records, in addition to the names of the logs of processes."""
_OF_NO_HEADLINE = ("host", "run")
"""Sources of records whose metrics have no headline."""
_CHUNK = 2**20
_LATE = ',"late":true'
_GEN = ',"gen":'
_LABELS = f"{LABELS}{{"


_PIECES = 6
"""Number of text pieces of a record. The pieces are the record's beginning, the last digits of the record's
number, the place, the name, the value, and the rest of the record."""
_DIGITS = [f"{number:03}" for number in range(1000)]

_index = itemgetter(1)


class Key(NamedTuple):
    """Position of a record within its source. The position increases from record to record."""

    truncations: int
    """Number of truncations of the record's log; `gen` in the record."""
    off: int
    i: int
    k: int


class Value(NamedTuple):
    """A named value from a source other than a pattern. `value` is a JSON number."""

    i: int
    name: str
    value: str
    units: str = ""
    more: str = ""
    """Further members of the value's record, as JSON, each beginning with a comma."""
    timestamp: int | None = None
    """Time of the value (ms UTC). None if the value has the same time as the other values of its batch."""


class BlockOrigin(NamedTuple):
    """Origin of a block of lines. The records of all values in the block share this origin."""

    timestamp: int
    """Time at which the lines were read (ms UTC)."""
    src: str = "log"
    labels: str = ""
    """Members of a JSON object that are added to each record's labels."""
    truncations: int = 0
    """Number of truncations of the log before these lines."""
    late: bool = False
    """Whether the lines were read much later than the benchmark printed them."""
    repeat: int | None = None


class RecordFile:
    """Appends records to the file at `path`.

    The file's first `size` bytes contain the first `seq` records. `last`: the last of these
    records for each source. sources: all sources that may have records in the file. restarts: whether the `repeat` of the methods
    is the generation of a job with restarts. headlines: object that receives each added record.
    """

    def __init__(
        self,
        path: Path,
        metrics: Sequence[Metric],
        *,
        size: int = 0,
        seq: int = 0,
        last: Mapping[str, Key] | None = None,
        sources: Sequence[str] = SOURCES,
        restarts: bool = False,
        headlines: Headlines | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = path
        self._sleep = sleep
        self._descriptor = open_append(path)
        self.size = os.fstat(self._descriptor).st_size
        self.seq = seq
        self.last = dict(last or {})
        """Last record of each source in the file."""
        self._sources = sources
        self._part = ',"generation":' if restarts else ',"repeat":'
        self._headlines = headlines
        if headlines is not None and self.size:
            headlines.miss()
        self._recover(size)
        self._known = dict(self.last)
        names = [f',"name":{json.dumps(metric.name)},"value":' for metric in metrics]
        self._firsts = [f',"i":{i},"k":0{name}' for i, name in enumerate(names)]
        self._names = names
        self._ends = [f',"units":{json.dumps(metric.units)},"timestamp":' for metric in metrics]

    def add_found(self, found: Sequence[Found], origin: BlockOrigin) -> None:
        """Append values found by patterns in a log, in order, except values that are already in the file."""
        src, labels, truncations = origin.src, origin.labels, origin.truncations
        known = self._known.get(src)
        if known is not None:
            found = [each for each in found if (truncations, *each[:3]) > known]
            if found:
                del self._known[src]
        if not found:
            return
        self.last[src] = Key(truncations, *found[-1][:3])
        firsts, names, ends = self._firsts, self._names, self._ends
        end = self._end(origin)
        # The parts are computed only for metrics with a value, because most of a thousand metrics may have no
        # value.
        middles = {i: f"{ends[i]}{origin.timestamp}" for i in set(map(_index, found))}
        own = f"{_LABELS}{labels}}}" if labels else ""
        tails = {i: f"{middle}{own}{end}" for i, middle in middles.items()}
        if labels:
            found = [each if not each[4] else (*each[:4], _with_labels(each[4], labels)) for each in found]
        self._append(
            "".join(
                f'{{"seq":{seq},"src":"{src}","off":{off}{_place(i, k, names) if k else firsts[i]}{value}'
                f"{f'{middles[i]}{extra}{end}' if extra else tails[i]}"
                for seq, (off, i, k, value, extra) in enumerate(found, self.seq)
            ),
            len(found),
        )
        if self._headlines is not None:
            self._headlines.add_found(found, labels=labels, timestamp=origin.timestamp, repeat=origin.repeat)

    def add_columns(self, columns: Columns, origin: BlockOrigin) -> None:
        """Append columns of values. The written records are the same as with `add_found`, but writing takes a
        fraction of the time."""
        src, labels, timestamp = origin.src, origin.labels, origin.timestamp
        if self._known.get(src) is not None:
            self.add_found(columns.found(), origin)
            return
        metrics, lines = len(columns.columns), len(columns.offsets)
        count = metrics * lines
        self.last[src] = Key(origin.truncations, columns.offsets[-1], columns.columns[-1].metric, 0)
        end = self._end(origin)
        own = f"{_LABELS}{labels}}}" if labels else ""
        # Each record consists of a fixed number of pieces. One list holds the pieces of all records, so each
        # kind of piece is a slice of this list.
        pieces: list[str] = [""] * (_PIECES * count)
        pieces[0::_PIECES], pieces[1::_PIECES] = _numbers(self.seq, count)
        places = [f',"src":"{src}","off":{offset}' for offset in columns.offsets]
        step = _PIECES * metrics
        for number, (index, values, extras) in enumerate(columns.columns):
            first = _PIECES * number
            middle = f"{self._ends[index]}{timestamp}"
            pieces[first + 2 :: step] = places
            pieces[first + 3 :: step] = [self._firsts[index]] * lines
            pieces[first + 4 :: step] = values
            if extras is None:
                pieces[first + 5 :: step] = [f"{middle}{own}{end}"] * lines
            else:
                more = [_with_labels(extra, labels) for extra in extras] if labels else extras
                pieces[first + 5 :: step] = [f"{middle}{extra}{end}" for extra in more]
        self._append("".join(pieces), count)
        if self._headlines is not None:
            self._headlines.add_columns(columns, labels=labels, timestamp=timestamp, repeat=origin.repeat)

    def add_values(
        self,
        src: str,
        off: int,
        values: Sequence[Value],
        *,
        truncations: int = 0,
        timestamp: int,
        late: bool = False,
        repeat: int | None = None,
    ) -> None:
        """Append `values`, in order, except values that are already in the file."""
        known = self._known.get(src)
        if known is not None:
            values = [each for each in values if Key(truncations, off, each.i, 0) > known]
            if values:
                del self._known[src]
        if not values:
            return
        self.last[src] = Key(truncations, off, values[-1].i, 0)
        end = self._end(BlockOrigin(timestamp, src, "", truncations, late, repeat))
        self._append(
            "".join(
                f'{{"seq":{seq},"src":"{src}","off":{off},"i":{i},"k":0,"name":{json.dumps(name)},"value":{value}'
                f',"units":{json.dumps(units)},"timestamp":{timestamp if own is None else own}{more}{end}'
                for seq, (i, name, value, units, more, own) in enumerate(values, self.seq)
            ),
            len(values),
        )
        if self._headlines is not None and src not in _OF_NO_HEADLINE:
            for each in values:
                time = timestamp if each.timestamp is None else each.timestamp
                self._headlines.add(
                    each.name, (each.value,), members=members_of(each.more), timestamp=time, repeat=repeat
                )

    def close(self) -> None:
        os.close(self._descriptor)

    def _end(self, origin: BlockOrigin) -> str:
        """Return the text that ends a record."""
        part = "" if origin.repeat is None else f"{self._part}{origin.repeat}"
        gen = f"{_GEN}{origin.truncations}" if origin.truncations else ""
        return f"{_LATE if origin.late else ''}{gen}{part}}}\n"

    def _append(self, records: str, count: int) -> None:
        content = records.encode("ascii")
        wait_for_room(
            lambda: write_all(self._descriptor, content),
            undo=lambda: os.ftruncate(self._descriptor, self.size),
            path=self._path,
            sleep=self._sleep,
        )
        self.size += len(content)
        self.seq += count

    def _recover(self, start: int) -> None:
        """Count the records of the file after the offset `start`, and find the last record of each source."""
        rest = b""
        while chunk := os.pread(self._descriptor, _CHUNK, start):
            start += len(chunk)
            content, newline, rest = (rest + chunk).rpartition(b"\n")
            self.seq += content.count(b"\n") + len(newline)
            for src in self._sources:
                # A metric's name cannot contain this text, because quotes in a name are escaped.
                found = content.rfind(b'"src":"%s"' % src.encode())
                if found >= 0:
                    end = content.find(b"\n", found)
                    line = content[content.rfind(b"\n", 0, found) + 1 : end if end >= 0 else len(content)]
                    record = json.loads(line)
                    self.last[src] = Key(record.get("gen", 0), record["off"], record["i"], record["k"])


_FACTS = (
    ("wall_seconds", "s"),
    ("user_seconds", "s"),
    ("system_seconds", "s"),
    ("peak_memory_bytes", "bytes"),
    ("context_switches_voluntary", ""),
    ("context_switches_involuntary", ""),
    ("tree_peak_memory_bytes", "bytes"),
)


_PARTS = {
    OfRun.WALL_TIME: ("wall_seconds",),
    OfRun.CPU_TIME: ("user_seconds", "system_seconds"),
    OfRun.USER_TIME: ("user_seconds",),
    OfRun.SYSTEM_TIME: ("system_seconds",),
    OfRun.PEAK_MEMORY: ("peak_memory_bytes",),
}
"""Resource of a run → the fields of `BenchmarkExit` whose sum is the resource's value."""


def run_facts(exited: BenchmarkExit) -> list[Value]:
    """Return the values in `exit.json` as metrics, without unknown values (null)."""
    return [
        Value(position, f"bai_run_{key}", json.dumps(value), units)
        for position, (key, units) in enumerate(_FACTS)
        if (value := getattr(exited, key)) is not None
    ]


def values_of_run(metrics: Sequence[Metric], exited: BenchmarkExit) -> list[Value]:
    """Return the values of the metrics about the run's own resources."""
    found = []
    for index, metric in enumerate(metrics):
        if metric.of_run is None:
            continue
        every = [getattr(exited, key) for key in _PARTS[metric.of_run]]
        parts = [each for each in every if each is not None]
        if len(parts) == len(every):
            value = parts[0] if len(parts) == 1 else round(sum(parts), 6)
            found.append(Value(index, metric.name, json.dumps(value), metric.units))
    return found


def wait_for_room(
    write: Callable[[], None],
    *,
    path: Path,
    undo: Callable[[], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Call `write` until the disk has room for the output. `undo` removes the partial output of a failed
    call.

    The process does not end instead, because the disk would still be full after a restart of the process.
    """
    backoff = Backoff(0.1, 2.0)
    told = False
    while True:
        try:
            write()
            return
        except OSError as error:
            if error.errno not in FULL:
                raise
            if not told:
                log.warning("%s: no space left on this file's disk; waiting for space", path)
            told = True
            if undo is not None:
                undo()
        sleep(backoff.next())


def _numbers(first: int, count: int) -> tuple[list[str], list[str]]:
    """Return the beginnings of `count` records with consecutive numbers from `first` on, and the last three
    digits of each number."""
    begins: list[str] = []
    digits: list[str] = []
    for thousand in range(first // 1000, (first + count - 1) // 1000 + 1):
        start = max(first, thousand * 1000) - thousand * 1000
        stop = min(first + count, thousand * 1000 + 1000) - thousand * 1000
        begins += [f'{{"seq":{thousand or ""}'] * (stop - start)
        digits += _DIGITS[start:stop] if thousand else map(str, range(start, stop))
    return begins, digits


def _place(i: int, k: int, names: Sequence[str]) -> str:
    return f',"i":{i},"k":{k}{names[i]}'


def _with_labels(extra: str, labels: str) -> str:
    """Return the step and the labels of a record, with additional labels in front of the record's own
    labels."""
    step, has_labels, rest = extra.partition(_LABELS)
    return f"{step}{_LABELS}{labels}{f',{rest}' if has_labels else '}'}"
