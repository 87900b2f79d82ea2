"""The extractor's work: from the benchmark's files to records, until the benchmark has exited and all is read."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING

from bai_agent.backoff import Backoff
from bai_agent.benchmark.state import StartedBenchmark
from bai_agent.job.descriptor import Job, Metric
from bai_agent.job.reserved_space import FULL
from bai_agent.job.run_directory import RunDir, now_ms, read_json, write_json
from bai_agent.metrics.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from bai_agent.metrics.disk import wait_for_room
from bai_agent.metrics.emit import parse_emitted
from bai_agent.metrics.extract import Extraction
from bai_agent.metrics.facts import run_facts
from bai_agent.metrics.follow import Block, Follower, LogPosition
from bai_agent.metrics.patterns import compile_patterns, line_counter, prefilter_available, wants_last_states
from bai_agent.metrics.reading import Doubt
from bai_agent.metrics.records import Key, RecordFile, Value
from bai_agent.metrics.repaint import RepaintFollower
from bai_agent.metrics.search_limit import LIMIT_SECONDS, SearchLimit
from bai_agent.metrics.tally import Tally, doubt_warning, line_around, not_a_number_warning, summary
from bai_agent.metrics.watchdog import open_mark, read_switched_off

if TYPE_CHECKING:
    from bai_agent.metrics.host import HostSampler

log = logging.getLogger(__name__)

_SHORTEST_PAUSE = 0.005
_LONGEST_PAUSE = 0.04
_CHECKPOINT_SECONDS = 1.0
_NUMBER_SHOWN = 80
_QUOTABLE = 64 * 1024
"""Characters of a line that are looked through for secrets before its beginning is quoted."""


class Extractor:
    """One process's share of the extraction of one run. It goes on where the last process was killed."""

    def __init__(
        self,
        rundir: RunDir,
        job: Job,
        *,
        careful: bool = False,
        quote: Callable[[str], str] = str,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], int] = now_ms,
    ) -> None:
        self._rundir = rundir
        self._job = job
        self._quote = quote
        """Makes of what the benchmark printed what may be shown of it."""
        self._sleep = sleep
        self._clock = clock
        self._now = now
        start = read_checkpoint(
            rundir.extractor_offset, metrics=len(job.metrics), metrics_file=rundir.metrics
        ) or Checkpoint(
            size=0,
            seq=0,
            last={},
            log=LogPosition(),
            emit=LogPosition(),
            tally=Tally(found=[0] * len(job.metrics)),
        )
        self._again = rundir.extractor_offset.exists()
        self._records = RecordFile(
            rundir.metrics, job.metrics, size=start.size, seq=start.seq, last=start.last, sleep=sleep
        )
        self._tally = start.tally
        last = self._records.last.get("log", Key(0, -1, 0, 0))
        place = start.log if last.gen <= start.log.generation else LogPosition(generation=last.gen)
        self._log = (RepaintFollower if wants_last_states(job.metrics) else Follower)(
            (rundir.kept_output, rundir.output),
            place=place,
            seen=last.off + 1 if last.gen == place.generation else 0,
        )
        self._emit = Follower((rundir.emit,), place=start.emit, carriage_return=False)
        self._late = {
            follower: (follower.place.generation, follower.size() if self._again else 0)
            for follower in (self._log, self._emit)
        }
        sampled = self._records.last.get("host")
        self._samples = sampled.off + 1 if sampled else 0
        self._host = _host_sampler(rundir) if job.host_metrics.enabled else None
        self._next_sample = self._next_checkpoint = clock()
        self._fast = prefilter_available()
        self._count_lines = line_counter(fast=self._fast)
        self._switched_off = read_switched_off(rundir.extractor_disabled)
        self._limit = SearchLimit(open_mark(rundir.extractor_search) if careful else None)
        self._written: tuple[int, LogPosition, LogPosition] | None = None
        self._extraction: tuple[frozenset[int], Extraction] | None = None
        self._leaves_rest = False
        self._benchmark = StartedBenchmark(rundir)
        self._knows_end = False

    def leave_rest(self) -> None:
        """Come to the end without what is not extracted yet; `extracted.json` says how much that is."""
        self._leaves_rest = True

    def run(self) -> None:
        """Extract until `exit.json` is there and everything is read; then write `extracted.json`."""
        with closing(self._log), closing(self._emit):
            self._follow()
            self._finish()

    def _follow(self) -> None:
        self._checkpoint()
        rest = Backoff(_SHORTEST_PAUSE, _LONGEST_PAUSE, factor=1.5)
        while not self._leaves_rest:
            # Looked at before the reads: what was written before the exit is then surely read after it.
            exited = self._rundir.exit.exists()
            self._leave_to_others(exited=exited)
            new = self._read_log()
            new = self._read_emit() or new
            self._sample_host()
            if self._clock() >= self._next_checkpoint:
                self._checkpoint()
            if new:
                rest.reset()
            elif exited:
                break
            if not (self._log.behind or self._emit.behind):
                self._sleep(0 if exited else rest.next())

    def _leave_to_others(self, *, exited: bool) -> None:
        """Stop the reading where the benchmark ended: what processes print that it left behind is no metric.

        What was there before a look that finds it alive is its own. As soon as it is dead nothing more is read until
        exit.json says where it ended.
        """
        if not exited:
            sizes = self._log.size(), self._emit.size()
            if self._benchmark.alive():
                self._log.end, self._emit.end = sizes
            elif self._log.end is None:
                # An extractor that starts after its death has not seen where it ended: exit.json will say.
                self._log.end, self._emit.end = self._log.position, self._emit.position
        elif not self._knows_end:
            self._knows_end = True
            ended = read_json(self._rundir.exit) or {}
            output, emitted = ended.get("output_bytes"), ended.get("emit_bytes")
            # A file that is shorter by now was truncated by somebody else.
            self._log.end = 0 if output is not None and self._log.size() < output else output
            self._emit.end = emitted

    def not_a_number(self, index: int, text: str) -> None:
        self._count_not_a_number(self._job.metrics[index].name, text, metric=self._job.metrics[index])

    def doubtful(self, index: int, doubt: Doubt, taken: str, whole: str, line: str) -> None:
        if self._tally.is_new_doubt(index, doubt):
            shown = line_around(self._quoted(line), whole)
            example = (taken, whole, shown) if whole[:_NUMBER_SHOWN] in shown else ("***", "***", shown)
            log.warning("%s", doubt_warning(self._job.metrics[index], doubt, 1, example))
            self._tally.note_doubt(index, doubt, example)
        self._tally.count_doubt(index, doubt)

    def _read_log(self) -> bool:
        generation = self._log.place.generation
        new, blocks = self._log.read()
        if self._log.place.generation != generation:
            log.warning("%s was truncated; it is read from its start", self._rundir.output)
            wait_for_room(self._write_checkpoint, path=self._rundir.extractor_offset, sleep=self._sleep)
        for block in blocks:
            self._extract(block)
        return new

    def _read_emit(self) -> bool:
        new, blocks = self._emit.read()
        for block in blocks:
            self._take_emitted(block)
        return new

    def _finish(self) -> None:
        remaining = 0
        if self._leaves_rest:
            # Between two blocks: what is held of a line that goes on counts as not searched.
            remaining = sum(max(0, each.last - each.place.offset) for each in (self._log, self._emit))
        else:
            for block in self._log.finish():
                self._extract(block)
            for block in self._emit.finish():
                self._take_emitted(block)
        exited = read_json(self._rundir.exit) or {}
        self._records.add_values("run", 0, run_facts(exited), timestamp=self._now())
        self._records.close()
        place = self._log.place
        content = summary(
            self._tally,
            self._job.metrics,
            records=self._records.seq,
            log=place,
            log_bytes=place.former + (place.offset if self._leaves_rest else self._log.position),
            remaining_bytes=remaining,
            warnings=self._warnings(remaining),
        )
        wait_for_room(
            lambda: write_json(self._rundir.extracted, content),
            path=self._rundir.extracted,
            sleep=self._sleep,
        )

    def _extract(self, block: Block) -> None:
        timestamp = self._now()
        late = self._is_late(self._log, block)
        self._limit.generation = block.generation
        for part, without in self._parts(block):
            for found in self._extraction_without(without).find(part.data, part.offset, part.repainted):
                self._tally.count_found(found)
                self._records.add_found(found, gen=part.generation, timestamp=timestamp, late=late)
        self._tally.lines += self._count_lines(block.data)

    def _parts(self, block: Block) -> Iterator[tuple[Block, frozenset[int]]]:
        """Yield the parts of the block between two patterns' switching off, and what is off in each."""
        end = block.offset + len(block.data)
        cuts = {each.off for each in self._switched_off if each.gen == block.generation}
        starts = [block.offset, *sorted(off for off in cuts if block.offset < off < end), end]
        for start, stop in pairwise(starts):
            without = frozenset(
                each.i for each in self._switched_off if (each.gen, each.off) <= (block.generation, start)
            )
            data = block.data[start - block.offset : stop - block.offset]
            yield Block(block.generation, start, data, block.repainted), without

    def _extraction_without(self, without: frozenset[int]) -> Extraction:
        if self._extraction is None or self._extraction[0] != without:
            patterns = compile_patterns(self._job.metrics, without=without, fast=self._fast)
            self._extraction = without, Extraction(patterns, findings=self, guard=self._limit)
        return self._extraction[1]

    def _take_emitted(self, block: Block) -> None:
        timestamp = self._now()
        late = self._is_late(self._emit, block)
        offset = block.offset
        for line in block.data.split(b"\n"):
            if line.strip():
                emitted = parse_emitted(line)
                values = [Value(*each) for each in emitted.values]
                for value in values:
                    self._tally.count_emitted(value.name)
                for name, text in emitted.not_numbers:
                    self._count_not_a_number(name, text)
                if emitted.bad:
                    self._tally.emit_bad_lines += 1
                    if self._tally.emit_bad_lines == 1:
                        shown = self._quoted(line[:_QUOTABLE].decode("utf-8", "replace"))
                        log.warning("emit: not a JSON object of names and numbers: %.200r", shown)
                self._records.add_values(
                    "emit", offset, values, gen=block.generation, timestamp=timestamp, late=late
                )
            offset += len(line) + 1

    def _count_not_a_number(self, name: str, text: str, *, metric: Metric | None = None) -> None:
        if name not in self._tally.not_numbers:
            text = self._quoted(text)
        if self._tally.count_not_a_number(name, text):
            log.warning("%s", not_a_number_warning(name, 1, text, metric=metric))

    def _quoted(self, text: str) -> str:
        """Return `text` as an example of it may be shown. Before it is cut: a half of a secret is not known as one."""
        return self._quote(text[:_QUOTABLE])

    def _is_late(self, follower: Follower, block: Block) -> bool:
        generation, size = self._late[follower]
        return block.generation == generation and block.offset < size

    def _sample_host(self) -> None:
        if self._host is None or self._clock() < self._next_sample:
            return
        values = [
            Value(i, name, repr(value), units)
            for i, (name, value, units) in enumerate(self._host.sample())
            if math.isfinite(value)
        ]
        self._records.add_values("host", self._samples, values, timestamp=self._now())
        self._samples += 1
        self._next_sample = self._clock() + self._job.host_metrics.interval.total_seconds()

    def _checkpoint(self) -> None:
        self._next_checkpoint = self._clock() + _CHECKPOINT_SECONDS
        state = (self._records.size, self._log.place, self._emit.place)
        if state == self._written:
            return
        try:
            self._write_checkpoint()
        except OSError as error:
            # Only a hint: without it a restart has more to read again.
            if error.errno not in FULL:
                raise
        else:
            self._written = state

    def _write_checkpoint(self) -> None:
        write_checkpoint(
            self._rundir.extractor_offset,
            Checkpoint(
                size=self._records.size,
                seq=self._records.seq,
                last=self._records.last,
                log=self._log.place,
                emit=self._emit.place,
                tally=self._tally,
            ),
        )

    def _warnings(self, remaining: int) -> list[str]:
        sentences = []
        if remaining:
            sentences.append(
                f"{remaining:,} bytes of the output were not searched for metrics, as there was no time left for that; "
                f"`bai extract {self._job.job.id}` searches all of it"
            )
        if not self._fast:
            sentences.append(
                "ahocorasick_rs is not installed for this Python: every line was searched with every pattern, slowly"
            )
        if self._host is None and self._job.host_metrics.enabled:
            sentences.append("The host was not sampled: psutil is not installed for this Python")
        for each in self._switched_off:
            metric = self._job.metrics[each.i]
            sentences.append(
                f'metric "{metric.name}": its pattern took more than {LIMIT_SECONDS:g} s of CPU time on the line at '
                f"byte {each.off} of output.log and was switched off from there on. Repeated groups within repeats, "
                "such as (a+)+, are the usual cause"
            )
        return sentences


def _host_sampler(rundir: RunDir) -> HostSampler | None:
    # Only here: what it needs is heavy, and many jobs have it switched off.
    try:
        from bai_agent.metrics.host import HostSampler
    except ImportError as error:
        log.warning("the host is not sampled: %s", error)
        return None
    return HostSampler(rundir.path)
