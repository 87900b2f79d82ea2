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
