"""The common part of the monitors of fixed and elastic jobs. The common part writes the node's heartbeats and
watches the heartbeats of the other nodes. It also measures for how long the node has not reached the job
store."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta

from bai_agent.aws.s3_client import RetryPolicy
from bai_agent.job.attempt import AttemptRecord, Version
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.peers import Peer
from bai_agent.job.schema.durations import format_duration
from bai_agent.peers.direct_question import PeerAnswer, ask_all, wake_all
from bai_agent.runtime.poller import Poller
from bai_agent.runtime.stop import StopReason

SIGN_PATIENCE = RetryPolicy(
    retries=1,
    retry_for=timedelta(seconds=5),
    silence=timedelta(seconds=5),
    request=timedelta(seconds=5),
)
"""Time limits of one request to the job store. The limits are so short that a second request is possible
after a request that hangs, before the node counts as lost."""
SIGN_SECONDS = 5.0
"""Seconds between two heartbeats of a node, and between two of its checks of the store."""
CHANGE_SECONDS = 1.0
"""Seconds between two checks of the store while a generation is about to begin or to end."""
FRESH_SECONDS = 20.0
"""A node whose last heartbeat is at most this old counts as alive (seconds)."""
GAP_SECONDS = 2 * SIGN_SECONDS
"""Time without a check of the store after which this node measures the silence of other nodes anew (seconds).
In the time without a check, possibly no node reached the store."""
MISSED_SECONDS = 10.0
"""Time without a stored heartbeat after which the store counts as unreachable for a node (seconds). A node
normally stores two heartbeats in this time."""
_ASK_SECONDS = 5.0
"""Seconds between two requests that ask other nodes whether they reach the store, while this node does not
reach the store."""


class SignAges:
    """Knows the age of each node's last heartbeat."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[int, tuple[Version, float]] = {}

    def observe(
        self, signs: Mapping[int, Version], *, own: Version | None = None, signed_s: float | None = None
    ) -> None:
        """Record the version of each rank's heartbeat.

        own: version of this node's last heartbeat, if known; signed_s: time at which this node wrote that
        heartbeat. The age of another node's heartbeat is computed from the times at which the store received
        that heartbeat and this node's own heartbeat. If `signed_s` is None, the times are used only for a
        node's first known heartbeat, and give a minimum age.
        """
        now = self._clock()
        for rank, version in signs.items():
            is_first = rank not in self._seen
            if not is_first and self._seen[rank][0] == version:
                continue
            given_s = now
            if own is not None and (is_first or signed_s is not None):
                given_s = (now if signed_s is None else signed_s) + (version[0] - own[0]) / 1000
            self._seen[rank] = (version, min(now, given_s))

    def age_s(self, rank: int) -> float | None:
        """Return the known age of a rank's last heartbeat; None if no heartbeat was seen."""
        return self._clock() - self._seen[rank][1] if rank in self._seen else None


class StoreAbsence:
    """Measures for how long one node has not reached the job store, and whether the other nodes reach the
    store.

    The job continues while no node reaches the store, and no node counts as lost. A node counts as lost for
    the other nodes if only this node does not reach the store. The node then ends itself after
    `limits.peer_silence`, because its processes and those of a replacement must not write into one folder. A
    worker asks only the coordinator, so that the cost of a check does not depend on the number of nodes.
    """

    def __init__(self, *, rank: int, limits: Limits, clock: Callable[[], float]) -> None:
        self._rank, self._clock = rank, clock
        self._alone_limit = limits.peer_silence
        self._limit = max(limits.store_away, limits.peer_silence)
        self._reached = self._excused = clock()
        """`_reached`: time at which the store was last reached. `_excused`: last time at which this node knew
        that the other nodes did not reach the store."""
        self._peers: Sequence[Peer] = ()

    def reached(self) -> None:
        """Record that the store has accepted a request of this node."""
        self._reached = self._clock()

    def met(self, peers: Sequence[Peer]) -> None:
        """Set the nodes of the job. From now on, this node can count as lost for the other nodes."""
        self._peers = peers
        self._excused = max(self._excused, self._clock())

    def answer(self) -> PeerAnswer:
        """Return this node's answer to a direct request of another node."""
        now = self._clock()
        alone_s = now - max(self._reached, self._excused)
        return PeerAnswer(rank=self._rank, store_s=max(0.0, now - self._reached), alone_s=max(0.0, alone_s))

    def too_long(self) -> str | None:
        """Return a sentence that says why this node must end itself; None if the node can continue."""
        return self.given_up() or self.away_too_long()

    def given_up(self) -> str | None:
        """Return a sentence if this node counts as lost for the other nodes, because they reach the store and
        this node does not. Return None otherwise."""
        limit = self._alone_limit.total_seconds()
        if not self._peers or self._clock() - max(self._reached, self._excused) <= limit:
            return None
        return f"Node {self._rank} could not reach the job store for {limit:.0f} s, so the other nodes no longer wait for it."

    def away_too_long(self) -> str | None:
        """Return a sentence if the store has been unreachable for longer than the job allows. None
        otherwise."""
        if self._clock() - self._reached <= self._limit.total_seconds():
            return None
        return (
            f"No node reached the job store for {format_duration(self._limit)} (limits.store_away), as far as "
            f"node {self._rank} knows."
            if self._peers
            else f"Node {self._rank} could not reach the job store for limits.store_away ({format_duration(self._limit)})."
        )

    def look(self, ask: Callable[[Peer], PeerAnswer | None], *, ended: Collection[int] = ()) -> None:
        """Ask other nodes whether they reach the store, if this node does not reach it. ended: ranks whose
        part of the job has ended, which are not asked."""
        asked_at = self._clock()
        if not self._peers or asked_at - self._reached <= MISSED_SECONDS:
            return
        if self._peers[0].node != self._rank:
            answer = ask(self._peers[0])
            if answer is not None and answer.store_s > MISSED_SECONDS:
                # The coordinator asks all nodes. The coordinator learned `alone_s` seconds ago that no node
                # reaches the store.
                self._excuse(asked_at - answer.alone_s)
            return
        others = [each for each in self._peers if each.node != self._rank and each.node not in ended]
        answers = ask_all(others, ask).values()
        if all(each is not None and each.store_s > MISSED_SECONDS for each in answers):
            self._excuse(asked_at)

    def _excuse(self, at: float) -> None:
        self._excused = max(self._excused, at)


class NodeMonitor(Poller, ABC):
    """Writes this node's heartbeats and reads those of the other nodes. The monitor is a `StopSource` of the
    run."""

    def __init__(
        self,
        attempt: AttemptRecord,
        *,
        rank: int,
        limits: Limits,
        clock: Callable[[], float],
        ask: Callable[[Peer, bytes], PeerAnswer | None],
    ) -> None:
        """rank: the node's number."""
        super().__init__(
            self._observe_and_tell,
            name="peers",
            # The pause is random each time, so that the nodes of a job do not all send their requests at the
            # same moment.
            pause_s=lambda: self._until_next_s() * random.uniform(0.8, 1.2),  # noqa: S311
            failure="cannot watch the other nodes",
        )
        self.attempt = attempt
        self._rank = rank
        self._clock = clock
        self._changed = threading.Condition()
        self._ages = SignAges(clock=clock)
        self.absence = StoreAbsence(rank=rank, limits=limits, clock=clock)
        """State of this node's connection to the store."""
        self._silence_limit = limits.peer_silence.total_seconds()
        self._ask = ask
        self._key: bytes | None = None
        """Secret key with which the job's nodes sign requests to each other. None if the nodes send no
        requests to each other."""
        self._answered: dict[int, float] = {}
        """Time at which each silent node last reached the store, according to the node's own answer."""
        self._peers: tuple[Peer, ...] = ()
        self._watched_from = clock()
        """Time from which the silence of a node without any heartbeat is measured."""
        self._watching_since = self._looked = clock()
        """`_watching_since`: time since which this node has checked the other nodes without an interruption.
        `_looked`: time of the last check of the other nodes."""
        self.when_woken: Callable[[], None] = lambda: None
        """Function that is called after another node has woken this node."""
        self.serves = False
        """Whether this node runs a server, which ends together with the job."""
        self.phase = "prepare"
        self.silent_s = 0.0
        """Time for which the benchmark of this node has printed nothing (seconds)."""

    @property
    def limits_runtime(self) -> bool:
        """Whether this node stops its benchmark by itself at `limits.max_runtime`, without an order from
        another node."""
        return not self.serves

    @abstractmethod
    def reason(self, running_s: float | None) -> StopReason | None:
        """Return why events on the other nodes end this node's run or generation; None if no such event has
        occurred."""

    @abstractmethod
    def all_silent(self, silence_s: float) -> bool:
        """Return whether the benchmarks of all other nodes have printed nothing for `silence_s` seconds.
        Return False on nodes that do not decide for the job."""

    @abstractmethod
    def _ended_nodes(self) -> Collection[int]:
        """Return the nodes whose part of the job has ended, as far as this node knows."""

    @abstractmethod
    def _is_change_near(self) -> bool:
        """Return whether the start, end or decision for which this node waits will probably be in the store
        soon."""

    @abstractmethod
    def observe(self) -> None:
        """Write a heartbeat and check the store once. Raises BaiError if the store cannot be reached or the
        store's content cannot be read."""

    def look_for_store(self) -> None:
        """Ask other nodes whether they reach the store, if this node does not reach the store."""
        self.absence.look(self._ask_directly, ended=self._ended_nodes())

    def start_looking_for_store(self) -> None:
        """Call `look_for_store` regularly on a separate thread, because the thread that writes heartbeats can
        hang in a network request."""
        Poller(
            self.look_for_store,
            name="store absence",
            pause_s=lambda: _ASK_SECONDS,
            failure="cannot ask the other nodes whether they reach the job store",
        ).start()

    def met(self, peers: Sequence[Peer], *, key: bytes | None = None) -> None:
        """Set the nodes that work together from now on. key: secret with which these nodes sign requests to
        each other."""
        self._peers, self._key = tuple(peers), key
        self.absence.met(self._peers)

    def wait_for_change(self) -> None:
        """Return after the monitor's next check, or after one second."""
        with self._changed:
            self._changed.wait(timeout=1.0)

    def woken(self) -> None:
        """Check the store at once, because another node has woken this node."""
        self.look_now()
        self.when_woken()

    def wake(self, peers: Iterable[Peer]) -> None:
        """Wake other nodes after this node has written an object for which they wait. Nodes that do not get
        the wake-up find the object at their next check."""
        if self._key is not None:
            wake_all([each for each in peers if each.node != self._rank], self._key)

    def _observe_and_tell(self) -> None:
        try:
            self.observe()
        finally:
            with self._changed:
                self._changed.notify_all()

    def _observe_signs(
        self, signs: Mapping[int, Version], *, own: Version | None, signed_s: float | None = None
    ) -> None:
        now = self._clock()
        if now - self._looked > GAP_SECONDS:
            self._watching_since = now
        self._looked = now
        self._ages.observe(signs, own=own, signed_s=signed_s)

    def _until_next_s(self) -> float:
        return CHANGE_SECONDS if self._is_change_near() else SIGN_SECONDS

    def _unheard_s(self, node: int) -> float:
        """Return for how long a node has neither written a heartbeat nor answered a direct request
        (seconds)."""
        return self._quiet_s(node, self._ages, since_s=self._watched_from)

    def _silent_s(self, node: int) -> float:
        """Return for how long a node has been silent, as `_unheard_s` does, but count only the time in which
        this node could check the store (seconds)."""
        return min(self._unheard_s(node), self._clock() - self._watching_since)

    def _quiet_s(self, node: int, ages: SignAges, *, since_s: float) -> float:
        """Return for how long a node has neither written a heartbeat in `ages` nor answered a direct request
        (seconds). since_s: start of the silence of a node that has never written a heartbeat."""
        if node == self._rank:
            return 0.0
        now = self._clock()
        age_s, answered = ages.age_s(node), self._answered.get(node)
        unheard_s = now - since_s if age_s is None else age_s
        return unheard_s if answered is None else min(unheard_s, now - answered)

    def _ask_directly(self, peer: Peer) -> PeerAnswer | None:
        return self._ask(peer, self._key) if self._key is not None else None


def never_joined(nodes: Sequence[int], limit: timedelta) -> str:
    """Return a phrase about nodes that did not join within the limit."""
    who = f"Node {nodes[0]}" if len(nodes) == 1 else f"Nodes {', '.join(map(str, nodes))}"
    return f"{who} sent no heartbeat for limits.join ({format_duration(limit)})"
