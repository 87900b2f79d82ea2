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
"""Seconds for one request: if it hangs, a second one is still possible before the node counts as lost."""
SIGN_SECONDS = 5.0
"""Seconds between two signs of life, and between two looks."""
CHANGE_SECONDS = 1.0
"""Seconds between two looks while a generation is about to begin, or its end is about to be settled."""
FRESH_SECONDS = 20.0
"""Seconds since its last sign within which a node counts as alive, and is waited for."""
GAP_SECONDS = 2 * SIGN_SECONDS
"""Seconds without a look, for example while no node reached the store, after which the others first get time
for new signs."""


class SignAges:
    """The age of each node's last sign of life, as far as it is known."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[int, tuple[Version, float]] = {}

    def observe(
        self, signs: Mapping[int, Version], *, own: Version | None = None, signed_s: float | None = None
    ) -> None:
        """Note the version of each rank's sign.

        own: version of this node's last sign, if known; signed_s: time at which it was given. Other signs are
        older or newer than it by the difference of the store's times. Without `signed_s` this applies only to
        signs that are seen for the first time, as a minimum age.
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
        """Return the age of a rank's last sign, as far as it is known; None if none was seen."""
        return self._clock() - self._seen[rank][1] if rank in self._seen else None


class NodeMonitor(Poller, ABC):
    """Gives this node's sign of life, and reads those of the others. A `StopSource`."""

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
        """rank: the node's number. pause_s: approximate seconds between two looks."""
        super().__init__(
            self._observe_and_tell,
            name="peers",
            # Random each time, so that the nodes of a job do not ask together.
            pause_s=lambda: pause_s() * random.uniform(0.8, 1.2),  # noqa: S311
            failure="cannot look after the other nodes",
        )
        self.attempt = attempt
        self._rank = rank
        self._clock = clock
        self._changed = threading.Condition()
        self._ages = SignAges(clock=clock)
        self.absence = StoreAbsence(rank=rank, limits=limits, clock=clock)
        """For how long no sign of this node has reached the store (seconds)."""
        self._silence_limit = limits.peer_silence.total_seconds()
        self._ask = ask
        self._key: bytes | None = None
        """Key of the job's nodes for direct questions to each other. None: they ask none."""
        self._peers: tuple[Peer, ...] = ()
        self._watching_since = self._looked = clock()
        """Since when the others were checked without a gap, and the time of the last check."""
        self.when_woken: Callable[[], None] = lambda: None
        """Called if another node has written an object that concerns this one."""
        self.serves = False
        """Whether this node's part ends together with the job."""
        self.phase = "prepare"
        self.silent_s = 0.0
        """For how long the benchmark of this node has printed nothing (seconds)."""

    @property
    def limits_runtime(self) -> bool:
        """Whether this node itself ends its benchmark when the job's time is over, rather than being told."""
        return not self.serves

    @abstractmethod
    def reason(self, running_s: float | None) -> StopReason | None:
        """Return why events on the other nodes end the run here, or the generation that runs; None if none
        does."""

    @abstractmethod
    def all_silent(self, silence_s: float) -> bool:
        """Return, on the node that decides, whether the benchmarks of all other nodes have printed nothing
        for so long."""

    @abstractmethod
    def look_for_store(self) -> None:
        """If this node does not reach the store, ask the other nodes whether they do."""

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
        """Wake other nodes: this node has written an object that they wait for. Without the wake they find it
        at their next look."""
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
