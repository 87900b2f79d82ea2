"""A work queue for tasks that the poll loop must not wait for. The queue runs several tasks at the same time,
runs tasks with the same key in order, and retries tasks."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from bai_agent.backoff import Backoff
from bai_agent.light_dataclass import dataclass, field

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class LaterError(Exception):
    """Raised by a task that cannot be done now and is to be retried later."""

    def __init__(self, reason: str, *, after_s: float | None = None) -> None:
        """after_s: time until the next attempt (seconds). None if the task failed, in which case the pause
        grows with each failed attempt."""
        super().__init__(reason)
        self.after_s = after_s


@dataclass
class _Lane:
    waiting: deque[str] = field(default_factory=deque)
    busy: bool = False


class KeyedWorkQueue:
    """Runs named tasks on a bounded number of threads. Tasks with the same key begin in the order of their
    arrival, and never run at the same time. A retried task goes to the end of its key's queue.
    """

    def __init__(
        self,
        work: Callable[[str], None],
        *,
        at_once: int,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """work: function that runs a task. `work` raises LaterError if the task is to be retried, and must
        not raise any other exception."""
        self._work = work
        self._clock = clock
        self._changed = threading.Condition()
        self._lanes: dict[str, _Lane] = {}
        self._ready: deque[str] = deque()
        self._later: list[tuple[float, str, str]] = []
        self._backoffs: dict[str, Backoff] = {}
        self._known: set[str] = set()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(at_once)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def add(self, lane: str, piece: str) -> bool:
        """Add a task; return False if the same task is already waiting or running."""
        with self._changed:
            if piece in self._known or self._stopping:
                return False
            self._known.add(piece)
            self._enqueue(lane, piece)
        return True

    @property
    def waiting(self) -> int:
        """Number of tasks that are not done yet."""
        return len(self._known)

    def stop(self, *, timeout_s: float) -> bool:
        """Begin no more tasks, and wait for the running tasks; return whether the running tasks finished in
        time."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        deadline = self._clock() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - self._clock()))
        return not any(thread.is_alive() for thread in self._threads)

    def _enqueue(self, lane: str, piece: str) -> None:
        found = self._lanes.setdefault(lane, _Lane())
        found.waiting.append(piece)
        if not found.busy and len(found.waiting) == 1:
            self._ready.append(lane)
        self._changed.notify()

    def _run(self) -> None:
        while (turn := self._next()) is not None:
            lane, piece = turn
            later: LaterError | None = None
            try:
                self._work(piece)
            except LaterError as error:
                later = error
                if error.after_s is None:
                    log.warning("%s: %s; it is tried again", piece, error)
            except Exception:
                # An unexpected error must not end the thread.
                log.exception("%s ended by a defect", piece)
            self._done(lane, piece, later=later)

    def _next(self) -> tuple[str, str] | None:
        with self._changed:
            while not self._stopping:
                now = self._clock()
                while self._later and self._later[0][0] <= now:
                    _, lane, piece = heapq.heappop(self._later)
                    self._enqueue(lane, piece)
                if self._ready:
                    lane = self._ready.popleft()
                    self._lanes[lane].busy = True
                    # This thread may have been waiting for the time of a later task, so another thread is
                    # woken to wait for that task.
                    self._changed.notify()
                    return lane, self._lanes[lane].waiting.popleft()
                self._changed.wait(self._later[0][0] - now if self._later else None)
            return None

    def _done(self, lane: str, piece: str, *, later: LaterError | None) -> None:
        with self._changed:
            if later is not None:
                pause = later.after_s
                if pause is None:
                    pause = self._backoffs.setdefault(piece, Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)).next()
                else:
                    self._backoffs.pop(piece, None)
                heapq.heappush(self._later, (self._clock() + pause, lane, piece))
            else:
                self._backoffs.pop(piece, None)
                self._known.discard(piece)
            found = self._lanes[lane]
            found.busy = False
            if found.waiting:
                self._ready.append(lane)
            else:
                del self._lanes[lane]
            self._changed.notify()
