"""Tells the extractor which part of a log belongs to which run of a `[repeat]` job, or to which generation of
a job with restarts. Output between runs or generations is skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

from bai_agent.benchmark.state import is_alive, read_exit, read_started
from bai_agent.job.record_types import RunEnd
from bai_agent.job.repeats import RepeatedRun, RepeatedRuns, RepeatsFile
from bai_agent.job.run_directory import RunDir, boot_id
from bai_agent.metrics.follow import LineBlock
from bai_agent.metrics.logs import Log, Logs


class GenerationRuns:
    """All past generations of a job, each represented as a run of a series. The data of a generation are read
    from the files of its shim."""

    def __init__(self, rundir: RunDir) -> None:
        self._rundir = rundir
        self._known = RepeatedRuns()

    def look(self) -> RepeatedRuns:
        """Read the shims' current files, and return the generations."""
        runs = self._known.runs
        while True:
            if not runs or runs[-1].ended is not None:
                number = self._next_number()
                begun = self._begun(number) if number is not None else None
                if begun is None:
                    break
                self._end_before(begun)
                runs += (self._left_out(each, begun) for each in range(len(runs), begun.run))
                runs.append(begun)
            newest = runs[-1]
            rundir = self._rundir.of_generation(newest.run)
            newest.ended = read_exit(rundir) if rundir.exit.exists() else None
            if newest.ended is None:
                break
        return self._known

    def _next_number(self) -> int | None:
        """Return the next generation that has begun on this node; None if no further generation has begun.
        This node may have skipped some generations, because the node was not a member of them or did not
        launch them."""
        following = len(self._known.runs)
        decided = sorted(each for each in self._rundir.generations() if each >= following)
        for number in decided if following else [0, *decided]:
            rundir = self._rundir.of_generation(number)
            if rundir.started.exists() or rundir.exit.exists():
                return number
        return None

    def _left_out(self, number: int, following: RepeatedRun) -> RepeatedRun:
        """Return a generation that did not run on this node. following: the next generation that ran on this
        node."""
        ended = RunEnd(output_bytes=following.output_bytes, emit_bytes=following.emit_bytes)
        return replace(following, run=number, repeat=number, pid=0, start=0, ended=ended)

    def _begun(self, number: int) -> RepeatedRun | None:
        """Return the generation `number`; None if that generation has not begun."""
        rundir = self._rundir.of_generation(number)
        started = read_started(rundir) if rundir.started.exists() else None
        if started is not None:
            return RepeatedRun(
                run=number,
                repeat=number,
                output_bytes=started.output_bytes,
                emit_bytes=started.emit_bytes,
                pid=started.pid,
                start=started.start,
                boot_id=started.boot_id,
                time=started.time,
            )
        if not rundir.exit.exists():
            return None
        # The benchmark deleted started.json, so all output after the previous generation belongs to this
        # generation.
        before = self._known.runs[-1].ended if self._known.runs else None
        return RepeatedRun(
            run=number,
            repeat=number,
            output_bytes=(before.output_bytes if before is not None else None) or 0,
            emit_bytes=(before.emit_bytes if before is not None else None) or 0,
            pid=0,
            start=0,
            boot_id="",
            time=0,
        )

    def _end_before(self, begun: RepeatedRun) -> None:
        """If the end of the previous generation was not recorded, set it to the beginning of the generation
        `begun`."""
        if not self._known.runs:
            return
        before = self._known.runs[-1]
        ended = before.ended or RunEnd(lost=True)
        if ended.output_bytes is None:
            before.ended = replace(ended, output_bytes=begun.output_bytes, emit_bytes=begun.emit_bytes)


EMIT = "emit"


class RepeatGuide:
    """Sets the end up to which each log is read, so that every block belongs to exactly one run."""

    def __init__(
        self, runs: RepeatsFile | GenerationRuns, *, extract: Callable[[Log, Sequence[LineBlock]], None]
    ) -> None:
        """extract: function that is called with the last blocks of a run in each log."""
        self._file = runs
        self._extract = extract
        self._runs: list[RepeatedRun] = []
        self._boot_id = boot_id()
        self._truncations: dict[str, int] = {}
        self._told = 0
        """Number of runs reported by `finished`."""

    def lead(self, logs: Sequence[Log], *, exited: bool) -> bool:
        """Update the offsets up to which `logs` are read. Return whether a log moved on to its next run.

        exited: whether exit.json existed before this call. The logs do not grow after exit.json was written.
        """
        # The logs' sizes are read before the check. If the check finds that a run is alive, the bytes that
        # existed before were printed by this run.
        sizes = [each.follower.size() for each in logs]
        self._runs = self._file.look().measured
        moved = False
        for log, size in zip(logs, sizes, strict=True):
            while self._lead(log, size, exited=exited):
                moved = True
        return moved

    def end_processes(self, logs: Logs) -> bool:
        """For runs that have ended, set the offsets up to which the logs of processes are read. Return
        whether a log was read to its end."""
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
                # The end is not recorded, because the process that would record it was also killed.
                follower.end = follower.size()
            if follower.position >= follower.last and follower.place.offset < follower.position:
                self._extract(log, follower.finish())
                moved = True
        return moved

    def finished(self, logs: Logs, emit: Log) -> list[RepeatedRun]:
        """Return the runs that have ended and whose output was read completely. Each run is returned only
        once."""
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
        """Update the offset up to which one log is read. Return whether the log moved on to its next run."""
        follower = log.follower
        if follower.place.truncations != self._truncations.get(log.src, 0):
            self._truncations[log.src] = follower.place.truncations
            follower.stay_in(self._truncating_run(log))
        at = follower.place.repeat
        if at >= 0:
            run = self._runs[at] if at < len(self._runs) else None
            end = None if run is None else _end_of(run, log)
            if end is None:
                if exited:
                    # The shim was killed during this run, so the rest of the file belongs to this run.
                    end = size
                elif run is not None and run.boot_id == self._boot_id and is_alive(run.pid, run.start):
                    follower.end = max(size, follower.position)
                    return False
                else:
                    # The run has ended, and exit.json will soon contain the end of its output. Later output is
                    # from processes that outlive the run.
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
        """Return the run that truncated the log. A run that truncated the log has an end offset before its
        start offset."""
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
    """Return the offset at which a run ends in one log. Return None as long as the offset is unknown."""
    if run.ended is None:
        return None
    # The run's end is None if the run's process could not be ended.
    return run.ended.emit_bytes if log.src == EMIT else run.ended.output_bytes
