"""Prints a job's metrics as statistics, as JSON Lines or as CSV."""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

from rich.console import Console, Group, RenderableType

from bai_agent.decode import parse_json
from bai_agent.errors import RecordError
from bai_agent.job.descriptor import Job
from bai_agent.job.job_headlines import arm_of
from executor.documents.document import Block, Column, Paragraph, Phrase, Table, quantity_phrase
from executor.documents.metrics import metric_notes, metric_table
from executor.documents.screen import Screen, show_blocks
from executor.documents.text import speaks_unicode, spreadsheet_cell, visible_bytes
from executor.records.counted_values import LEAST
from executor.records.over_ranks import current_rows
from executor.records.reading import MalformedLines, records_in
from executor.records.series import Series
from executor.records.series_lines import (
    NAME,
    RANK_LABELS,
    TAIL,
    RecordLines,
    Row,
    labelled,
    numbers,
    record_like,
    rows_in,
    shared_text,
)
from executor.records.statistics import Measurements
from executor.view.stage import DrawnTerminal

_COLUMNS = (
    "seq", "src", "off", "name", "value", "units", "timestamp", "step",
    "repeat", "arm", "rank", "process_rank", "labels", "late", "gen", "generation",
)  # fmt: skip
_SHARED = (("src",), ("name",), ("units",), _COLUMNS[8:])
"""Groups of CSV columns whose values are the same for all records of a series."""
_REFRESH_S = 0.3
_SHARE = 4
"""After a redraw, the next redraw waits for this multiple of the time that the redraw took."""
_LIVE_ROWS = 40


def print_jsonl(job: Job, lines: Iterator[RecordLines], follow: bool) -> MalformedLines:
    """Print the records unchanged, but without control sequences on a terminal."""
    on_screen = sys.stdout.isatty()
    for each in lines:
        content = each.with_rank()
        sys.stdout.buffer.write(visible_bytes(content) if on_screen else content)
        sys.stdout.buffer.flush()
    return MalformedLines()


class _ChosenRecords(ABC):
    """Base class of filters that select some of a job's records."""

    def only(self, lines: Iterator[RecordLines]) -> Iterator[RecordLines]:
        """Yield the lines of the selected records. Lines that are not records are also yielded, so that the
        caller can count them."""
        for content, rank in lines:
            whole, rows = content.splitlines(keepends=True), rows_in(content)
            wanted = self._are_wanted(rows) if rows is not None else list(map(self._is_wanted, whole))
            yield RecordLines(b"".join(compress(whole, wanted)), rank)

    @abstractmethod
    def _are_wanted(self, rows: Sequence[Row]) -> list[bool]:
        """Return for each of the records `rows` whether it is selected."""

    @abstractmethod
    def _is_wanted(self, line: bytes) -> bool:
        """Return whether the line is selected. The line can have any content."""


class NamedRecords(_ChosenRecords):
    """Filter that selects the records of some metrics."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self._seen: set[str] = set()

    @property
    def unseen(self) -> list[str]:
        """Names of the requested metrics for which there was no record."""
        return sorted(self.names - self._seen)

    def _are_wanted(self, rows: Sequence[Row]) -> list[bool]:
        names = {name: self._is_name_wanted(json.loads(name)) for name in {row[NAME] for row in rows}}
        return [names[row[NAME]] for row in rows]

    def _is_wanted(self, line: bytes) -> bool:
        try:
            name = parse_json(line, where="metrics.jsonl")["name"]
        except (RecordError, KeyError, TypeError):
            return True
        return isinstance(name, str) and self._is_name_wanted(name)

    def _is_name_wanted(self, name: str) -> bool:
        if name in self.names:
            self._seen.add(name)
        return name in self.names


class GenerationRecords(_ChosenRecords):
    """Filter that selects the records of one generation."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.has_seen = False
        """Whether there was a record of the generation."""

    def _are_wanted(self, rows: Sequence[Row]) -> list[bool]:
        end = b',"generation":%d' % self.number
        wanted = [row[TAIL].endswith(end) for row in rows]
        self.has_seen = self.has_seen or any(wanted)
        return wanted

    def _is_wanted(self, line: bytes) -> bool:
        records = list(records_in(line))
        is_of_it = any(each.get("generation") == self.number for each in records)
        self.has_seen = self.has_seen or is_of_it
        return is_of_it or not records


def print_csv(job: Job, lines: Iterator[RecordLines], follow: bool) -> MalformedLines:
    """Print the records as CSV with a header line. Return which lines were skipped because they are not
    records."""
    malformed = MalformedLines()
    print(",".join(_COLUMNS))
    arms = job.repeat.arms_of_runs if job.repeat is not None else []
    for content, rank in lines:
        found = _csv_lines(content, rank, arms)
        sys.stdout.write("".join(found))
        malformed.add(content, taken=len(found))
        sys.stdout.flush()
    return malformed


def _csv_lines(content: bytes, rank: int | None, arms: Sequence[str]) -> list[str]:
    """Convert whole lines of `metrics.jsonl` to CSV, one line per record."""

    def cells(record: Mapping[str, Any]) -> dict[str, Any]:
        return _for_spreadsheet(_in_columns(labelled(record, rank), arms))

    rows = rows_in(content)
    if rows is None:
        return [_csv(list(cells(record).values())) for record in records_in(content)]
    shared: dict[Any, tuple[str, ...]] = {}
    lines = []
    for text, (seq, off, value, timestamp, step) in zip(map(shared_text, rows), numbers(rows), strict=True):
        if text not in shared:
            # The columns that all records of a series share are converted only once.
            found = cells(record_like(text))
            shared[text] = tuple(_csv(["", *(found[each] for each in columns)])[:-1] for columns in _SHARED)
        src, name, units, tail = shared[text]
        lines.append(f"{seq}{src},{off}{name},{value}{units},{timestamp},{step}{tail}\n")
    return lines


def _csv(cells: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _in_columns(record: Mapping[str, Any], arms: Sequence[str]) -> dict[str, Any]:
    """Return `record` with separate keys for its rank and its arm, which become columns."""
    labels = dict(record.get("labels") or {})
    return {
        **record,
        **{name: labels.pop(name, None) for name in RANK_LABELS},
        "arm": arm_of(record.get("repeat"), arms),
        "labels": labels,
    }


def _for_spreadsheet(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the CSV cells of `record`, in which texts are safe for a spreadsheet and a terminal.

    Numbers, including negative numbers, stay unchanged, because they are JSON numbers and never texts.
    """
    row: dict[str, Any] = {}
    for column in _COLUMNS:
        value = record.get(column)
        if column == "labels":
            row[column] = json.dumps(value) if value else None
        else:
            is_text = not isinstance(value, (int, float, type(None)))
            row[column] = spreadsheet_cell(str(value)) if is_text else value
    return row


def print_statistics(
    job: Job,
    lines: Iterator[RecordLines],
    follow: bool,
    *,
    starts: Mapping[int | None, int] | None = None,
    failed: Collection[int] = (),
    memory_floor: float = LEAST,
) -> MalformedLines:
    """Print one line of statistics per metric. With `follow` on a terminal, a table is updated instead.
    Return which lines were skipped because they are not records.

    starts: start of the benchmark in each run, from which the warm-up time is measured (ms UTC). failed:
    numbers of the runs that are excluded from all figures. memory_floor: a peak memory up to this value is
    only an upper bound (bytes).
    """
    measurements = Measurements(job, starts=starts, failed=failed, memory_floor=memory_floor)
    # The encoding of standard output is read first, because the live table replaces standard output by an
    # object without an encoding.
    unicode = speaks_unicode()
    if not (follow and sys.stdout.isatty()):
        for content, rank in lines:
            measurements.add_lines(content, rank=rank)
        show_blocks(_blocks(measurements, rows=sys.maxsize))
        return measurements.malformed
    console = Console(highlight=False)

    def draw(rows: int) -> RenderableType:
        screen = Screen(width=console.width, unicode=unicode)
        return Group(*screen.render(_blocks(measurements, rows=rows)))

    def picture() -> RenderableType:
        return draw(max(1, min(_LIVE_ROWS, console.height - 4)))

    stage, next_picture = DrawnTerminal(console, picture), 0.0
    stage.open()
    try:
        for content, rank in lines:
            measurements.add_lines(content, rank=rank)
            if (begin := time.monotonic()) >= next_picture:
                stage.refresh()
                # Rendering a table of very many values takes long, so the pause is proportional to the time
                # of the last rendering.
                end = time.monotonic()
                next_picture = end + max(_REFRESH_S, _SHARE * (end - begin))
    finally:
        stage.close()
        console.print(draw(_LIVE_ROWS))
    return measurements.malformed


def _blocks(measurements: Measurements, *, rows: int) -> Iterator[Block]:
    """Yield tables with at most `rows` rows in all."""
    left = rows
    of_benchmark = measurements.rows
    if not of_benchmark and not measurements.host and not measurements.run:
        yield Paragraph("no metrics so far", "soft")
    shown = current_rows(of_benchmark)
    for every in (shown, list(measurements.host.values())):
        if every and left > 0:
            yield metric_table(every[:left], final=True)
            left -= len(every) + 2
        if every is shown:
            yield metric_notes(of_benchmark)
    yield _run_facts(current_rows(measurements.run.values())[: max(0, left)])


def _run_facts(every: Sequence[Series]) -> Table:
    """Return a table of the metrics that have one value for the whole run, such as its wall time."""
    rows = [[Phrase(each.name), quantity_phrase(each.last, each.units, floor=each.floor)] for each in every]
    return Table([Column(""), Column("", number=False)], rows)
