"""Turns blocks of lines from a log or from `emit` into records of metrics, and counts the values and the
problems found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import pairwise

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.metric_tables import Metric
from bai_agent.metrics.emit import begun_run, parse_emitted
from bai_agent.metrics.follow import LineBlock
from bai_agent.metrics.logs import Log
from bai_agent.metrics.records import BlockOrigin, RecordFile, Value
from bai_agent.metrics.search.dense import Columns
from bai_agent.metrics.search.extract import Extraction
from bai_agent.metrics.search.patterns import compile_patterns, line_counter
from bai_agent.metrics.search.reading import Doubt
from bai_agent.metrics.search_limit import SearchLimit
from bai_agent.metrics.tally import Tally, doubt_warning, line_around, not_a_number_warning
from bai_agent.metrics.watchdog import SwitchOff, off_in

log = logging.getLogger(__name__)

_NUMBER_SHOWN = 80
_QUOTABLE = 64 * 1024
"""Number of a line's first characters that are searched for secrets before the line's beginning is quoted."""


class BlockExtractor:
    """Adds the values in blocks of lines to `records`, and the numbers of values and problems to `tally`."""

    def __init__(
        self,
        job: Job,
        records: RecordFile,
        tally: Tally,
        *,
        limit: SearchLimit,
        switched_off: list[SwitchOff],
        fast: bool,
        quote: Callable[[str], str],
        now: Callable[[], int],
    ) -> None:
        """quote: function that removes secrets from quoted output."""
        self._job, self._records, self._tally = job, records, tally
        self._limit = limit
        self._switched_off = switched_off
        self._fast = fast
        self._quote = quote
        self._now = now
        self._count_lines = line_counter(fast=fast)
        self._extraction: tuple[frozenset[int], Extraction] | None = None
        self.runs_elsewhere = False
        """Whether another node starts the runs of a `[repeat]` job. If true, emitted lines name their run."""

    def extract(self, source: Log, block: LineBlock) -> None:
        """Extract the values in a block of a log."""
        timestamp = self._now()
        self._limit.truncations = block.truncations
        self._limit.log = source.number
        origin = BlockOrigin(
            timestamp,
            source.src,
            labels="" if source.process is None else f'"process_rank":"{source.process.rank}"',
            truncations=block.truncations,
            late=source.is_late(block),
            repeat=source.repeat,
        )
        for part, without in self._parts(source, block):
            closed = source.sections.read(part.data, part.offset, without=without) if source.sections else ()
            context = source.context
            changes = context.read(part.data, part.offset, without=without) if context else ()
            extraction = self._extraction_without(without)
            for each in extraction.find_many(part.data, part.offset, part.repainted, closed):
                if isinstance(each, Columns) and context is None:
                    self._tally.count_columns(each)
                    self._records.add_columns(each, origin)
                    continue
                found = each.found() if isinstance(each, Columns) else each
                if context is not None:
                    found = context.apply(found, changes, self)
                self._tally.count_found(found)
                self._records.add_found(found, origin)
        self._tally.lines += self._count_lines(block.data)

    def take_emitted(self, source: Log, block: LineBlock) -> None:
        """Extract the values in a block of lines that the benchmark emitted."""
        timestamp = self._now()
        late = source.is_late(block)
        offset = block.offset
        for line in block.data.split(b"\n"):
            run = begun_run(line) if self._job.repeat is not None else None
            if run is not None:
                if self.runs_elsewhere:
                    source.follower.stay_in(run)
            elif line.strip() and not (self.runs_elsewhere and source.repeat is None):
                self._records.add_values(
                    "emit",
                    offset,
                    self._emitted_values(line),
                    truncations=block.truncations,
                    timestamp=timestamp,
                    late=late,
                    repeat=source.repeat,
                )
            offset += len(line) + 1

    def _emitted_values(self, line: bytes) -> list[Value]:
        emitted = parse_emitted(line)
        values = [Value(*each) for each in emitted.values]
        for value in values:
            self._tally.count_named(value.name)
        for name, text in emitted.not_numbers:
            self._count_not_a_number(name, text)
        if emitted.bad:
            self._tally.emit_bad_lines += 1
            if self._tally.emit_bad_lines == 1:
                shown = self._quoted(line[:_QUOTABLE].decode("utf-8", "replace"))
                log.warning("emit: not a JSON object of names and numbers: %.200r", shown)
        return values

    def not_a_number(self, index: int, text: str) -> None:
        self._count_not_a_number(self._job.metrics[index].name, text, metric=self._job.metrics[index])

    def doubtful(self, index: int, doubt: Doubt, taken: str, whole: str, line: str) -> None:
        if self._tally.is_new_doubt(index, doubt):
            shown = line_around(self._quoted(line), whole)
            example = (taken, whole, shown) if whole[:_NUMBER_SHOWN] in shown else ("***", "***", shown)
            log.warning("%s", doubt_warning(self._job.metrics[index], doubt, 1, example))
            self._tally.note_doubt(index, doubt, example)
        self._tally.count_doubt(index, doubt)

    def _parts(self, source: Log, block: LineBlock) -> Iterator[tuple[LineBlock, frozenset[int]]]:
        """Split the block at each line at which a pattern becomes disabled. Yield each part of the block with the metrics that
        are disabled in this part."""
        end = block.offset + len(block.data)
        switched_off = off_in(source.src, self._switched_off) if self._switched_off else []
        cuts = {each.off for each in switched_off if each.truncations == block.truncations}
        starts = [block.offset, *sorted(off for off in cuts if block.offset < off < end), end]
        for start, stop in pairwise(starts):
            without = frozenset(
                each.i for each in switched_off if (each.truncations, each.off) <= (block.truncations, start)
            )
            data = block.data[start - block.offset : stop - block.offset]
            yield LineBlock(block.truncations, start, data, block.repainted), without

    def _extraction_without(self, without: frozenset[int]) -> Extraction:
        if self._extraction is None or self._extraction[0] != without:
            patterns = compile_patterns(self._job.metrics, without=without, fast=self._fast)
            self._extraction = without, Extraction(patterns, findings=self, guard=self._limit)
        return self._extraction[1]

    def _count_not_a_number(self, name: str, text: str, *, metric: Metric | None = None) -> None:
        if name not in self._tally.not_numbers:
            text = self._quoted(text)
        if self._tally.count_not_a_number(name, text):
            log.warning("%s", not_a_number_warning(name, 1, text, metric=metric))

    def _quoted(self, text: str) -> str:
        """Return `text` redacted and truncated, so that it can be quoted. Secrets are removed first, because a
        truncated secret would not be recognised."""
        return self._quote(text[:_QUOTABLE])
