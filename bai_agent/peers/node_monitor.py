"""Signs of life of a node and its view of the others: the common part of fixed and elastic jobs."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

from bai_agent.aws.s3_client import RetryPolicy
from bai_agent.job.attempt import AttemptRecord, Version
from bai_agent.job.descriptor import Limits
from bai_agent.job.peers import Peer
from bai_agent.peers.direct_question import PeerAnswer, ask_all, wake_all
from bai_agent.peers.store_absence import StoreAbsence
from bai_agent.runtime.poller import Poller
from bai_agent.runtime.stop import StopReason

SIGN_PATIENCE = RetryPolicy(
    retries=1,
    retry_for=timedelta(seconds=5),
    silence=timedelta(seconds=5),
    request=timedelta(seconds=5),
)
"""A request that hangs holds no sign up for so long that the node counts as lost: two are tried within that time."""
SIGN_SECONDS = 5.0
"""Between two signs of life, and between two looks."""
CHANGE_SECONDS = 1.0
"""Between two looks while a generation is about to begin, or its end is about to be settled."""
FRESH_SECONDS = 20.0
"""A node whose sign has changed within so long is there, and is waited for."""
GAP_SECONDS = 2 * SIGN_SECONDS
"""After so long without a look, such as while the store was away for all, the others get the time for new signs first."""


class SignAges:
    """How old each sign of life is, as far as that is known."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[int, tuple[Version, float]] = {}

    def observe(
        self, signs: Mapping[int, Version], *, own: Version | None = None, signed_s: float | None = None
    ) -> None:
        """Take note of the version of each rank's sign.

        own: of this node's last one, if it is known; signed_s: when it was given. A new one is as much older than it as the store says. Without
        `signed_s` that holds only for those that are seen for the first time, as a least age.
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
        """Return the age of a rank's last sign, as far as it is known; None: none was seen."""
        return self._clock() - self._seen[rank][1] if rank in self._seen else None


class NodeMonitor(Poller, ABC):
    """Gives this node's sign of life, and looks at what the others say. A `StopSource`."""

    def __init__(
        self,
        attempt: AttemptRecord,
        *,
        rank: int,
        limits: Limits,
        clock: Callable[[], float],
        ask: Callable[[Peer, bytes], PeerAnswer | None],
        pause_s: Callable[[], float] = lambda: SIGN_SECONDS,
    ) -> None:
        """rank: the node's number. pause_s: seconds between two looks, about."""
        super().__init__(
            self._observe_and_tell,
            name="peers",
            # Drawn anew each time, so that the nodes of a job do not ask together.
            pause_s=lambda: pause_s() * random.uniform(0.8, 1.2),  # noqa: S311
            failure="cannot look after the other nodes",
        )
        self.attempt = attempt
        self._rank = rank
        self._clock = clock
        self._changed = threading.Condition()
        self._ages = SignAges(clock=clock)
        self.absence = StoreAbsence(rank=rank, limits=limits, clock=clock)
        """For how long no sign of ours has reached the store."""
        self._silence_limit = limits.peer_silence.total_seconds()
        self._ask = ask
        self._key: bytes | None = None
        """Key of the job's nodes for direct questions to each other. None: they ask none."""
        self._peers: tuple[Peer, ...] = ()
        self._watching_since = self._looked = clock()
        """Since when there was no gap between two looks at the others, and when the last one was."""
        self.when_woken: Callable[[], None] = lambda: None
        """Called if another node has put something that concerns this one."""
        self.serves = False
        """Whether this node's part is over when the job is."""
        self.phase = "prepare"
        self.silent_s = 0.0
        """For how long the benchmark of this node has printed nothing."""

    @property
    def limits_runtime(self) -> bool:
        """Whether this node ends its benchmark when the job's time is over, rather than be told."""
        return not self.serves

    @abstractmethod
    def reason(self, running_s: float | None) -> StopReason | None:
        """Return why what the other nodes did ends the run here, or the generation that runs; None if nothing does."""

    @abstractmethod
    def all_silent(self, silence_s: float) -> bool:
        """Return as the node that decides whether the benchmark of no other node has printed anything for so long."""

    @abstractmethod
    def look_for_store(self) -> None:
        """Ask the other nodes whether they miss the store too, if this node does."""

    @abstractmethod
    def observe(self) -> None:
        """Give a sign of life and look once. Raises BaiError if the store cannot be reached, or its content cannot be read."""

    def wait_for_change(self) -> None:
        """Return after the next look, within a second."""
        with self._changed:
            self._changed.wait(timeout=1.0)

    def woken(self) -> None:
        """Look now: another node has woken this one."""
        self.look_now()
        self.when_woken()

    def wake(self, peers: Iterable[Peer]) -> None:
        """Let other nodes look now: something that they wait for was put. They find it at their next look anyway."""
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

    def _ask_directly(self, peer: Peer) -> PeerAnswer | None:
        return self._ask(peer, self._key) if self._key is not None else None

    def _answers(self, peers: Iterable[Peer]) -> dict[int, float]:
        """Return for how many seconds each of these nodes that answers directly has not reached the store."""
        answers = ask_all(peers, self._ask_directly)
        return {node: each.store_s for node, each in answers.items() if each is not None}
