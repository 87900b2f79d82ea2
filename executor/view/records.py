"""Prints a job's metrics: statistics, JSON Lines, CSV."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bai_agent.job.descriptor import Job
from executor.quantities import quantity
from executor.records.memory_floor import LEAST
from executor.records.over_ranks import over_ranks
from executor.records.reading import MalformedLines, records_in
from executor.records.statistics import Measurements, Series
from executor.view.listing import screen_width, show
from executor.view.metrics import metric_notes, metric_table
from executor.view.stage import DrawnTerminal
from executor.view.text import plain_text, speaks_unicode, visible_bytes

_COLUMNS = (
    "seq", "src", "off", "name", "value", "units", "timestamp", "step",
    "repeat", "arm", "rank", "process_rank", "labels", "late", "gen",
)  # fmt: skip
_PLACES = ("rank", "process_rank")
_FORMULA = ("=", "+", "-", "@")
_REFRESH_S = 0.3
_SHARE = 4
"""The time that a picture takes is followed by a pause so many times as long."""
_LIVE_ROWS = 40


def print_jsonl(job: Job, lines: Iterator[bytes], follow: bool) -> MalformedLines:
    """Print the records as they are; on a terminal without what that would obey."""
    on_screen = sys.stdout.isatty()
    for content in lines:
        sys.stdout.buffer.write(visible_bytes(content) if on_screen else content)
        sys.stdout.buffer.flush()
    return MalformedLines()


class NamedRecords:
    """Lets through the records of some metrics alone."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self._seen: set[str] = set()

    @property
    def unseen(self) -> list[str]:
        """The names that no record had."""
        return sorted(self.names - self._seen)

    def only(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        """Yield what `lines` hold of these metrics; what is no record stays, for whoever counts such lines."""
        for content in lines:
            yield b"".join(line for line in content.splitlines(keepends=True) if self._is_wanted(line))

    def _is_wanted(self, line: bytes) -> bool:
        try:
            name = json.loads(line)["name"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return True
        if isinstance(name, str) and name in self.names:
            self._seen.add(name)
            return True
        return False


def print_csv(job: Job, lines: Iterator[bytes], follow: bool) -> MalformedLines:
    """Print the records as CSV with a heading; return what was passed over."""
    malformed = MalformedLines()
    writer = csv.DictWriter(sys.stdout, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    arms = job.repeat.arms_of_runs if job.repeat is not None else []
    for content in lines:
        records = [_for_spreadsheet(_in_columns(record, arms)) for record in records_in(content)]
        writer.writerows(records)
        malformed.add(content, taken=len(records))
        sys.stdout.flush()
    return malformed


def _in_columns(record: Mapping[str, Any], arms: Sequence[str]) -> dict[str, Any]:
    """Return `record` with columns of their own for its places and its arm."""
    labels = dict(record.get("labels") or {})
    repeat = record.get("repeat")
    return {
        **record,
        **{name: labels.pop(name, None) for name in _PLACES},
        "arm": arms[repeat] if repeat is not None and repeat < len(arms) else None,
        "labels": labels,
    }


def _for_spreadsheet(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return `record` as a spreadsheet or a terminal may read it.

    Numbers stay numbers, a minus included: they are numbers of JSON's, never texts. A text that a spreadsheet would take for a
    formula gets an apostrophe in front (https://owasp.org/www-community/attacks/CSV_Injection).
    """
    row: dict[str, Any] = {}
    for column in _COLUMNS:
        value = record.get(column)
        if column == "labels":
            row[column] = json.dumps(value) if value else None
        elif isinstance(value, (int, float, type(None))):
            row[column] = value
        else:
            text = plain_text(str(value))
            row[column] = f"'{text}" if text.startswith(_FORMULA) else text
    return row


def print_statistics(
    job: Job,
    lines: Iterator[bytes],
    follow: bool,
    *,
    starts: Mapping[int | None, int] | None = None,
    failed: Collection[int] = (),
    memory_floor: float = LEAST,
) -> MalformedLines:
    """Print one line of statistics for each metric; with `follow` on a terminal they move. Return what was passed over.

    starts: when the benchmark was started (ms UTC), by repeat, for the warm-up. failed: runs that count in no figure.
    memory_floor: bytes up to which peak memory is only a bound.
    """
    measurements = Measurements(job, starts=starts, failed=failed, memory_floor=memory_floor)
    # Asked now: a live table puts something in the place of standard output that has no encoding.
    unicode = speaks_unicode()
    if not (follow and sys.stdout.isatty()):
        for content in lines:
            measurements.add_lines(content)
        width = screen_width()
        show(_tables(measurements, width=width, rows=sys.maxsize, unicode=unicode))
        return measurements.malformed
    console = Console(highlight=False)

    def draw() -> RenderableType:
        rows = max(1, min(_LIVE_ROWS, console.height - 4))
        return _tables(measurements, width=console.width, rows=rows, unicode=unicode)

    stage, next_picture = DrawnTerminal(console, draw), 0.0
    stage.open()
    try:
        for content in lines:
            measurements.add_lines(content)
            if (begin := time.monotonic()) >= next_picture:
                stage.refresh()
                # Of very many values a picture takes a while.
                end = time.monotonic()
                next_picture = end + max(_REFRESH_S, _SHARE * (end - begin))
    finally:
        stage.close()
        console.print(_tables(measurements, width=console.width, rows=_LIVE_ROWS, unicode=unicode))
    return measurements.malformed


def _tables(measurements: Measurements, *, width: int, rows: int, unicode: bool) -> RenderableType:
    parts: list[RenderableType] = []
    left = rows
    of_benchmark = over_ranks(measurements.benchmark.values(), measurements.over_ranks)
    for every in (of_benchmark, list(measurements.host.values())):
        if not every or left <= 0:
            continue
        if parts:
            parts.append(Text())
        parts.append(metric_table(every, width=width, rows=left, summary=True, unicode=unicode))
        if every is of_benchmark:
            parts += [Text(plain_text(text), style=style) for text, style in metric_notes(every)]
        left -= len(every) + 2
    if measurements.run and left > 0:
        parts += [Text(), _facts(list(measurements.run.values())[:left])]
    return Group(*parts) if parts else Text("no metrics so far", style="dim")


def _facts(every: list[Series]) -> Table:
    """Return the run's own facts, of which there is one value each."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for series in every:
        value, units = quantity(series.last, series.units, floor=series.floor)
        table.add_row(
            Text(plain_text(series.name), style="bold"), value, Text(plain_text(units), style="dim")
        )
    return table
