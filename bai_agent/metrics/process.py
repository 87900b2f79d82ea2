"""The extractor's main loop. The extractor turns the benchmark's output into records of metrics until the
benchmark has exited and all output is read."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any

from bai_agent.backoff import Backoff
from bai_agent.benchmark.environment import find_user, scripts_folder, working_folder, workspaces
from bai_agent.benchmark.state import StartedBenchmark, read_exit, read_started
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.metric_tables import Results
from bai_agent.job.record_types import RunEnd
from bai_agent.job.repeats import RepeatedRuns, RepeatsFile, read_repeats
from bai_agent.job.run_directory import FULL, RunDir, now_ms, write_json
from bai_agent.metrics.block_extractor import BlockExtractor
from bai_agent.metrics.checkpoint import ExtractionCheckpoint, read_checkpoint, write_checkpoint
from bai_agent.metrics.context import ContextMarkers
from bai_agent.metrics.follow import Follower, LineBlock, LogPosition
from bai_agent.metrics.headlines import Headlines
from bai_agent.metrics.logs import Log, Logs, source_of
from bai_agent.metrics.records import SOURCES, RecordFile, Value, run_facts, values_of_run, wait_for_room
from bai_agent.metrics.repeated_logs import GenerationRuns, RepeatGuide
from bai_agent.metrics.results.values_journal import FileValues, read_note
from bai_agent.metrics.search.patterns import prefilter_available
from bai_agent.metrics.search_limit import SearchLimit
from bai_agent.metrics.sections import SectionMarkers
from bai_agent.metrics.tally import Tally, summary
from bai_agent.metrics.watchdog import open_mark, read_switched_off, switch_off_warnings
from bai_agent.shim.proc import own_usage
from bai_agent.strategy.process_ends import process_logs, runs_of_processes

if TYPE_CHECKING:
    from bai_agent.machine.host_usage import HostSampler

log = logging.getLogger(__name__)

_SHORTEST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.04
_CHECKPOINT_SECONDS = 1.0


class Extractor:
    """The extractor in one process. After a kill, the next extractor process continues where the previous
    process was killed."""

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
        """Function that removes secrets from quoted output."""
        self._sleep = sleep
        self._clock = clock
        self._now = now
        start = read_checkpoint(
            rundir.extractor_offset, metrics=len(job.metrics), metrics_file=rundir.metrics
        ) or ExtractionCheckpoint(
            size=0, seq=0, last={}, logs={}, emit=LogPosition(), tally=Tally(found=[0] * len(job.metrics))
        )
        again = rundir.extractor_offset.exists()
        self._former_usage = start.own_usage
        self._was_killed = again
        self._headlines = Headlines(
            job.named_metrics(),
            started=self._time_of_start,
            restarts=job.has_generations,
            spill_folder=rundir.path,
        )
        self._records = RecordFile(
            rundir.metrics,
            job.metrics,
            size=start.size,
            seq=start.seq,
            last=start.last,
            sources=(*SOURCES, *map(source_of, process_logs(rundir.processes))),
            restarts=job.has_generations,
            headlines=self._headlines,
            sleep=sleep,
        )
        self._tally = start.tally
        self._fast = prefilter_available()
        limit = SearchLimit(open_mark(rundir.extractor_search) if careful else None)
        self._logs = Logs(
            rundir,
            job,
            places=start.logs,
            last=self._records.last,
            again=again,
            markers=SectionMarkers(job.metrics, guard=limit, fast=self._fast),
            opened=start.sections,
            context=ContextMarkers(job.metrics, guard=limit, fast=self._fast),
            known=start.context,
        )
        emit = Follower((rundir.emit,), place=start.emit, carriage_return=False)
        self._emit = Log("emit", emit, (emit.place.truncations, emit.size() if again else 0))
        self._shared = [each for each in (self._logs.shared, emit) if each is not None]
        sampled = self._records.last.get("host")
        self._samples = sampled.off + 1 if sampled else 0
        self._host = _host_sampler(rundir) if job.host_metrics.enabled else None
        self._next_sample = self._next_checkpoint = clock()
        self._switched_off = read_switched_off(rundir.extractor_disabled)
        self._blocks = BlockExtractor(
            job,
            self._records,
            self._tally,
            limit=limit,
            switched_off=self._switched_off,
            fast=self._fast,
            quote=quote,
            now=now,
        )
        self._written: tuple[int, dict[str, LogPosition], LogPosition] | None = None
        self._leaves_rest = False
        self._repeats: RepeatGuide | None = None
        if job.repeat is not None:
            self._repeats = RepeatGuide(RepeatsFile(rundir.repeats), extract=self._take)
        elif job.has_generations:
            self._repeats = RepeatGuide(GenerationRuns(rundir), extract=self._take)
        self._empty_results: list[Results] = []
        self._result_warnings: list[str] = []
        self._benchmark = StartedBenchmark(rundir)
        self._knows_end = False

    def leave_rest(self) -> None:
        """Stop the extraction before the remaining output is extracted. `extracted.json` records how many bytes were not
        extracted."""
        self._leaves_rest = True

    def run(self) -> None:
        """Extract until the benchmark has ended, will not be restarted, and all its output is read. Then
        write `extracted.json`."""
        with closing(self._records), closing(self._logs), closing(self._emit.follower):
            self._follow()
            self._finish()

    def _follow(self) -> None:
        self._checkpoint()
        rest = Backoff(_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S, factor=1.5)
        while not self._leaves_rest:
            # The benchmark's exit is checked before the logs are read, so that these reads include everything
            # that was written before the exit.
            exited = self._has_ended()
            self._logs.look(at_the_end=exited)
            new = self._follow_runs(self._repeats, exited=exited)
            new = self._read_logs() or new
            new = self._read_emit() or new
            self._sample_host()
            if self._clock() >= self._next_checkpoint:
                self._checkpoint()
            if new:
                rest.reset()
            elif exited:
                break
            if not (self._logs.behind or self._emit.follower.behind):
                self._sleep(0 if exited else rest.next())

    def _has_ended(self) -> bool:
        """Return whether the benchmark has ended and is not restarted, so that it prints nothing more."""
        return (self._rundir.end if self._job.has_generations else self._rundir.exit).exists()

    def _follow_runs(self, repeats: RepeatGuide | None, *, exited: bool) -> bool:
        """Set the offset up to which each log is read. Return whether a log moved on to its next run."""
        self._blocks.runs_elsewhere = (
            self._job.repeat is not None and self._logs.by_process and not self._rundir.repeats.exists()
        )
        if repeats is None or self._blocks.runs_elsewhere:
            self._leave_to_others(exited=exited)
            return False
        # If each process has its own log, each of these logs belongs to only one run.
        logs = [self._emit] if self._logs.by_process else [*self._logs, self._emit]
        truncations = [each.follower.place.truncations for each in logs]
        moved = repeats.lead(logs, exited=exited)
        if truncations != [each.follower.place.truncations for each in logs]:
            wait_for_room(self._write_checkpoint, path=self._rundir.extractor_offset, sleep=self._sleep)
        moved = repeats.end_processes(self._logs) or moved
        for run in repeats.finished(self._logs, self._emit):
            assert run.ended is not None
            assert run.repeat is not None
            timestamp = run.ended.time or 0
            self._take_of_run(run.ended, timestamp=timestamp, repeat=run.repeat)
            # The metrics of the run itself are the last records of a run, and tell readers that the run's
            # records are complete.
            self._records.add_values(
                "run", run.repeat, run_facts(run.ended), timestamp=timestamp, repeat=run.repeat
            )
        return moved

    def _take(self, source: Log, blocks: Sequence[LineBlock]) -> None:
        take = self._blocks.take_emitted if source is self._emit else self._blocks.extract
        for block in blocks:
            take(source, block)

    def _leave_to_others(self, *, exited: bool) -> None:
        """Stop reading at the benchmark's end. Later output of processes that outlive the benchmark is not searched for
        metrics.

        If a check finds that the benchmark is running, all earlier output is the benchmark's own.
        After the benchmark's death, nothing more is read until exit.json exists.
        """
        if not exited:
            sizes = [each.size() for each in self._shared]
            alive = self._benchmark.alive()
            for each, size in zip(self._shared, sizes, strict=True):
                if alive:
                    each.end = size
                elif each.end is None:
                    # An extractor that starts after the benchmark's death does not know where the benchmark's
                    # output ends until exit.json exists.
                    each.end = each.position
        elif not self._knows_end:
            self._knows_end = True
            ended = read_exit(self._rundir) or RunEnd()
            output = ended.output_bytes
            if (shared := self._logs.shared) is not None:
                # If the file is shorter than at the benchmark's end, another process has truncated it.
                shared.end = 0 if output is not None and shared.size() < output else output
            self._emit.follower.end = ended.emit_bytes

    def _read_logs(self) -> bool:
        any_new = False
        for each in self._logs.in_turn():
            if each.done:
                continue
            truncations = each.follower.place.truncations
            new, blocks = each.follower.read()
            any_new = any_new or new
            if each.follower.place.truncations != truncations:
                log.warning("%s was truncated; it is read from its start", self._rundir.path / each.name)
                each.reset_sections()
                wait_for_room(self._write_checkpoint, path=self._rundir.extractor_offset, sleep=self._sleep)
            self._take(each, blocks)
        return any_new

    def _read_emit(self) -> bool:
        new, blocks = self._emit.follower.read()
        self._take(self._emit, blocks)
        return new

    def _finish(self) -> None:
        remaining = 0
        if self._leaves_rest:
            # This function is called between two blocks, so the buffered part of an unfinished line is
            # recorded as not searched.
            for each in chain(self._logs.in_turn(), [self._emit]):
                if self._repeats is not None:
                    each.follower.end = None
                remaining += max(0, each.follower.last - each.follower.place.offset)
        else:
            for each in (*self._logs, self._emit):
                self._take(each, each.follower.finish())
        exited = read_exit(self._rundir.newest_generation()) or RunEnd()
        if self._job.results:
            self._take_results(exited)
        if self._repeats is None:
            self._take_of_run(exited, timestamp=self._now(), repeat=None)
            self._records.add_values("run", 0, run_facts(exited), timestamp=self._now())
        runs = self._runs().measured
        headlines = self._headlines.values(
            self._rundir.metrics,
            arms=self._job.repeat.arms_of_runs if self._job.repeat is not None else (),
            failed=[each.repeat for each in runs if not each.succeeded] if self._job.repeat else (),
            of_several_nodes=self._job.strategy.nodes > 1,
            stopping=lambda: self._leaves_rest,
        )
        content = summary(
            self._tally,
            self._job.metrics,
            records=self._records.seq,
            logs={each.name: each.follower.place for each in self._logs},
            log_bytes=sum(self._bytes_of(each.follower) for each in self._logs),
            remaining_bytes=remaining,
            headlines=headlines,
            empty_results=self._empty_results,
            warnings=[*self._warnings(remaining), *self._result_warnings],
        )
        content["own_usage"] = self._own_usage()
        wait_for_room(
            lambda: write_json(self._rundir.extracted, content),
            path=self._rundir.extracted,
            sleep=self._sleep,
        )

    def _take_results(self, exited: RunEnd) -> None:
        """Record the values in the benchmark's result files."""
        note = self._rundir.results
        tables = self._job.results
        if not note.exists():
            # Imported here, because many jobs have no result files.
            from bai_agent.metrics.results.results_reader import ResultFolder, gather_results

            started = read_started(self._rundir)
            folder = ResultFolder(
                paths=[
                    working_folder(job, rundir, scripts=scripts_folder(job, rundir))
                    for job, rundir in workspaces(self._job, self._rundir)
                ],
                since_ms=started.time if started is not None else 0,
                until_ms=self._now(),
                user=find_user(self._job.benchmark.user),
                runs=[(each.time, each.repeat) for each in self._runs().runs]
                or runs_of_processes(process_logs(self._rundir.processes)),
                warn_of_nothing=self._job.strategy.nodes == 1 and exited.exec_error is None,
            )
            stopping = lambda: self._leaves_rest  # noqa: E731
            gather_results(tables, folder, note, quote=self._quote, stopping=stopping, sleep=self._sleep)
        for each in read_note(note):
            if isinstance(each, FileValues):
                for value in each.values:
                    self._tally.count_named(value.name)
                self._records.add_values("file", each.file, each.values, timestamp=0, repeat=each.repeat)
            else:
                self._result_warnings = each.warnings
                self._empty_results = [
                    table
                    for index, table in enumerate(tables)
                    if not each.found[index] and index not in each.unread
                ]

    def _runs(self) -> RepeatedRuns:
        """Return the runs of a `[repeat]` job, or the generations of a job with restarts. For all other
        jobs, the result is empty."""
        if self._job.has_generations:
            return GenerationRuns(self._rundir).look()
        return read_repeats(self._rundir.repeats)

    def _take_of_run(self, ended: RunEnd, *, timestamp: int, repeat: int | None) -> None:
        """Record the metrics about the run's own resources."""
        values = values_of_run(self._job.metrics, ended)
        for value in values:
            # The number of values is set instead of incremented, because a restarted extractor reads the runs
            # again from the first run.
            self._tally.found[value.i] = (repeat or 0) + 1
        self._records.add_values("exit", repeat or 0, values, timestamp=timestamp, repeat=repeat)

    def _time_of_start(self, repeat: int | None) -> int | None:
        """Return the start of the benchmark, or of the given repeat (ms UTC); None if unknown."""
        runs = self._runs().measured
        if repeat is not None and repeat < len(runs):
            return runs[repeat].time
        started = read_started(self._rundir) if not repeat else None
        return started.time if started is not None else None

    def _bytes_of(self, follower: Follower) -> int:
        place = follower.place
        return place.former + (place.offset if self._leaves_rest else follower.position)

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
        state = (self._records.size, self._logs.places, self._emit.follower.place)
        if state == self._written:
            return
        try:
            self._write_checkpoint()
        except OSError as error:
            # If the disk is full, the checkpoint is not written. Without this checkpoint, a restarted
            # extractor only reads more output again.
            if error.errno not in FULL:
                raise
        else:
            self._written = state

    def _write_checkpoint(self) -> None:
        write_checkpoint(
            self._rundir.extractor_offset,
            ExtractionCheckpoint(
                size=self._records.size,
                seq=self._records.seq,
                last=self._records.last,
                logs=self._logs.places,
                emit=self._emit.follower.place,
                tally=self._tally,
                sections=self._logs.opened,
                context=self._logs.known,
                own_usage=self._own_usage(),
            ),
        )

    def _own_usage(self) -> dict[str, Any]:
        """Return the resources that all processes of this extraction used. If a process was killed, only the
        recorded part of its resources is known."""
        mine = own_usage()
        former = self._former_usage or {"cpu_seconds": 0.0, "peak_memory_bytes": None}
        peaks = [each["peak_memory_bytes"] for each in (former, mine)]
        return {
            "cpu_seconds": round(former["cpu_seconds"] + mine["cpu_seconds"], 3),
            "peak_memory_bytes": max((each for each in peaks if each is not None), default=None),
            "at_least": self._was_killed,
        }

    def _warnings(self, remaining: int) -> list[str]:
        sentences = []
        if remaining:
            sentences.append(
                f"{remaining:,} bytes of the output were not searched for metrics, because there was no time left; "
                f"`bai extract {self._job.job.id}` searches the whole output"
            )
        if not self._fast:
            sentences.append(
                "ahocorasick_rs is not installed for this Python: every line was searched with every pattern, slowly"
            )
        if self._host is None and self._job.host_metrics.enabled:
            sentences.append("The host was not sampled: psutil is not installed for this Python")
        files = {each.src: each.name for each in self._logs}
        return [*sentences, *switch_off_warnings(self._switched_off, self._job.metrics, files=files)]


def _host_sampler(rundir: RunDir) -> HostSampler | None:
    # Imported here, because host metrics load large modules, and many jobs disable these metrics.
    try:
        from bai_agent.machine.host_usage import HostSampler
    except ImportError as error:
        log.warning("the host is not sampled: %s", error)
        return None
    return HostSampler(rundir.path)
