"""Other jobs that run on this machine at the same time, and waiting for them.

A job that runs holds an abstract Unix socket whose name says which job it is: unix(7). The kernel lists these names to every
user in /proc/net/unix, and takes one away with the process that holds it. So nothing stale is left by `kill -9`, and no folder
has to be writable for all users. Names are those of a network namespace: jobs in containers with networks of their own do not
see each other.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from bai_agent.job.events import EventLog
from bai_agent.job.record_types import NeighbourEvent, WaitEvent
from bai_agent.job.run_directory import now_ms
from bai_agent.run.background import beside
from bai_agent.run.clock import Clock

log = logging.getLogger(__name__)

MACHINE = "BAI_MACHINE"
"""Environment variable: jobs with another value of it count as on another machine."""

_LOOK_SECONDS = 1.0
_WAIT_SECONDS = 0.5
_NAMES = Path("/proc/net/unix")
_MOST_BYTES = 2**24
_MOST = 16
"""Neighbours that are told of."""
_ID_CHARACTERS = 60
"""Of a job id, which stands in a name of at most 107 bytes."""
_NAME = re.compile(
    r"@bai-([0-9a-f]{8})/([0-9a-f]{8})/(runs|next)/(\d{1,15})/([A-Za-z0-9][A-Za-z0-9._-]*)$", re.ASCII
)


class Use(Enum):
    """What a job does on a machine."""

    RUNS = "runs"
    NEXT = "next"
    """It is to have the machine for itself, and has not begun."""


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """Another job on this machine."""

    job_id: str
    """Its beginning, where it is long."""
    key: str
    since: int
    """ms UTC."""
    use: Use


@dataclass(frozen=True, kw_only=True)
class Me:
    """This job, as others see it."""

    job_id: str
    key: str
    machine: str = ""

    @classmethod
    def of(cls, job_id: str, *, place: str, environment: Mapping[str, str] = os.environ) -> Me:
        """place: where the job's record is, as two stores may have jobs of one id."""
        key = _digest(f"{place}\0{job_id}")
        return cls(job_id=job_id, key=key, machine=environment.get(MACHINE, ""))

    def announce(self, use: Use) -> socket.socket | None:
        """Return what tells the others of this job as long as it is open; None where that cannot be."""
        return _bind(f"{self._prefix}/{self.key}/{use.value}/{now_ms()}/{self.job_id[:_ID_CHARACTERS]}")

    def take_machine(self) -> socket.socket | None:
        """Return what keeps others from having this machine for themselves; None where one of them has it."""
        return _bind(f"{self._prefix}/alone")

    def others(self, names: Path = _NAMES) -> list[Neighbour]:
        """Return the other jobs on this machine, the oldest first. Raises OSError."""
        found: dict[str, Neighbour] = {}
        machine = _digest(self.machine)
        with names.open(encoding="ascii", errors="replace") as file:
            for line in file.readlines(_MOST_BYTES):
                match = _NAME.search(line.rstrip("\n")) if "@bai-" in line else None
                if match is None or match[1] != machine or match[2] == self.key:
                    continue
                each = Neighbour(job_id=match[5], key=match[2], use=Use(match[3]), since=int(match[4]))
                # A job has one for each of its nodes here.
                if each.key not in found or each.since < found[each.key].since:
                    found[each.key] = each
        return sorted(found.values(), key=lambda each: (each.since, each.job_id))

    @property
    def _prefix(self) -> str:
        return f"bai-{_digest(self.machine)}"


def wait_until_alone(
    me: Me,
    *,
    tell: Callable[[WaitEvent], None],
    stopping: Callable[[], bool],
    clock: Clock,
) -> list[socket.socket]:
    """Return when no other job runs on this machine, or when `stopping()`: what keeps others away as long as it is open.

    `tell` hears for whom it waits, once for each change. Waits without a bound: a job takes as long as it takes.
    """
    held: list[socket.socket] = []
    told: list[str] = []
    while not stopping():
        if not held and (taken := me.take_machine()) is not None:
            announced = me.announce(Use.NEXT)
            held = [taken, *([announced] if announced is not None else [])]
        try:
            others = [each for each in me.others() if not held or each.use is Use.RUNS]
        except OSError as error:
            log.warning("other jobs on this machine cannot be seen: %s", error)
            return held
        if held and not others:
            return held
        names = [each.job_id for each in others] or ["another job"]
        if names != told:
            told = names
            tell(
                WaitEvent(jobs=names[:_MOST], message=f"Waits until this machine is free: {_listed(names)}.")
            )
        clock.sleep(_WAIT_SECONDS)
    return held


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
        self._seen: set[str] = set()
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
        keys = {each.key for each in others}
        for key in [key for key in self._there if key not in keys]:
            self._tell_end(key)
        for each in others:
            if each.key not in self._there and (each.key in self._seen or len(self._seen) < _MOST):
                self._seen.add(each.key)
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
    seconds: dict[str, float] = {}
    for event in events:
        seconds.setdefault(event.job_id, 0.0)
        if event.until is not None:
            seconds[event.job_id] += (event.until - event.since) / 1000
    return [
        f"The job {job_id} ran on this machine at the same time{_for(overlap)}: both took from each other."
        for job_id, overlap in seconds.items()
    ]


def _for(seconds: float) -> str:
    # 0: this job's agent was killed before it could say.
    return f", for {seconds:.1f} s" if seconds else ""


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown}{f' and {len(names) - 3} more' if len(names) > 3 else ''} {'runs' if len(names) == 1 else 'run'} here"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]


def _bind(name: str) -> socket.socket | None:
    """Return a socket with an abstract name; None where another one has it."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind(f"\0{name}")
    except OSError as error:
        holder.close()
        if error.errno != errno.EADDRINUSE:
            log.warning("this job cannot be seen by others on this machine: %s", error)
        return None
    return holder
