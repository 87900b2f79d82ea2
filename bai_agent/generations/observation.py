"""The observations about a job on which a decision about generations is based.

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
    """The benchmark runs: the newest generation has begun."""
    CHANGING = "changing"
    """A new generation is decided but has not begun. Its members stop the previous generation, restore a
    checkpoint, and find ports."""
    PARKED = "parked"
    """No benchmark runs, because too few nodes are left."""


@dataclass(frozen=True, kw_only=True)
class MemberEnd:
    """The end of a generation on one node."""

    outcome: Outcome
    code: int | None = None
    """The exit code of the process that failed. None if a signal ended the process, or the end of the process
    was not observed."""
    signal: int | None = None
    """The signal that ended the process. None if no signal ended the process."""
    ended_s: float
    """Time at which the generation ended on the node."""

    @property
    def exit_status(self) -> int | None:
        """The exit code; 128 plus the signal's number if a signal ended the process, as in shells. None if
        the exit code and the signal are unknown."""
        return _OF_A_SIGNAL + self.signal if self.signal is not None else self.code


@dataclass(frozen=True, kw_only=True)
class Member:
    """A node of the newest generation. While the job is parked (waits for more nodes), a remaining node."""

    node: int
    end: MemberEnd | None = None
    """How the newest generation ended on this node. None until the generation has ended on this node."""
    silent_s: float = 0.0
    """Seconds since the member's last heartbeat was observed, or since the member last answered a direct
    request."""
    unheard_s: float | None = None
    """The same seconds as `silent_s`, but including the time in which this node could not read the store.
    None if this node could always read the store."""
    leaving_s: float | None = None
    """Seconds since the member reported that it is about to lose its machine. None if the member did not
    report a loss."""
    stopping_s: float | None = None
    """Seconds since the member should have stopped the previous generation. None if the member has stopped or
    does not have to stop."""
    late_s: float | None = None
    """Seconds since the time limit for the member to restore the checkpoint of the next generation. None if
    the member has not exceeded the limit."""

    @property
    def has_succeeded(self) -> bool:
        return self.end is not None and self.end.outcome is Outcome.SUCCEEDED

    @property
    def has_failed(self) -> bool:
        """Whether the generation failed on this member itself, and not because of another member."""
        return self.end is not None and self.end.outcome not in (Outcome.SUCCEEDED, Outcome.PEER_FAILED)

    @property
    def was_lost(self) -> bool:
        """Whether the node reported that the node, and not the benchmark, had a problem."""
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
        """Return for how many seconds the member has been unavailable for the next generation. Return None if
        the member is available."""
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
        """Return whether the node would count as lost if the node wrote no heartbeat for another `seconds`
        seconds."""
        silent_s = 0.0 if self.has_succeeded else self.silent_s
        return silent_s + seconds > policy.silence_s or (self.stopping_s or 0.0) + seconds > policy.stop_s

    def lived_s(self, *, now_s: float) -> float:
        """Return the latest observed time at which the member was certainly alive."""
        signed_s = now_s - (self.silent_s if self.unheard_s is None else self.unheard_s)
        return min(signed_s, self.end.ended_s) if self.end is not None and self.was_lost else signed_s


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A node that has joined the job and writes heartbeats, but is not a member of the newest generation."""

    node: int
    end: MemberEnd | None = None
    """Reason why the waiting node could not prepare. None if the node is ready for a generation."""
    joined_s: float = math.inf
    """Seconds since the node joined, by the store's clock."""


@dataclass(frozen=True, kw_only=True)
class GenerationObservation:
    """All observations about the job from which, together with the policy, the next decision is made."""

    now_s: float
    running_s: float
    """Seconds since the first generation began, including the time in which the job waited for nodes."""
    max_runtime_s: float | None = None
    """Seconds that the job may run. None if there is no limit."""
    members: Sequence[Member]
    """Members, in the order of their ranks."""
    ledger: Ledger = Ledger()
    stage: Stage = Stage.RUNNING
    generation: int = 0
    """Number of the newest generation that was decided on."""
    generation_s: float = 0.0
    """Seconds since the newest generation began. 0 if the generation has not begun."""
    waiting: Sequence[Waiting] = ()
    coming: Collection[int] = ()
    """Nodes for which generation 0 still waits, because the nodes are pulling or may still write their first
    heartbeat."""
    desired: int = 1
    """Desired number of nodes."""
    is_scaled: bool = False
    """Whether a change of the number of nodes was requested after the decision about the newest
    generation."""
    cancelled: bool = False
    time: int = 0
    """Time of the observation, by the store's clock (ms UTC)."""

    @property
    def all_ended(self) -> bool:
        return all(each.end is not None for each in self.members)

    def is_at(self, *stages: Stage) -> bool:
        return self.stage in stages
