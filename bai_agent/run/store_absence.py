"""For how long the job store has been out of this node's reach, and whether the other nodes miss it too.

While all do, nobody is given up, and the job goes on. A node that misses it alone is given up by the others, so it ends itself
after `limits.peer_silence`: no two sets of processes are to write one folder.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta

from bai_agent.job.attempt import COORDINATOR
from bai_agent.job.descriptor import Limits
from bai_agent.job.durations import format_duration
from bai_agent.job.peers import Peer
from bai_agent.run.direct_question import PeerAnswer, ask_all

log = logging.getLogger(__name__)

MISSED_SECONDS = 10.0
"""The store is out of reach after so long without a sign of life that it took: two are given within that time."""
_LOOK_SECONDS = 5.0


class StoreAbsence:
    """Of one node. A worker asks the coordinator alone, so that a look costs the same however many nodes there are."""

    def __init__(self, *, rank: int, limits: Limits, clock: Callable[[], float]) -> None:
        self._rank, self._clock = rank, clock
        self._alone_limit = limits.peer_silence
        self._limit = max(limits.store_away, limits.peer_silence)
        self._reached = self._excused = clock()
        """When the store was last reached, and when the others were last known not to reach it either."""
        self._peers: Sequence[Peer] = ()

    def reached(self) -> None:
        """Take note that the store has taken something of this node."""
        self._reached = self._clock()

    def met(self, peers: Sequence[Peer]) -> None:
        """Know the others: from now on they may give this node up."""
        self._peers = peers
        self._excused = max(self._excused, self._clock())

    def answer(self) -> PeerAnswer:
        """Return what this node tells others that ask it directly."""
        now = self._clock()
        alone_s = now - max(self._reached, self._excused)
        return PeerAnswer(rank=self._rank, store_s=max(0.0, now - self._reached), alone_s=max(0.0, alone_s))

    def too_long(self) -> str | None:
        """Return why this node has to end itself, in a sentence; None if it has not."""
        now = self._clock()
        limit = self._alone_limit.total_seconds()
        if self._peers and now - max(self._reached, self._excused) > limit:
            return f"Node {self._rank} could not reach the job store for {limit:.0f} s: the other nodes have given it up."
        if now - self._reached > self._limit.total_seconds():
            return (
                f"No node reached the job store for {format_duration(self._limit)} (limits.store_away), as far as "
                f"node {self._rank} knows."
                if self._peers
                else f"Node {self._rank} could not reach the job store for {_text(self._limit)}."
            )
        return None

    def look(self, ask: Callable[[Peer], PeerAnswer | None], *, ended: Collection[int] = ()) -> None:
        """Ask the others if this node misses the store. ended: ranks that nobody waits for any more."""
        asked_at = self._clock()
        if not self._peers or asked_at - self._reached <= MISSED_SECONDS:
            return
        if self._rank != COORDINATOR:
            answer = ask(self._peers[COORDINATOR])
            if answer is not None and answer.store_s > MISSED_SECONDS:
                # The coordinator has asked all; what it knows is so old.
                self._excuse(asked_at - answer.alone_s)
            return
        others = [each for each in self._peers if each.rank != self._rank and each.rank not in ended]
        answers = ask_all(others, ask).values()
        if all(each is not None and each.store_s > MISSED_SECONDS for each in answers):
            self._excuse(asked_at)

    def _excuse(self, at: float) -> None:
        self._excused = max(self._excused, at)


class AbsenceWatch(threading.Thread):
    """Looks on a thread of its own: a sign of life may hang for as long as the network does."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__(name="store absence", daemon=True)
        self._look = look
        self._over = threading.Event()

    def end(self) -> None:
        self._over.set()

    def run(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            try:
                self._look()
            except Exception:
                # The thread's outermost frame: without it a job would end where the store is away for all.
                log.exception("the other nodes could not be asked for the job store")


def _text(limit: timedelta) -> str:
    return f"limits.store_away ({format_duration(limit)})"
