"""Leads the extractor through the runs of a job with `[repeat]`: from one run's beginning to its end, and over what lies between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from bai_agent.benchmark.state import is_alive
from bai_agent.job.repeats import RepeatedRun, RepeatsFile
from bai_agent.job.run_directory import RunDir, boot_id
from bai_agent.metrics.follow import Block
from bai_agent.metrics.logs import Log, Logs

EMIT = "emit"


class RepeatGuide:
    """Sets where each log is read up to, so that no block holds bytes of two runs, or of none."""

    def __init__(self, rundir: RunDir, *, extract: Callable[[Log, Sequence[Block]], None]) -> None:
        """extract: takes the blocks of a log in which the last line of a run is."""
        self._file = RepeatsFile(rundir.repeats)
        self._extract = extract
        self._runs: list[RepeatedRun] = []
        self._boot_id = boot_id()
        self._generations: dict[str, int] = {}
        self._told = 0
        """How many runs were reported by `finished`."""

    def lead(self, logs: Sequence[Log], *, exited: bool) -> bool:
        """Bring the ends of `logs` up to date; return whether one of them moved on to its next run.

        exited: exit.json was there before, so nothing is added to any file.
        """
        # In this order: what is there before a look that finds a run alive was printed by that run.
        sizes = [each.follower.size() for each in logs]
        self._runs = self._file.look().measured
        moved = False
        for log, size in zip(logs, sizes, strict=True):
            while self._lead(log, size, exited=exited):
                moved = True
        return moved

    def end_processes(self, logs: Logs) -> bool:
        """Note where the logs of processes end whose run has ended; return whether one was read to its end meanwhile."""
        ended = {run.repeat for run in self._runs[self._told :] if run.ended is not None}
        if not ended:
            return False
        logs.look(at_the_end=True)
        moved = False
        for log in logs.in_turn():
            if log.process is None or log.repeat not in ended:
                continue
            follower = log.follower
            if follower.end is None:
                # It was killed together with what would have noted its end.
                follower.end = follower.size()
            if follower.position >= follower.last and follower.place.offset < follower.position:
                self._extract(log, follower.finish())
                moved = True
        return moved

    def finished(self, logs: Logs, emit: Log) -> list[RepeatedRun]:
        """Return the runs, each once, that have ended and of which all has been read."""
        found = []
        while self._told < len(self._runs):
            run = self._runs[self._told]
            every = chain(logs.in_turn(), [emit])
            if run.ended is None or not all(self._is_done(each, run) for each in every):
                break
            found.append(run)
            self._told += 1
        return found

    def _lead(self, log: Log, size: int, *, exited: bool) -> bool:
        """Do so for one log; return whether it moved on."""
        follower = log.follower
        if follower.place.generation != self._generations.get(log.src, 0):
            self._generations[log.src] = follower.place.generation
            follower.stay_in(self._truncating_run(log))
        at = follower.place.repeat
        if at >= 0:
            run = self._runs[at] if at < len(self._runs) else None
            end = None if run is None else _end_of(run, log)
            if end is None:
                if exited:
                    # The shim was killed in this run: all that follows is of it.
                    end = size
                elif run is not None and run.boot_id == self._boot_id and is_alive(run.pid, run.start):
                    follower.end = max(size, follower.position)
                    return False
                else:
                    # Its end is about to be known; what processes print that it left behind is not a metric.
                    follower.end = follower.position if follower.end is None else follower.end
                    return False
            follower.end = end
            if follower.position < follower.last:
                return False
            self._extract(log, follower.finish())
        if at + 1 >= len(self._runs):
            follower.end = follower.position
            return False
        follower.skip(_begin_of(self._runs[at + 1], log), repeat=at + 1)
        log.reset_sections()
        follower.end = follower.position
        return True

    def _truncating_run(self, log: Log) -> int:
        """Return the run that truncated the log which is now read from its start: in that one it became shorter."""
        at = max(0, log.follower.place.repeat)
        for run in self._runs[at:]:
            end = _end_of(run, log)
            if run.repeat is not None and (end is None or end < _begin_of(run, log)):
                return run.repeat
        return at

    def _is_done(self, log: Log, run: RepeatedRun) -> bool:
        assert run.repeat is not None
        follower = log.follower
        if log.process is not None:
            return log.repeat != run.repeat or (
                follower.end is not None
                and follower.position >= follower.last
                and follower.place.offset == follower.position
            )
        if follower.place.repeat != run.repeat:
            return follower.place.repeat > run.repeat
        return follower.position >= follower.last and follower.place.offset == follower.position


def _begin_of(run: RepeatedRun, log: Log) -> int:
    return run.emit_bytes if log.src == EMIT else run.output_bytes


def _end_of(run: RepeatedRun, log: Log) -> int | None:
    """Return where it ended; None while that is not known."""
    if run.ended is None:
        return None
    end = run.ended.get("emit_bytes" if log.src == EMIT else "output_bytes")
    # None where its process could not be ended at all.
    return end if isinstance(end, int) else None
