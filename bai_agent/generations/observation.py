"""The observations on which a decision about generations is based, apart from the policy.

Times are in seconds of the decider's clock unless a field says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from enum import Enum

from bai_agent.generations.policy import Policy
from bai_agent.job.generation_records import Ledger
from bai_agent.job.outcome import LOSSES, NOT_RESTORED, Outcome
from bai_agent.light_dataclass import dataclass

_OF_A_SIGNAL = 128


class Stage(Enum):
    """The state of a job between and during generations."""

    GATHERING = "gathering"
    """Nodes pull and join; no generation has run."""
    RUNNING = "running"
    """The newest generation has begun."""
    CHANGING = "changing"
    """The newest generation is decided but has not begun: its members stop, restore, and find ports."""
    PARKED = "parked"
    """No benchmark runs: too few nodes are left."""


@dataclass(frozen=True, kw_only=True)
class MemberEnd:
    """The end of a generation on one node."""

    outcome: Outcome
    code: int | None = None
    """The exit code of the process that failed. None if a signal ended it, or its end was not observed."""
    signal: int | None = None
    """The signal that ended it. None if it was not stopped."""
    ended_s: float
    """Time of the end."""

    @property
    def exit_status(self) -> int | None:
        """The exit code, with 128 and the signal's number for a signal, as shells have it. None if neither is known."""
        return _OF_A_SIGNAL + self.signal if self.signal is not None else self.code


@dataclass(frozen=True, kw_only=True)
class Member:
    """A node of the newest generation or, while the job is parked, a remaining node."""

    node: int
    end: MemberEnd | None = None
    """The end of that generation on this node. None while it has not."""
    silent_s: float = 0.0
    """Seconds since its last sign of life was observed, or since it last answered directly."""
    unheard_s: float | None = None
    """Seconds since then, including time without access to the store. None if it could observe all the
    time."""
    leaving_s: float | None = None
    """Seconds since it reported that it is about to lose its machine. None if it did not."""
    stopping_s: float | None = None
    """Seconds since it should have stopped the previous generation. None if it has stopped, or need not."""
    late_s: float | None = None
    """Seconds since it should have had the checkpoint of a generation that begins. None if it is not."""

    @property
    def has_succeeded(self) -> bool:
        return self.end is not None and self.end.outcome is Outcome.SUCCEEDED

    @property
    def has_failed(self) -> bool:
        """Whether it ended without success, and not because of another member."""
        return self.end is not None and self.end.outcome not in (Outcome.SUCCEEDED, Outcome.PEER_FAILED)

    @property
    def was_lost(self) -> bool:
        """Whether, by its own report, the node and not the benchmark was in trouble."""
        return self.end is not None and self.end.outcome in LOSSES

    @property
    def could_not_restore(self) -> bool:
        return self.end is not None and self.end.outcome is NOT_RESTORED

    def is_silent(self, policy: Policy) -> bool:
        return self.silent_s > policy.silence_s

    def is_missing(self, policy: Policy) -> bool:
        """Whether the member is lost. A node that has succeeded cannot be lost."""
        return self.was_lost or (self.is_silent(policy) and not self.has_succeeded)

    def gone_s(self, policy: Policy, *, now_s: float) -> float | None:
        """Return for how many seconds the member has been missing for the next generation; None if it is not
        missing."""
        if self.has_succeeded:
            return None
        if self.end is not None and self.was_lost:
            return max(0.0, now_s - self.end.ended_s)
        if self.is_missing(policy):
            return self.silent_s - policy.silence_s
        if self.stopping_s is not None and self.stopping_s > policy.stop_s:
            return self.stopping_s - policy.stop_s
        return self.leaving_s if self.late_s is None else self.late_s

    def may_be_gone_in(self, seconds: float, policy: Policy) -> bool:
        """Return whether the node would be lost after this time without news of it."""
        silent_s = 0.0 if self.has_succeeded else self.silent_s
        return silent_s + seconds > policy.silence_s or (self.stopping_s or 0.0) + seconds > policy.stop_s

    def lived_s(self, *, now_s: float) -> float:
        """Return the latest observed time at which the member was certainly alive."""
        signed_s = now_s - (self.silent_s if self.unheard_s is None else self.unheard_s)
        return min(signed_s, self.end.ended_s) if self.end is not None and self.was_lost else signed_s


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A node that has joined and gives fresh signs of life, but is not a member."""

    node: int
    end: MemberEnd | None = None
    """Why it could not prepare. None if it is ready."""
    joined_s: float = math.inf
    """Seconds since it joined, by the store's clock."""


@dataclass(frozen=True, kw_only=True)
class GenerationObservation:
    """The observations on which a decision is based, apart from the policy."""

    now_s: float
    running_s: float
    """Seconds since the first generation began, waiting included."""
    max_runtime_s: float | None = None
    """Seconds that the job may run. None if there is no limit."""
    members: Sequence[Member]
    """Members, in the order of their ranks."""
    ledger: Ledger = Ledger()
    stage: Stage = Stage.RUNNING
    generation: int = 0
    """Number of the newest generation that was decided on."""
    generation_s: float = 0.0
    """Seconds since it began. 0 if it has not."""
    waiting: Sequence[Waiting] = ()
    coming: Collection[int] = ()
    """Nodes that are still waited for before generation 0: they are pulling, or may yet give their first
    sign."""
    desired: int = 1
    """Desired number of nodes."""
    is_scaled: bool = False
    """Whether a request for another number is newer than the newest generation."""
    cancelled: bool = False
    time: int = 0
    """Now, by the store's clock (ms UTC)."""

    @property
    def all_ended(self) -> bool:
        return all(each.end is not None for each in self.members)

    def is_at(self, *stages: Stage) -> bool:
        return self.stage in stages
