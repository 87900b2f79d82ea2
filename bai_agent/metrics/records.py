"""`metrics.jsonl`: one writer, records numbered without a gap, and none twice whenever it was killed.

A restarted writer extracts again from its last checkpoint on. What that yields is the same as before, so whatever is
not beyond the last record of its source is in the file already.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from bai_agent.backoff import Backoff
from bai_agent.job.descriptor import Metric, OfRun
from bai_agent.job.reserved_space import FULL
from bai_agent.job.run_directory import open_append, write_all
from bai_agent.metrics.patterns import Found

log = logging.getLogger(__name__)

SOURCES = ("log", "emit", "host", "exit", "run", "file")
"""Whose records are looked for in the file, besides those of processes' logs."""
_CHUNK = 2**20
_LATE = ',"late":true'
_GEN = ',"gen":'
_REPEAT = ',"repeat":'
_LABELS = ',"labels":{'


_index = itemgetter(1)


class Key(NamedTuple):
    """A record's place within its source; it grows from record to record."""

    gen: int
    off: int
    i: int
    k: int


class Value(NamedTuple):
    """A named value that no pattern found; `value` is a JSON number."""

    i: int
    name: str
    value: str
    units: str = ""
    more: str = ""
    """What its record has besides, as JSON members that each begin with a comma."""
    timestamp: int | None = None
    """ms UTC, where it is not that of all."""


class RecordFile:
    """Appends to the file at `path`.

    Its first `size` bytes hold the first `seq` records, and `last` is the last one of each source among them. `sources` are
    all that may have records in it.
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
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = path
        self._sleep = sleep
        self._descriptor = open_append(path)
        self.size = os.fstat(self._descriptor).st_size
        self.seq = seq
        self.last = dict(last or {})
        """The last record of each source in the file."""
        self._sources = sources
        self._recover(size)
        self._known = dict(self.last)
        names = [f',"name":{json.dumps(metric.name)},"value":' for metric in metrics]
        self._firsts = [f',"i":{i},"k":0{name}' for i, name in enumerate(names)]
        self._names = names
        self._ends = [f',"units":{json.dumps(metric.units)},"timestamp":' for metric in metrics]

    def add_found(
        self,
        found: Sequence[Found],
        *,
        src: str = "log",
        labels: str = "",
        gen: int,
        timestamp: int,
        late: bool,
        repeat: int | None = None,
    ) -> None:
        """Append what patterns found in a log, in order, but for what is there already.

        labels: members of a JSON object that each record's labels get, besides those that its pattern found.
        """
        known = self._known.get(src)
        if known is not None:
            found = [each for each in found if (gen, *each[:3]) > known]
            if found:
                del self._known[src]
        if not found:
            return
        self.last[src] = Key(gen, *found[-1][:3])
        firsts, names, ends = self._firsts, self._names, self._ends
        end = _end(gen=gen, late=late, repeat=repeat)
        # Of those that are there: of a thousand metrics, most may not be.
        middles = {i: f"{ends[i]}{timestamp}" for i in set(map(_index, found))}
        own = f"{_LABELS}{labels}}}" if labels else ""
        tails = {i: f"{middle}{own}{end}" for i, middle in middles.items()}
        if labels:
            found = [each if not each[4] else (*each[:4], _with_labels(each[4], labels)) for each in found]
        self._append(
            [
                f'{{"seq":{seq},"src":"{src}","off":{off}{_place(i, k, names) if k else firsts[i]}{value}'
                f"{f'{middles[i]}{extra}{end}' if extra else tails[i]}"
                for seq, (off, i, k, value, extra) in enumerate(found, self.seq)
            ]
        )

    def add_values(
        self,
        src: str,
        off: int,
        values: Sequence[Value],
        *,
        gen: int = 0,
        timestamp: int,
        late: bool = False,
        repeat: int | None = None,
    ) -> None:
        """Append `values`, in order, but for what is there already."""
        known = self._known.get(src)
        if known is not None:
            values = [each for each in values if Key(gen, off, each.i, 0) > known]
            if values:
                del self._known[src]
        if not values:
            return
        self.last[src] = Key(gen, off, values[-1].i, 0)
        end = _end(gen=gen, late=late, repeat=repeat)
        self._append(
            [
                f'{{"seq":{seq},"src":"{src}","off":{off},"i":{i},"k":0,"name":{json.dumps(name)},"value":{value}'
                f',"units":{json.dumps(units)},"timestamp":{timestamp if own is None else own}{more}{end}'
                for seq, (i, name, value, units, more, own) in enumerate(values, self.seq)
            ]
        )

    def close(self) -> None:
        os.close(self._descriptor)

    def _append(self, lines: Sequence[str]) -> None:
        content = "".join(lines).encode("ascii")
        wait_for_room(
            lambda: write_all(self._descriptor, content),
            undo=lambda: os.ftruncate(self._descriptor, self.size),
            path=self._path,
            sleep=self._sleep,
        )
        self.size += len(content)
        self.seq += len(lines)

    def _recover(self, start: int) -> None:
        """Count the records beyond `start` and find the last one of each source."""
        rest = b""
        while chunk := os.pread(self._descriptor, _CHUNK, start):
            start += len(chunk)
            content, newline, rest = (rest + chunk).rpartition(b"\n")
            self.seq += content.count(b"\n") + len(newline)
            for src in self._sources:
                # No name can hold this text: its quotes would be escaped there.
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
)


_PARTS = {
    OfRun.WALL_TIME: ("wall_seconds",),
    OfRun.CPU_TIME: ("user_seconds", "system_seconds"),
    OfRun.USER_TIME: ("user_seconds",),
    OfRun.SYSTEM_TIME: ("system_seconds",),
    OfRun.PEAK_MEMORY: ("peak_memory_bytes",),
}
"""The keys of exit.json whose sum it is."""


def run_facts(exited: Mapping[str, Any]) -> list[Value]:
    """Return the run's own facts in `exit.json`, as the shim measured them, as metrics; what is not known there (null) is left out."""
    return [
        Value(position, f"bai_run_{key}", json.dumps(exited[key]), units)
        for position, (key, units) in enumerate(_FACTS)
        if isinstance(exited.get(key), (int, float))
    ]


def values_of_run(metrics: Sequence[Metric], exited: Mapping[str, Any]) -> list[Value]:
    """Return the values of those metrics that say what the run itself took."""
    found = []
    for index, metric in enumerate(metrics):
        if metric.of_run is None:
            continue
        every = [exited.get(key) for key in _PARTS[metric.of_run]]
        parts = [each for each in every if isinstance(each, (int, float))]
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
    """Call `write` until the disk has room for it; `undo` takes back what a failed call has written.

    A process that ended instead would meet the full disk again after its restart.
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
                log.warning("%s: no space left on its disk; waiting for room", path)
            told = True
            if undo is not None:
                undo()
        sleep(backoff.next())


def _place(i: int, k: int, names: Sequence[str]) -> str:
    return f',"i":{i},"k":{k}{names[i]}'


def _with_labels(extra: str, labels: str) -> str:
    """Return a record's step and labels with more labels in front of its own."""
    step, has_labels, rest = extra.partition(_LABELS)
    return f"{step}{_LABELS}{labels}{f',{rest}' if has_labels else '}'}"


def _end(*, gen: int, late: bool, repeat: int | None) -> str:
    run = "" if repeat is None else f"{_REPEAT}{repeat}"
    return f"{_LATE if late else ''}{f'{_GEN}{gen}' if gen else ''}{run}}}\n"
