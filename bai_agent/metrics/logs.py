"""The logs that metrics are taken from: what the benchmark printed, or each of its processes where those are told apart."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bai_agent.job.descriptor import Job
from bai_agent.job.process_ends import ProcessLog, open_regular, process_end, process_logs
from bai_agent.job.run_directory import RunDir
from bai_agent.metrics.context import ContextMarkers, LogContext, State
from bai_agent.metrics.follow import Block, Follower, LogPosition, open_log
from bai_agent.metrics.patterns import wants_last_states
from bai_agent.metrics.records import Key
from bai_agent.metrics.repaint import RepaintFollower
from bai_agent.metrics.sections import SectionMarkers, Sections

OUTPUT = "log"
"""The source of what is found in output.log; of what the process with rank 3 printed it is "log/3", in run 0 of several "log/3/0"."""

_MOST_OPEN = 256
"""Files that stay open between two reads."""
_SETTLED_NS = 200_000_000
"""A folder that changed so recently may change again at what its file system takes for the same time."""
_RANKS = 1_000_000
"""Ranks have at most six digits."""


@dataclass(eq=False)
class Log:
    """One log, and how far it has been read."""

    src: str
    """As its records name it."""
    follower: Follower
    late: tuple[int, int]
    """The generation, and its size at our start, where another process of ours had been at it before."""
    process: ProcessLog | None = None
    sections: Sections | None = None
    """Which sections of it are open; None where no metric asks for that."""

    context: LogContext | None = None
    """What its lines said about later ones; None where no metric asks for that."""

    @property
    def name(self) -> str:
        """What people know the file as, in the run directory."""
        return "output.log" if self.process is None else f"processes/{self.process.path.name}"

    @property
    def number(self) -> int | None:
        """What stands for it where there is room for a number alone; None: output.log."""
        if self.process is None:
            return None
        run = self.process.repeat
        return self.process.rank + (0 if run is None else (run + 1) * _RANKS)

    @property
    def repeat(self) -> int | None:
        """The run of a job with `[repeat]` that is being read."""
        if self.process is not None:
            return self.process.repeat
        at = self.follower.place.repeat
        return at if at >= 0 else None

    @property
    def done(self) -> bool:
        """Whether nothing more of it is to be read: the process that wrote it has ended. The end of output.log moves on."""
        end = self.follower.end
        return self.process is not None and end is not None and self.follower.position >= end

    def reset_sections(self) -> None:
        """End all sections and forget all context: what follows is another log in the same file, or another run's part of it."""
        if self.sections is not None:
            self.sections.reset()
        if self.context is not None:
            self.context.reset()

    def is_late(self, block: Block) -> bool:
        """Return whether the block was there before we were: it is read later than it was printed."""
        generation, size = self.late
        return block.generation == generation and block.offset < size


class Logs:
    """All logs of a run: output.log, or those of its processes, as they appear.

    places: how far each was read, and `opened` which sections were open there, `known` what was known there. last: the last record of each. again: whether another
    process of ours had begun.
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
        """The follower of output.log, which processes that the benchmark left behind may print into."""
        return None if self.by_process else self._logs[OUTPUT].follower

    @property
    def places(self) -> dict[str, LogPosition]:
        """How far each has been read, by source."""
        return {each.src: each.follower.place for each in self}

    @property
    def opened(self) -> dict[str, list[int]]:
        """Which sections are open at those places, by source; of jobs without any, nothing."""
        return {each.src: sorted(each.sections.opened) for each in self if each.sections is not None}

    @property
    def known(self) -> dict[str, State]:
        """What the lines up to those places said about later ones, by source; of jobs without any context, nothing."""
        return {each.src: each.context.state for each in self if each.context is not None}

    @property
    def behind(self) -> bool:
        return any(each.follower.behind for each in self)

    def look(self, *, again: bool = False, at_the_end: bool = False) -> None:
        """Find the logs of new processes, and where those of processes end that have ended.

        What a process left behind prints after its end is no metric.
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
            src = source_of(found.rank, found.repeat)
            if src not in self._logs:
                self._add(src, (found.path,), again=again, process=found)
            follower = self._logs[src].follower
            if follower.end is None and (ended := process_end(found)) is not None:
                follower.end = ended.output_bytes if follower.size() >= ended.output_bytes else None
            if len(self._logs) > _MOST_OPEN:
                follower.close()

    def in_turn(self) -> Iterator[Log]:
        """Yield each; before the next one it is closed if it is done, or beyond as many as may stay open."""
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
        if last.gen > place.generation:
            place = LogPosition(generation=last.gen)
        seen = last.off + 1 if last.gen == place.generation else 0
        opener = open_log if process is None else open_regular
        follower = self._kind(paths, place=place, seen=seen, opener=opener)
        late = place.generation, follower.size() if again else 0
        sections = None
        if self._markers:
            sections = Sections(self._markers, self._opened.get(src) if place is known else None)
        context = None
        if self._context:
            context = LogContext(self._context, self._known.get(src) if place is known else None)
        self._logs[src] = Log(src, follower, late, process, sections, context)


def source_of(rank: int, repeat: int | None = None) -> str:
    """Return the source of what the process with this rank printed, in one run of several where `repeat` says so."""
    return f"{OUTPUT}/{rank}" if repeat is None else f"{OUTPUT}/{rank}/{repeat}"


def log_of_number(number: int) -> tuple[int, int | None]:
    """Return the rank and the run of the log that has this number."""
    run, rank = divmod(number, _RANKS)
    return rank, run - 1 if run else None
