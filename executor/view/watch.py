"""Follows a job to its end: defines the interface of views, and the loop that reads the job and draws it.

The loop also handles Ctrl-C, and calls the backend's watcher of the job.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from bai_agent.errors import StoreError
from bai_agent.job.descriptor import Job
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import JobResult
from executor.backends.backend import Watcher
from executor.documents.job_view import JobView
from executor.jobs.wait import RetryWindow
from executor.records.counted_values import failed_of, memory_floor
from executor.records.follower import JobFollower, News
from executor.records.job_status import NODES_END
from executor.records.machine_facts import environments, machine_warnings
from executor.records.nodes import NodeListing

if TYPE_CHECKING:
    from executor.analysis.measured_runs import OverRuns

_REDRAW = 0.1
"""Time between two redraws while nothing new is read (seconds)."""
_BURST = 0.05
"""Maximum time for which records are read without a pause (seconds)."""
_SHARE = 4
"""Minimum pause after a burst of reads on the benchmark's own machine, as a multiple of the burst's processor
time."""
_CATCH_UP = 10.0
"""Maximum time for which records are read after the job's end, to complete the statistics (seconds)."""
_AWAY_PAUSES = 3
"""Factor by which the pauses are longer while the job store is unreachable."""


class View(Protocol):
    """Interface of a view, which shows one job to the user."""

    def begin(self, job_view: JobView) -> None: ...

    def notice(self, sentence: str) -> None:
        """Show a message about the actions of `bai` itself."""
        ...

    def show(self, job_view: JobView, news: News) -> None:
        """Show what has happened since the last call. `job_view` already includes `news`."""
        ...

    def refresh(self, job_view: JobView) -> None:
        """Update the view. Called after one or more calls of `show`, and several times per second even if
        nothing happens."""
        ...

    def end(self, job_view: JobView) -> None:
        """Show how the job ended. `job_view.result` is set."""
        ...

    def close(self) -> None:
        """Restore the terminal. Can be called at any time, and more than once."""
        ...


class LeftError(Exception):
    """The user has stopped following the job, which continues."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Interrupts:
    """Counts the user's Ctrl-C. The first Ctrl-C requests that the job is cancelled, and the second raises
    LeftError. SIGTERM raises LeftError at once."""

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
            # A further Ctrl-C ends the process at once, even if the terminal accepts no output any more.
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
    """Show the job until it ends, and return the job's result.

    remote: whether the job runs on another machine. Frequent reads of a remote job do not slow down the
    benchmark, but the remote store can be unreachable for a while. log_position: offset of the log at which
    reading starts. newest_only: whether parts of the log are skipped if the log grows too fast. Raises
    LeftError if the user leaves, StoreError if the store fails, NoResultError if the job will not have a
    result.
    """
    with Interrupts() as interrupts:
        try:
            view.begin(job_view)
            several = job_view.job.strategy.nodes > 1 or job_view.job.is_elastic
            follower = JobFollower(
                record.node(),
                nodes=NodeListing(record).look if several else None,
                is_elastic=job_view.job.is_elastic,
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
        _show(news, job_view, view)
        if news.result is not None:
            ended = ended or time.monotonic()
            job_view.partial = job_view.partial or time.monotonic() - ended > _CATCH_UP
            if not news.more:
                _complete(job_view, record, news.result)
                view.end(job_view)
                return news.result
            continue
        if interrupts.count and not job_view.cancelling:
            job_view.cancelling = True
            record.cancel(by="bai run")
            view.notice("cancelling; press Ctrl-C again to stop waiting")
        if sentence := watcher.observe(news=_is_any(news), cancelling=job_view.cancelling):
            view.notice(sentence)
        if not news.more or time.monotonic() - burst > _BURST:
            # Processor time is used instead of the clock, because a reader of the output could have blocked
            # this process for an hour.
            busy = 0.0 if remote else time.process_time() - used
            _rest(max(watcher.pause_s, _SHARE * busy), job_view, view, interrupts)
            burst, used = time.monotonic(), time.process_time()


def _show(news: News, job_view: JobView, view: View) -> None:
    told = job_view.state.stop
    job_view.apply(news)
    if news.ending is not None and news.ending != told:
        job_view.ending = news.ending
        view.notice(NODES_END.format(news.ending))
    view.show(job_view, news)
    if news.lead is not None:
        view.notice(f"output {news.lead.sentence}")
    view.refresh(job_view)


def _is_any(news: News) -> bool:
    return bool(news.before or news.log or news.records or news.after)


def _complete(job_view: JobView, record: JobRecord, result: JobResult) -> None:
    """Add to `job_view` the facts that are known only after the end of a job."""
    job_view.result = result
    # The summary is shown even without these warnings, so an unreachable store is ignored.
    with suppress(StoreError):
        job_view.machine_warnings = machine_warnings(environments(record))
    job_view.measurements.leave_out_runs(failed_of(result))
    job_view.measurements.raise_memory_floor(memory_floor(result.own_usage))
    if job_view.job.repeat is not None:
        with suppress(StoreError):
            job_view.over_runs = _over_runs(record, job_view.job, result)


def _over_runs(record: JobRecord, job: Job, result: JobResult) -> list[OverRuns]:
    """Return the statistics of each metric over the runs of a job. Raises StoreError."""
    # Imported here, because few jobs have several runs.
    from executor.analysis.measured_runs import over_runs, runs_of
    from executor.records.points import OF_BENCHMARK, read_points

    points = read_points(record, sources=OF_BENCHMARK)
    return over_runs(runs_of(record.job_id, job, result, points, starts={}))


def _rest(seconds: float, job_view: JobView, view: View, interrupts: Interrupts) -> None:
    """Wait for `seconds` and refresh the view meanwhile. A Ctrl-C ends the wait."""
    end, count = time.monotonic() + seconds, interrupts.count
    while (left := end - time.monotonic()) > 0 and interrupts.count == count:
        time.sleep(min(left, _REDRAW))
        view.refresh(job_view)
