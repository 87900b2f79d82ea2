"""For how long this node has not reached the job store, and whether the other nodes do not reach it either.

While no node reaches it, no node is given up, and the job continues. If only one node does not reach the
store, the others give it up, and it ends itself after `limits.peer_silence`: two sets of processes must not
write into one folder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta

from bai_agent.job.descriptor import Limits
from bai_agent.job.peers import Peer
from bai_agent.job.schema.durations import format_duration
from bai_agent.peers.direct_question import PeerAnswer, ask_all

MISSED_SECONDS = 10.0
"""Seconds without a stored sign of life after which the store counts as unreachable: two signs are given
within that time."""
LOOK_SECONDS = 5.0
"""Seconds between two questions whether the others reach the store."""


class StoreAbsence:
    """One node's view of an unreachable store. A worker asks only the coordinator, so that a check costs the
    same for any number of nodes."""

    def __init__(self, *, rank: int, limits: Limits, clock: Callable[[], float]) -> None:
        self._rank, self._clock = rank, clock
        self._alone_limit = limits.peer_silence
        self._limit = max(limits.store_away, limits.peer_silence)
        self._reached = self._excused = clock()
        """Time at which the store was last reached, and time at which the others were last known not to reach
        it either."""
        self._peers: Sequence[Peer] = ()

    def reached(self) -> None:
        """Note that the store has accepted a request of this node."""
        self._reached = self._clock()

    def met(self, peers: Sequence[Peer]) -> None:
        """Note the other nodes, which may now give this node up."""
        self._peers = peers
        self._excused = max(self._excused, self._clock())

    def answer(self) -> PeerAnswer:
        """Return this node's answer to direct questions of others."""
        now = self._clock()
        alone_s = now - max(self._reached, self._excused)
        return PeerAnswer(rank=self._rank, store_s=max(0.0, now - self._reached), alone_s=max(0.0, alone_s))

    def too_long(self) -> str | None:
        """Return a sentence that says why this node must end itself; None if it need not."""
        return self.given_up() or self.away_too_long()

    def given_up(self) -> str | None:
        """Return a sentence if the other nodes reach the store and have given this one up; else None."""
        limit = self._alone_limit.total_seconds()
        if not self._peers or self._clock() - max(self._reached, self._excused) <= limit:
            return None
        return f"Node {self._rank} could not reach the job store for {limit:.0f} s: the other nodes have given it up."

    def away_too_long(self) -> str | None:
        """Return a sentence if the store has been unreachable for longer than the job allows; else None."""
        if self._clock() - self._reached <= self._limit.total_seconds():
            return None
        return (
            f"No node reached the job store for {format_duration(self._limit)} (limits.store_away), as far as "
            f"node {self._rank} knows."
            if self._peers
            else f"Node {self._rank} could not reach the job store for {_text(self._limit)}."
        )

    def look(self, ask: Callable[[Peer], PeerAnswer | None], *, ended: Collection[int] = ()) -> None:
        """If this node does not reach the store, ask the others. ended: ranks that are no longer waited
        for."""
        asked_at = self._clock()
        if not self._peers or asked_at - self._reached <= MISSED_SECONDS:
            return
        if self._peers[0].node != self._rank:
            answer = ask(self._peers[0])
            if answer is not None and answer.store_s > MISSED_SECONDS:
                # The coordinator has asked all nodes; its knowledge has this age.
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
