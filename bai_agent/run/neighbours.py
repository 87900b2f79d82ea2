"""Waiting until no other job runs on this machine, and telling of those that ran beside this one."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from bai_agent.job.events import EventLog
from bai_agent.job.record_types import NeighbourEvent, WaitEvent
from bai_agent.job.run_directory import now_ms
from bai_agent.run.background import beside
from bai_agent.run.clock import Clock
from bai_agent.run.job_sockets import Announcement, Me, Neighbour, Use

log = logging.getLogger(__name__)

FOREIGN_WAIT = timedelta(minutes=30)
"""How long a job waits for other users' jobs, all of them together: anybody could keep it waiting for ever else."""
_LOOK_SECONDS = 1.0
_WAIT_SECONDS = 0.5
_MOST = 16
"""Neighbours that are told of, and how often one may come."""


def wait_until_alone(
    me: Me,
    *,
    tell: Callable[[WaitEvent], None],
    stopping: Callable[[], bool],
    clock: Clock,
) -> list[Announcement]:
    """Return when no other job runs on this machine, or when `stopping()`: what keeps others away as long as it is open.

    `tell` hears for whom it waits, once for each change. Waits for jobs of this user and of root without a bound, as a job takes
    as long as it takes, and for those of other users for FOREIGN_WAIT.

    Of several jobs that want the machine, one is next: the first that, after it has announced that, sees no other that has. Each
    announces before it looks, so two never believe it. Of two that see each other the one with the greater key withdraws.
    """
    claim: Announcement | None = None
    is_next = False
    told: list[str] = []
    foreign_s = 0.0
    while not stopping():
        try:
            others = me.others()
        except OSError as error:
            log.warning("other jobs on this machine cannot be seen: %s", error)
            break
        patient = foreign_s < FOREIGN_WAIT.total_seconds()
        others = [each for each in others if patient or each.job_id is not None]
        rivals = [each for each in others if each.use is Use.NEXT]
        if claim is None and not rivals and (claim := me.announce(Use.NEXT)) is not None:
            continue  # Another one may have done the same since this one looked.
        is_next = is_next or not rivals
        if claim is not None and not is_next and min(each.key for each in rivals) < me.key:
            claim.close()
            claim = None
        if is_next:
            others = [each for each in others if each.use is Use.RUNS]
            if not others:
                break
        names = list(dict.fromkeys(each.name for each in others))
        if names != told:
            told = names
            tell(WaitEvent(jobs=names[:_MOST], message=_waits(names, others)))
        begun = clock.monotonic()
        clock.sleep(_WAIT_SECONDS)
        if all(each.job_id is None for each in others):
            foreign_s += clock.monotonic() - begun
            if foreign_s >= FOREIGN_WAIT.total_seconds():
                tell(WaitEvent(jobs=names[:_MOST], message=_gives_up()))
    return [claim] if claim is not None else []


@contextmanager
def neighbours_told(me: Me, events: EventLog) -> Iterator[None]:
    """Announce this job, and tell `events` of each job that runs on this machine meanwhile."""
    announced = me.announce(Use.RUNS)
    watch = NeighbourWatch(me.others, events)

    def work(over: threading.Event) -> None:
        while not over.wait(_LOOK_SECONDS):
            watch.look()

    watch.look()
    try:
        with beside(work, name="neighbours", join_s=None):
            yield
    finally:
        watch.look()
        watch.end()
        if announced is not None:
            announced.close()


class NeighbourWatch:
    """Notes which other jobs ran while this one did, and from when to when."""

    def __init__(
        self,
        others: Callable[[], list[Neighbour]],
        events: EventLog,
        *,
        now: Callable[[], int] = now_ms,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._others, self._events, self._now, self._clock = others, events, now, clock
        self._looked = clock()
        self._there: dict[str, tuple[NeighbourEvent, float]] = {}
        """What was said of each that is there, and since when it is, by the monotonic clock: the time of day may be set meanwhile."""
        self._seen: Counter[str] = Counter()
        """How often each has come."""
        self._blind = False

    def look(self) -> None:
        """Note who is there now. What cannot be seen is logged once."""
        try:
            others = [each for each in self._others() if each.use is Use.RUNS]
        except OSError as error:
            if not self._blind:
                log.warning("other jobs on this machine cannot be seen: %s", error)
            self._blind = True
            return
        now, looked = self._now(), self._clock()
        # Other users' jobs are one, however many there are.
        others = [each if each.job_id is not None else replace(each, key="") for each in others]
        keys = {each.key for each in others}
        for key in [key for key in self._there if key not in keys]:
            self._tell_end(key)
        for each in others:
            is_told = self._seen[each.key] < _MOST and (each.key in self._seen or len(self._seen) < _MOST)
            if each.key not in self._there and is_told:
                self._seen[each.key] += 1
                # It was not there at the last look, nor before this job began.
                age_s = min(max(0.0, (now - each.since) / 1000), looked - self._looked)
                event = NeighbourEvent(job_id=each.job_id, since=now - round(1000 * age_s))
                self._there[each.key] = (event, looked - age_s)
                self._events.add(event)
        self._looked = looked

    def end(self) -> None:
        """Note that this job has ended, and who is still there."""
        for key in list(self._there):
            self._tell_end(key)

    def _tell_end(self, key: str) -> None:
        event, since = self._there.pop(key)
        until = event.since + round(1000 * (self._clock() - since))
        self._events.add(NeighbourEvent(job_id=event.job_id, since=event.since, until=until))


def neighbour_warnings(events: list[NeighbourEvent]) -> list[str]:
    """Return a sentence for each job that ran beside this one, with how long."""
    seconds: dict[str | None, float] = {}
    for event in events:
        seconds.setdefault(event.job_id, 0.0)
        if event.until is not None:
            seconds[event.job_id] += (event.until - event.since) / 1000
    return [
        f"{neighbour_name(job_id)} ran on this machine at the same time{_for(overlap)}: both took from each other."
        for job_id, overlap in seconds.items()
    ]


def neighbour_name(job_id: str | None) -> str:
    """Return the begin of a sentence about a job; None: another user's, of which nothing is known."""
    return f"The job {job_id}" if job_id is not None else "Another user's job"


def _for(seconds: float) -> str:
    # 0: this job's agent was killed before it could say.
    return f", for {seconds:.1f} s" if seconds else ""


def _waits(names: list[str], others: list[Neighbour]) -> str:
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
