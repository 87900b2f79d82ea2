"""Waits until no other job runs on this machine, and reports jobs that ran at the same time."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from bai_agent.job.record_types import NeighbourEvent, WaitEvent
from bai_agent.job.run_directory import now_ms
from bai_agent.machine.job_sockets import Announcement, ColocatedJob, ThisJob, Use
from bai_agent.runtime.clock import Clock
from bai_agent.runtime.event_log import EventLog
from bai_agent.runtime.poller import polling

log = logging.getLogger(__name__)

FOREIGN_WAIT = timedelta(minutes=30)
"""Time limit for the total wait for other users' jobs. Without a limit, any user could block a job for
ever."""
_LOOK_SECONDS = 1.0
_WAIT_SECONDS = 0.5
_MOST = 16
"""Maximum number of other jobs that are reported, and maximum number of reported periods per job."""


def wait_until_alone(
    me: ThisJob,
    *,
    tell: Callable[[WaitEvent], None],
    stopping: Callable[[], bool],
    clock: Clock,
) -> list[Announcement]:
    """Wait until no other job runs on this machine, or until `stopping()`.

    Returns the job's announcement, which keeps other jobs away while the announcement is open. Returns None
    if the job is not announced. `tell` is called after each change of the list of jobs for which this job
    waits. The wait for jobs of this user and of root has no limit, but the wait for other users' jobs is
    limited to FOREIGN_WAIT.

    If several jobs wait for the machine, the first job that announces itself and then sees no other
    announcement is next. Each job announces itself before it looks for other announcements, so two jobs never
    both win. If two jobs see each other, the job with the greater key withdraws.
    """
    turn = _Turn(me)
    told: list[str] = []
    foreign_s = 0.0
    while not stopping():
        try:
            awaited = turn.awaited(foreign=foreign_s < FOREIGN_WAIT.total_seconds())
        except OSError as error:
            log.warning("other jobs on this machine cannot be seen: %s", error)
            break
        if not awaited:
            break
        names = list(dict.fromkeys(each.name for each in awaited))
        if names != told:
            told = names
            tell(WaitEvent(jobs=names[:_MOST], message=_waits(names, awaited)))
        begun = clock.monotonic()
        clock.sleep(_WAIT_SECONDS)
        if all(each.job_id is None for each in awaited):
            foreign_s += clock.monotonic() - begun
            if foreign_s >= FOREIGN_WAIT.total_seconds():
                tell(WaitEvent(jobs=names[:_MOST], message=_gives_up()))
    return [turn.claim] if turn.claim is not None else []


class _Turn:
    """This job's place among the jobs that wait for the machine."""

    def __init__(self, me: ThisJob) -> None:
        self._me, self._is_next = me, False
        self.claim: Announcement | None = None
        """Announcement that keeps other jobs away while the announcement is open. None if this job is not
        announced."""

    def awaited(self, *, foreign: bool) -> list[ColocatedJob]:
        """Announce this job or withdraw its announcement. Return the jobs for which this job must wait.
        Raises OSError.

        foreign: whether to include other users' jobs.
        """
        others = [each for each in self._me.others() if foreign or each.job_id is not None]
        rivals = _announced(others, Use.NEXT)
        if self.claim is None and not rivals and (claim := self._me.announce(Use.NEXT)) is not None:
            self.claim = claim
            return self.awaited(
                foreign=foreign
            )  # Another job may have announced itself since this job last looked.
        self._is_next = self._is_next or not rivals
        if self._is_next:
            return _announced(others, Use.RUNS)
        if self.claim is not None and min(each.key for each in rivals) < self._me.key:
            self.claim.close()
            self.claim = None
        return others


def _announced(jobs: Sequence[ColocatedJob], use: Use) -> list[ColocatedJob]:
    return [each for each in jobs if each.use is use]


@contextmanager
def colocated_jobs_reported(me: ThisJob, events: EventLog) -> Iterator[None]:
    """Announce this job. Until the context is left, add an event for each other job that runs on this
    machine."""
    announced = me.announce(Use.RUNS)
    watch = ColocationWatch(me.others, events)

    watch.look()
    try:
        with polling(
            watch.look,
            name="neighbours",
            pause_s=lambda: _LOOK_SECONDS,
            failure="cannot detect other jobs on this machine",
            join_s=None,
        ):
            yield
    finally:
        watch.look()
        watch.end()
        if announced is not None:
            announced.close()


class ColocationWatch:
    """Records which other jobs ran on this machine while this job ran, and when."""

    def __init__(
        self,
        others: Callable[[], list[ColocatedJob]],
        events: EventLog,
        *,
        now: Callable[[], int] = now_ms,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._others, self._events, self._now, self._clock = others, events, now, clock
        self._looked = clock()
        self._there: dict[str, tuple[NeighbourEvent, float]] = {}
        """Event and start time of each other job that runs now. The start is a time of the monotonic clock,
        because the time of day may be set."""
        self._seen: Counter[str] = Counter()
        """For each other job, the number of periods that were recorded."""
        self._blind = False

    def look(self) -> None:
        """Record the other jobs that run now. Only the first of several consecutive failures is logged."""
        try:
            others = [each for each in self._others() if each.use is Use.RUNS]
        except OSError as error:
            if not self._blind:
                log.warning("other jobs on this machine cannot be seen: %s", error)
            self._blind = True
            return
        now, looked = self._now(), self._clock()
        # All jobs of other users count as one job.
        others = [each if each.job_id is not None else replace(each, key="") for each in others]
        keys = {each.key for each in others}
        for key in [key for key in self._there if key not in keys]:
            self._tell_end(key)
        for each in others:
            is_told = self._seen[each.key] < _MOST and (each.key in self._seen or len(self._seen) < _MOST)
            if each.key not in self._there and is_told:
                self._seen[each.key] += 1
                # The overlap of the two jobs began neither before the previous look nor before this job
                # began.
                age_s = min(max(0.0, (now - each.since) / 1000), looked - self._looked)
                event = NeighbourEvent(job_id=each.job_id, since=now - round(1000 * age_s))
                self._there[each.key] = (event, looked - age_s)
                self._events.add(event)
        self._looked = looked

    def end(self) -> None:
        """Record the end of the overlap with each job that is still present."""
        for key in list(self._there):
            self._tell_end(key)

    def _tell_end(self, key: str) -> None:
        event, since = self._there.pop(key)
        until = event.since + round(1000 * (self._clock() - since))
        self._events.add(NeighbourEvent(job_id=event.job_id, since=event.since, until=until))


def neighbour_warnings(events: list[NeighbourEvent]) -> list[str]:
    """Return a warning for each job that ran at the same time, with the duration of the overlap."""
    seconds: dict[str | None, float] = {}
    for event in events:
        seconds.setdefault(event.job_id, 0.0)
        if event.until is not None:
            seconds[event.job_id] += (event.until - event.since) / 1000
    return [
        f"{neighbour_name(job_id)} ran on this machine at the same time{_for(overlap)}, so the two jobs slowed each other down."
        for job_id, overlap in seconds.items()
    ]


def neighbour_name(job_id: str | None) -> str:
    """Return the subject of a sentence about a job. job_id: None for an unknown job of another user."""
    return f"The job {job_id}" if job_id is not None else "Another user's job"


def _for(seconds: float) -> str:
    # The duration is 0 if this job's agent was killed before it could record the end of the overlap.
    return f", for {seconds:.1f} s" if seconds else ""


def _waits(names: list[str], others: list[ColocatedJob]) -> str:
    shown = ", ".join(names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    bound = f", for at most {_minutes()}" if all(each.job_id is None for each in others) else ""
    return (
        f"Waits until this machine is free: {shown}{more} {'runs' if len(names) == 1 else 'run'} here{bound}."
    )


def _gives_up() -> str:
    return f"Another user's job has kept this machine for {_minutes()}: this job no longer waits for other users."


def _minutes() -> str:
    return f"{FOREIGN_WAIT.total_seconds() / 60:.0f} min"
