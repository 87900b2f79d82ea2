"""The logs from which metrics are taken. The logs are the benchmark's output, or the output of each process
if processes have separate logs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from bai_agent.job.descriptor import Job
from bai_agent.job.run_directory import RunDir
from bai_agent.light_dataclass import dataclass
from bai_agent.metrics.context import ContextMarkers, LogContext, State
from bai_agent.metrics.follow import Follower, LineBlock, LogPosition, open_log
from bai_agent.metrics.records import Key
from bai_agent.metrics.repaint import RepaintFollower
from bai_agent.metrics.search.patterns import wants_last_states
from bai_agent.metrics.sections import SectionMarkers, Sections
from bai_agent.strategy.process_ends import ProcessLog, open_regular, process_end, process_logs

OUTPUT = "log"
"""Source of values from output.log.

For the log of the process with rank 3, the source is "log/3". In run 0 of several runs, the source is
"log/3/0". After the second restart, the source is "log/3/g2".
"""

_MOST_OPEN = 256
"""Maximum number of logs that stay open between two reads."""
_SETTLED_NS = 200_000_000
"""A folder whose time stamp is younger than this may change again without a new time stamp (ns)."""
_RANKS = _RUNS = 1_000_000
"""Ranks and runs have at most six digits."""


@dataclass(eq=False)
class Log:
    """One log, and the position up to which the extractor has read it."""

    src: str
    """Name of the source in the records of this log."""
    follower: Follower
    late: tuple[int, int]
    """How often the log had been truncated, and the log's size, when this process started. Only used if an earlier extractor had
    already read the log."""
    process: ProcessLog | None = None
    sections: Sections | None = None
    """Open sections. None if no metric has sections."""

    context: LogContext | None = None
    """Context from the log's lines. None if no metric has a context."""
    restarts: bool = False
    """Whether the job's benchmark may be restarted. If true, the job's generations are handled like the runs
    of `[repeat]`."""

    @property
    def name(self) -> str:
        """Name of the log's file in the run directory, for messages."""
        return "output.log" if self.process is None else f"processes/{self.process.path.name}"

    @property
    def number(self) -> int | None:
        """Number that identifies the log of a process. None for output.log."""
        if self.process is None:
            return None
        run, generation = self.process.repeat, self.process.generation
        part = _RUNS + generation if generation else 0 if run is None else run + 1
        return self.process.rank + part * _RANKS

    @property
    def repeat(self) -> int | None:
        """Run of a `[repeat]` job, or generation of a job with restarts, whose output is being read."""
        if self.process is not None:
            return self.process.generation if self.restarts else self.process.repeat
        at = self.follower.place.repeat
        return at if at >= 0 else None

    @property
    def done(self) -> bool:
        """Whether the log was read completely and its process has ended. Always false for output.log, because
        output.log can grow at any time."""
        end = self.follower.end
        return self.process is not None and end is not None and self.follower.position >= end

    def reset_sections(self) -> None:
        """Close all sections and forget the context. Called when the log was truncated, or when the output of
        another run begins in the same log."""
        if self.sections is not None:
            self.sections.reset()
        if self.context is not None:
            self.context.reset()

    def is_late(self, block: LineBlock) -> bool:
        """Return whether a block was printed before this extractor process started. The values of such a block are older than the
        time at which the block is read."""
        truncations, size = self.late
        return block.truncations == truncations and block.offset < size


class Logs:
    """All logs of a run: either output.log, or the logs of the run's processes, which are added as they
    appear.

    places, opened, known: position, open sections and context of each log. last: the last record of each log.
    again: whether an earlier extractor process of this run had already started.
    """

    def __init__(
        self,
        rundir: RunDir,
        job: Job,
        *,
        places: Mapping[str, LogPosition],
        last: Mapping[str, Key],
        again: bool,
        markers: SectionMarkers | None = None,
        opened: Mapping[str, Collection[int]] = MappingProxyType({}),
        context: ContextMarkers | None = None,
        known: Mapping[str, State] = MappingProxyType({}),
    ) -> None:
        self._folder = rundir.processes
        self._kind = RepaintFollower if wants_last_states(job.metrics) else Follower
        self._places, self._last = places, last
        self._markers, self._opened = markers, opened
        self._context, self._known = context, known
        self._seen = self._looked = 0
        self._restarts = job.has_generations
        self.by_process = job.strategy.process_logs
        """Whether each process has a log of its own."""
        self._logs: dict[str, Log] = {}
        if self.by_process:
            self.look(again=again)
        else:
            self._add(OUTPUT, (rundir.kept_output, rundir.output), again=again)

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

    @property
    def shared(self) -> Follower | None:
        """Follower of output.log. Processes that outlive the benchmark may still print into output.log."""
        return None if self.by_process else self._logs[OUTPUT].follower

    @property
    def places(self) -> dict[str, LogPosition]:
        """Position in each log, by source."""
        return {each.src: each.follower.place for each in self}

    @property
    def opened(self) -> dict[str, list[int]]:
        """Open sections at the positions of the logs, by source; empty if the job has no sections."""
        return {each.src: sorted(each.sections.opened) for each in self if each.sections is not None}

    @property
    def known(self) -> dict[str, State]:
        """Context at the positions of the logs, by source; empty if the job has no context."""
        return {each.src: each.context.state for each in self if each.context is not None}

    @property
    def behind(self) -> bool:
        return any(each.follower.behind for each in self)

    def look(self, *, again: bool = False, at_the_end: bool = False) -> None:
        """Find the logs of new processes, and the ends of processes that have ended.

        Output after the end of a process is not searched for metrics.
        """
        if not self.by_process:
            return
        try:
            changed = self._folder.stat().st_mtime_ns
        except OSError:
            return
        if changed == self._seen and self._looked - changed > _SETTLED_NS and not at_the_end:
            return
        self._seen, self._looked = changed, time.time_ns()
        for found in process_logs(self._folder):
            if found.warmup:
                continue
            src = source_of(found)
            if src not in self._logs:
                self._add(src, (found.path,), again=again, process=found)
            follower = self._logs[src].follower
            if follower.end is None and (ended := process_end(found)) is not None:
                follower.end = ended.output_bytes if follower.size() >= ended.output_bytes else None
            if len(self._logs) > _MOST_OPEN:
                follower.close()

    def in_turn(self) -> Iterator[Log]:
        """Yield each log. When the caller asks for the next log, the current log is closed if it is done or
        if too many logs are open."""
        for number, each in enumerate(self):
            yield each
            if number >= _MOST_OPEN or each.done:
                each.follower.close()

    def close(self) -> None:
        for each in self:
            each.follower.close()

    def _add(
        self, src: str, paths: tuple[Path, ...], *, again: bool, process: ProcessLog | None = None
    ) -> None:
        last = self._last.get(src, Key(0, -1, 0, 0))
        place = known = self._places.get(src, LogPosition())
        if last.truncations > place.truncations:
            place = LogPosition(truncations=last.truncations)
        seen = last.off + 1 if last.truncations == place.truncations else 0
        opener = open_log if process is None else open_regular
        follower = self._kind(paths, place=place, seen=seen, opener=opener)
        late = place.truncations, follower.size() if again else 0
        sections = None
        if self._markers:
            sections = Sections(self._markers, self._opened.get(src) if place is known else None)
        context = None
        if self._context:
            context = LogContext(self._context, self._known.get(src) if place is known else None)
        self._logs[src] = Log(src, follower, late, process, sections, context, self._restarts)


def source_of(log: ProcessLog) -> str:
    """Return the source of a process's log."""
    return _source(log.rank, run=log.repeat, generation=log.generation)


def source_of_number(number: int) -> str:
    """Return the source of the log with this number."""
    part, rank = divmod(number, _RANKS)
    if part > _RUNS:
        return _source(rank, generation=part - _RUNS)
    return _source(rank, run=part - 1 if part else None)


def _source(rank: int, *, run: int | None = None, generation: int = 0) -> str:
    if generation:
        return f"{OUTPUT}/{rank}/g{generation}"
    return f"{OUTPUT}/{rank}" if run is None else f"{OUTPUT}/{rank}/{run}"
