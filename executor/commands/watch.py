"""Follows a job to its end for somebody: shows it, takes Ctrl-C, and lets the backend keep an eye on it."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import Any

from bai_agent.errors import BaiError, StoreError
from bai_agent.job.outcome import ExitCode
from bai_agent.job.record import JobRecord
from executor.backends.backend import Watcher
from executor.records.follower import JobFollower
from executor.records.retry_window import RetryWindow
from executor.view.job_view import JobView, View

_REDRAW = 0.1
"""Seconds between two pictures while nothing else is done."""
_BURST = 0.05
"""Seconds of looking without a pause, where there is much to read."""
_SHARE = 4
"""A burst is followed by a pause so many times as long, on this machine: it belongs to the benchmark."""
_CATCH_UP = 10.0
"""Seconds after the end in which the statistics may still be completed."""
_AWAY_PAUSES = 3
"""How much longer the pauses are meanwhile."""


class LeftError(Exception):
    """Somebody does not want to follow any longer; the job goes on."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Interrupts:
    """Counts Ctrl-C: the first is a wish to cancel, the second raises LeftError, as SIGTERM does at once."""

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
) -> Mapping[str, Any]:
    """Show the job until it ends and return its result.

    remote: the job is on another machine, so that looking at it takes nothing from its benchmark, and its store may be away for
    a while. log_position: where in the log to begin. newest_only: the log may be passed over where it comes too fast.
    Raises LeftError when somebody wants to leave, StoreError where the store fails, NoResultError where nothing will come.
    """
    with Interrupts() as interrupts:
        try:
            view.begin(job_view)
            follower = JobFollower(record.node(), log_position=log_position, newest_only=newest_only)
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
) -> Mapping[str, Any]:
    ended: float | None = None
    burst = time.monotonic()
    reach = RetryWindow(far=remote)
    while True:
        try:
            news = follower.observe()
        except StoreError as error:
            view.notice(reach.failed(error))
            _rest(_AWAY_PAUSES * watcher.pause_s, job_view, view, interrupts)
            continue
        reach.reached()
        job_view.apply(news)
        view.show(job_view, news)
        view.refresh(job_view)
        if news.result is not None:
            ended = ended or time.monotonic()
            job_view.partial = job_view.partial or time.monotonic() - ended > _CATCH_UP
            if not news.more:
                job_view.result = news.result
                view.end(job_view)
                return news.result
            continue
        if interrupts.count and not job_view.cancelling:
            job_view.cancelling = True
            record.cancel(by="bai run")
            view.notice("cancelling; press Ctrl-C again to leave it to itself")
        heard = bool(news.before or news.log or news.records or news.after)
        if said := watcher.observe(news=heard, cancelling=job_view.cancelling):
            view.notice(said)
        if not news.more or time.monotonic() - burst > _BURST:
            busy = 0.0 if remote else time.monotonic() - burst
            _rest(max(watcher.pause_s, _SHARE * busy), job_view, view, interrupts)
            burst = time.monotonic()


def _rest(seconds: float, job_view: JobView, view: View, interrupts: Interrupts) -> None:
    """Wait, while the view goes on, until somebody wants something."""
    end, count = time.monotonic() + seconds, interrupts.count
    while (left := end - time.monotonic()) > 0 and interrupts.count == count:
        time.sleep(min(left, _REDRAW))
        view.refresh(job_view)


def exit_code_of(result: Mapping[str, Any]) -> ExitCode:
    """Return the exit code that a result names."""
    try:
        return ExitCode(int(result["exit_code"]))
    except (KeyError, TypeError, ValueError):
        raise BaiError(f"the result of this job names no exit code: {dict(result)}") from None
