"""Follows a job to its end: what is known of it, the protocol of a view that draws that, and the loop between reading and drawing.

The loop handles Ctrl-C, and lets the backend watch the job.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from bai_agent.errors import StoreError
from bai_agent.job.descriptor import Job, SourceKind
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import BenchmarkStartEvent, JobResult, RunEvent, StopEvent
from bai_agent.job.run_directory import now_ms
from executor.backends.backend import Watcher
from executor.program import command
from executor.records.environments import SUMMARY_NODES, MachineWarning, environments, machine_warnings
from executor.records.follower import JobFollower, News
from executor.records.job_status import NODES_END
from executor.records.memory_floor import memory_floor
from executor.records.repeated_runs import failed_of
from executor.records.retry_window import RetryWindow
from executor.records.run_state import RunState
from executor.records.statistics import Measurements
from executor.view.text import place

if TYPE_CHECKING:
    from executor.analysis.runs import OverRuns

_REDRAW = 0.1
"""Seconds between two pictures while nothing else is done."""
_BURST = 0.05
"""Seconds of looking without a pause, where there is much to read."""
_SHARE = 4
"""The processor time of a burst is followed by a pause so many times as long, on this machine: it belongs to the benchmark."""
_CATCH_UP = 10.0
"""Seconds after the end in which the statistics may still be completed."""
_AWAY_PAUSES = 3
"""How much longer the pauses are meanwhile."""


@dataclass
class JobView:
    """All that is known of a followed job."""

    job_id: str
    job: Job
    place: str
    """Where its files are."""
    artifacts: str = ""
    """Where its artifacts are."""
    state: RunState = field(default_factory=RunState)
    measurements: Measurements = field(default_factory=Measurements)
    cancelling: bool = False
    result: JobResult | None = None
    command: Callable[..., str] = command
    """Makes the command line of a hint from its words."""
    ending: str | None = None
    """Why the coordinator of several nodes has told all to end, as a person was told."""
    machine_warnings: Sequence[MachineWarning] = ()
    """Of a job that has ended: what its machines were warned of when it began."""
    over_runs: list[OverRuns] = field(default_factory=list)
    """What its runs say together, of a job that did several."""
    partial: bool = False
    """The statistics do not cover all records: there were too many to read."""

    def __post_init__(self) -> None:
        self.measurements = Measurements(self.job)

    def apply(self, news: News) -> None:
        for event in (*news.before, *news.after):
            self.state.apply(event)
            if isinstance(event, BenchmarkStartEvent):
                self.measurements.starts.setdefault(None, event.time)
        if news.records and not self.partial:
            self.measurements.add_lines(news.records)

    def own_copy(self, src: str) -> bool:
        """Return whether `src` is our own copy of the job's scripts: that it is taken from there tells nobody anything."""
        return any(
            place(source.src) == place(src) and source.kind is SourceKind.SCRIPTS and source.directory
            for source in self.job.sources
        )

    def is_last_word(self, event: RunEvent) -> bool:
        """Return whether what `event` says, why a run ends, is known: of several nodes; or soon, by the summary, before the benchmark began."""
        if not isinstance(event, StopEvent):
            return False
        return event.message == self.ending or "run" not in (self.state.phase, *self.state.finished)

    @property
    def phase_seconds(self) -> float:
        """Seconds that the current phase has lasted."""
        return max(0.0, (now_ms() - self.state.since) / 1000) if self.state.since is not None else 0.0


class View(Protocol):
    """Shows one job to somebody."""

    def begin(self, job_view: JobView) -> None: ...

    def notice(self, sentence: str) -> None:
        """Show a message about what `bai` itself does."""
        ...

    def show(self, job_view: JobView, news: News) -> None:
        """Show what is new; `job_view` knows of it already."""
        ...

    def refresh(self, job_view: JobView) -> None:
        """Called after one or more `show`, several times a second; the time has moved on."""
        ...

    def end(self, job_view: JobView) -> None:
        """Show the end; `job_view.result` is set."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was; may be called at any time, also twice."""
        ...


class LeftError(Exception):
    """The person stopped following; the job goes on."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Interrupts:
    """Counts Ctrl-C: the first one asks for a cancel, the second one raises LeftError, as SIGTERM does at once."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if number == signal.SIGTERM or self.count > 1:
            # A third one ends us even if the terminal takes nothing any more.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            raise LeftError(number)


def watch(
    record: JobRecord,
    job_view: JobView,
    view: View,
    watcher: Watcher,
    *,
    remote: bool = False,
    log_position: int = 0,
    newest_only: bool = False,
) -> JobResult:
    """Show the job until it ends and return its result.

    remote: the job is on another machine, so that looking at it takes nothing from its benchmark, and its store may be away for
    a while. log_position: where in the log to begin. newest_only: the log may be passed over where it comes too fast.
    Raises LeftError when the person leaves, StoreError where the store fails, NoResultError where no result will come.
    """
    with Interrupts() as interrupts:
        try:
            view.begin(job_view)
            follower = JobFollower(
                record.node(),
                nodes=job_view.job.strategy.nodes,
                log_position=log_position,
                newest_only=newest_only,
            )
            return _watch(record, follower, job_view, view, interrupts, watcher, remote=remote)
        finally:
            view.close()


def _watch(
    record: JobRecord,
    follower: JobFollower,
    job_view: JobView,
    view: View,
    interrupts: Interrupts,
    watcher: Watcher,
    *,
    remote: bool,
) -> JobResult:
    ended: float | None = None
    burst, used = time.monotonic(), time.process_time()
    reach = RetryWindow(far=remote)
    while True:
        try:
            news = follower.observe()
        except StoreError as error:
            view.notice(reach.failed(error))
            _rest(_AWAY_PAUSES * watcher.pause_s, job_view, view, interrupts)
            continue
        reach.reached()
        told = job_view.state.stop
        job_view.apply(news)
        if news.ending is not None and news.ending != told:
            job_view.ending = news.ending
            view.notice(NODES_END.format(news.ending))
        view.show(job_view, news)
        view.refresh(job_view)
        if news.result is not None:
            ended = ended or time.monotonic()
            job_view.partial = job_view.partial or time.monotonic() - ended > _CATCH_UP
            if not news.more:
                job_view.result = news.result
                with suppress(StoreError):  # the summary tells of more than this
                    job_view.machine_warnings = machine_warnings(environments(record, most=SUMMARY_NODES))
                job_view.measurements.leave_out_runs(failed_of(news.result))
                job_view.measurements.raise_memory_floor(memory_floor(news.result.own_usage))
                if job_view.job.repeat is not None:
                    with suppress(StoreError):
                        job_view.over_runs = _over_runs(record, job_view.job, news.result)
                view.end(job_view)
                return news.result
            continue
        if interrupts.count and not job_view.cancelling:
            job_view.cancelling = True
            record.cancel(by="bai run")
            view.notice("cancelling; press Ctrl-C again to leave it to itself")
        heard = bool(news.before or news.log or news.records or news.after)
        if sentence := watcher.observe(news=heard, cancelling=job_view.cancelling):
            view.notice(sentence)
        if not news.more or time.monotonic() - burst > _BURST:
            # Not by the clock: whoever reads what is written here may have let it wait for an hour.
            busy = 0.0 if remote else time.process_time() - used
            _rest(max(watcher.pause_s, _SHARE * busy), job_view, view, interrupts)
            burst, used = time.monotonic(), time.process_time()


def _over_runs(record: JobRecord, job: Job, result: JobResult) -> list[OverRuns]:
    """Return what the runs of a job say together. Raises StoreError."""
    # Few jobs have any.
    from executor.analysis.runs import over_runs, runs_of
    from executor.records.points import read_points

    points = read_points(record, sources=("log", "emit", "exit", "file"))
    return over_runs(runs_of(record.job_id, job, result, points, started=None))


def _rest(seconds: float, job_view: JobView, view: View, interrupts: Interrupts) -> None:
    """Wait while the view is refreshed; a Ctrl-C ends the wait."""
    end, count = time.monotonic() + seconds, interrupts.count
    while (left := end - time.monotonic()) > 0 and interrupts.count == count:
        time.sleep(min(left, _REDRAW))
        view.refresh(job_view)
