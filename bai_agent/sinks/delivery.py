"""What a sink made of a run's records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What arrived, over all restarts of the agent; the sink's own unit (messages, bytes)."""

    delivered: int
    """What the other side has acknowledged."""
    undelivered: int
    """What is not known to have arrived."""
    error: str | None
    """A sentence that says why, where `undelivered` is not 0."""
    warnings: tuple[str, ...] = ()
    """What a person is told of it, in sentences."""

    @classmethod
    def of(cls, *, delivered: int, undelivered: int, what: str, place: str, why: str) -> Delivery:
        """Return the summary of so many that arrived, and did not. what: the unit, as in "values". why: half a sentence."""
        if not undelivered:
            return cls(delivered=delivered, undelivered=0, error=None)
        warning = f"{undelivered} of {delivered + undelivered} {what} did not reach {place}: {why}."
        return cls(delivered=delivered, undelivered=undelivered, error=why, warnings=(warning,))
