"""A job's policy for restarts and for changes of its member nodes."""

from __future__ import annotations

from bai_agent.job.descriptor.restart_tables import Restart
from bai_agent.light_dataclass import dataclass

LONGEST_BACKOFF_S = 300.0
"""Upper limit of the doubling backoff (seconds)."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Rules for when a job's benchmark is restarted, and with how many nodes."""

    restart: Restart
    min_nodes: int | None = None
    """Smallest number of members of a generation. None in a fixed job, whose members do not change."""
    nodes: int = 1
    """Largest number of members of a generation."""
    wait_s: float = 600.0
    """Longest wait of a job with too few nodes (seconds)."""
    pause_s: float = 60.0
    """Shortest time for which a generation runs before it is ended so that a waiting node can join
    (seconds)."""
    silence_s: float = 20.0
    """Seconds without a heartbeat after which a node counts as lost."""
    stop_s: float = 60.0
    """Seconds within which a member has to stop its benchmark."""
    look_s: float = 6.0
    """Largest error of a heartbeat's observed age (seconds)."""

    saved_code: int | None = None
    """Exit code of a benchmark that has saved its state and asks to be restarted. None if no exit code asks
    for a restart."""
    takes_proposals: bool = False
    """Whether the benchmark's hints may change the number of nodes, as long as no user has requested a
    number."""
    absorbs: bool = False
    """Whether the benchmark continues by itself when a node is lost or joins, while the first member runs."""
    notice_s: float = 5.0
    """If several nodes announce within this number of seconds that they will be lost, the announcements count
    as one change."""

    @property
    def is_elastic(self) -> bool:
        return self.min_nodes is not None

    def has_enough(self, nodes: int) -> bool:
        """Return whether a generation may have this number of members."""
        return self.min_nodes is None or nodes >= max(1, self.min_nodes)

    def allows(self, desired: int) -> bool:
        """Return whether this number of nodes may be requested."""
        return self.has_enough(desired) and desired <= self.nodes


def backoff_s(policy: Restart, *, restarts: int) -> float:
    """Return the pause between a failure and the next generation, after `restarts` earlier restarts
    (seconds)."""
    first = policy.backoff.total_seconds()
    return min(doubled(first, restarts), max(first, LONGEST_BACKOFF_S))


def doubled(seconds: float, times: int) -> float:
    """Return `seconds` multiplied by 2 to the power of `times`."""
    # 2 ** 1000 is too large for a float.
    return float(seconds * 2 ** min(times, 60))
