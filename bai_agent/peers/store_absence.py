"""For how long the job store has been out of this node's reach, and whether the other nodes miss it too.

While all do, nobody is given up, and the job goes on. A node that misses it alone is given up by the others, so it ends itself
after `limits.peer_silence`: no two sets of processes are to write one folder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta

from bai_agent.job.descriptor import Limits
from bai_agent.job.peers import Peer
from bai_agent.job.schema.durations import format_duration
from bai_agent.peers.direct_question import PeerAnswer, ask_all

MISSED_SECONDS = 10.0
"""The store is out of reach after so long without a sign of life that it took: two are given within that time."""
LOOK_SECONDS = 5.0
"""Between two looks whether the others miss the store too."""


class StoreAbsence:
    """One node's view of an absent store. A worker asks only the coordinator, so that a look costs the same for any number of nodes."""

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
        return self.given_up() or self.away_too_long()

    def given_up(self) -> str | None:
        """Return in a sentence that the others, which reach the store, have given this node up; None if they have not."""
        limit = self._alone_limit.total_seconds()
        if not self._peers or self._clock() - max(self._reached, self._excused) <= limit:
            return None
        return f"Node {self._rank} could not reach the job store for {limit:.0f} s: the other nodes have given it up."

    def away_too_long(self) -> str | None:
        """Return in a sentence that the store has been away for longer than the job allows; None if it has not."""
        if self._clock() - self._reached <= self._limit.total_seconds():
            return None
        return (
            f"No node reached the job store for {format_duration(self._limit)} (limits.store_away), as far as "
            f"node {self._rank} knows."
            if self._peers
            else f"Node {self._rank} could not reach the job store for {_text(self._limit)}."
        )

    def look(self, ask: Callable[[Peer], PeerAnswer | None], *, ended: Collection[int] = ()) -> None:
        """Ask the others if this node misses the store. ended: ranks that are no longer waited for."""
        asked_at = self._clock()
        if not self._peers or asked_at - self._reached <= MISSED_SECONDS:
            return
        if self._peers[0].node != self._rank:
            answer = ask(self._peers[0])
            if answer is not None and answer.store_s > MISSED_SECONDS:
                # The coordinator has asked all; what it knows is so old.
                self._excuse(asked_at - answer.alone_s)
            return
        others = [each for each in self._peers if each.node != self._rank and each.node not in ended]
        answers = ask_all(others, ask).values()
        if all(each is not None and each.store_s > MISSED_SECONDS for each in answers):
            self._excuse(asked_at)

    def _excuse(self, at: float) -> None:
        self._excused = max(self._excused, at)


def _text(limit: timedelta) -> str:
    return f"limits.store_away ({format_duration(limit)})"
