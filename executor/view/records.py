"""A job's metrics as a person or a program wants them: statistics, JSON Lines, CSV."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bai_agent.job.descriptor import Job
from executor.quantities import quantity
from executor.records.reading import MalformedLines, records_in
from executor.records.statistics import Measurements, Series
from executor.view.listing import screen_width, show
from executor.view.metrics import metric_table
from executor.view.stage import DrawnTerminal
from executor.view.text import plain_text, speaks_unicode, visible_bytes

_COLUMNS = ("seq", "src", "name", "value", "units", "timestamp", "step", "labels", "late", "gen")
_FORMULA = ("=", "+", "-", "@")
_REFRESH = 0.3
_LIVE_ROWS = 40


def print_jsonl(job: Job, lines: Iterator[bytes], follow: bool) -> MalformedLines:
    """Print the records as they are; on a terminal without what that would obey."""
    on_screen = sys.stdout.isatty()
    for content in lines:
        sys.stdout.buffer.write(visible_bytes(content) if on_screen else content)
        sys.stdout.buffer.flush()
    return MalformedLines()


def print_csv(job: Job, lines: Iterator[bytes], follow: bool) -> MalformedLines:
    """Print the records as CSV with a heading; return what was passed over."""
    foreign = MalformedLines()
    writer = csv.DictWriter(sys.stdout, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for content in lines:
        records = [_for_spreadsheet(record) for record in records_in(content)]
        for record in records:
            if "labels" in record:
                record["labels"] = json.dumps(record["labels"])
        writer.writerows(records)
        foreign.add(content, taken=len(records))
        sys.stdout.flush()
    return foreign


def _for_spreadsheet(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return `record` as a spreadsheet or a terminal may read it.

    Numbers stay numbers, a minus included: they are numbers of JSON's, never texts. A text that a spreadsheet would take for a
    formula gets an apostrophe in front (https://owasp.org/www-community/attacks/CSV_Injection).
    """
    row: dict[str, Any] = {}
    for column in _COLUMNS:
        value = record.get(column)
        if isinstance(value, (int, float, type(None))):
            row[column] = value
        else:
            text = plain_text(str(value))
            row[column] = f"'{text}" if text.startswith(_FORMULA) else text
    return row


def print_statistics(job: Job, lines: Iterator[bytes], follow: bool) -> MalformedLines:
    """Print one line of statistics for each metric; with `follow` on a terminal they move. Return what was passed over."""
    measurements = Measurements(job)
    # Asked now: a live table puts something in the place of standard output that has no encoding.
    unicode = speaks_unicode()
    if not (follow and sys.stdout.isatty()):
        for content in lines:
            measurements.add_lines(content)
        width = screen_width()
        show(_tables(measurements, width=width, rows=sys.maxsize, unicode=unicode))
        return measurements.foreign
    console = Console(highlight=False)

    def draw() -> RenderableType:
        rows = max(1, min(_LIVE_ROWS, console.height - 4))
        return _tables(measurements, width=console.width, rows=rows, unicode=unicode)

    stage, shown = DrawnTerminal(console, draw), 0.0
    stage.open()
    try:
        for content in lines:
            measurements.add_lines(content)
            if time.monotonic() - shown > _REFRESH:
                shown = time.monotonic()
                stage.refresh()
    finally:
        stage.close()
        console.print(_tables(measurements, width=console.width, rows=_LIVE_ROWS, unicode=unicode))
    return measurements.foreign


def _tables(measurements: Measurements, *, width: int, rows: int, unicode: bool) -> RenderableType:
    parts: list[RenderableType] = []
    left = rows
    for group in (measurements.benchmark, measurements.host):
        every: list[Series] = list(group.values())
        if not every or left <= 0:
            continue
        if parts:
            parts.append(Text())
        parts.append(metric_table(every, width=width, rows=left, summary=True, unicode=unicode))
        left -= len(every) + 2
    if measurements.run and left > 0:
        parts += [Text(), _facts(list(measurements.run.values())[:left])]
    return Group(*parts) if parts else Text("no metrics so far", style="dim")


def _facts(every: list[Series]) -> Table:
    """Return the run's own facts, of which there is one value each."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for series in every:
        value, units = quantity(series.last, series.units)
        table.add_row(
            Text(plain_text(series.name), style="bold"), value, Text(plain_text(units), style="dim")
        )
    return table
