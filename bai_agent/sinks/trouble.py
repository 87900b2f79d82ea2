"""Reports when a sink has been unreachable for some time, and when it is back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from bai_agent.job.record_types import SinkEvent

PATIENCE = 10.0
"""Seconds: shorter troubles are nobody's business."""


class SinkTroubles:
    """Turns the sinks' errors into `sink` events: one when an error lasts, one when it is over."""

    def __init__(
        self, add: Callable[[SinkEvent], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._add = add
        self._clock = clock
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def observe(self, errors: Mapping[str, str | None]) -> None:
        """Record the current error of each sink, None where there is none, by the sink's display name."""
        for sink, error in errors.items():
            if error is None:
                self._since.pop(sink, None)
                if sink in self._told:
                    self._told.remove(sink)
                    self._add(SinkEvent(sink=sink, error=None, message=f"{sink} takes everything again."))
            elif sink not in self._told:
                since = self._since.setdefault(sink, self._clock())
                if self._clock() - since >= PATIENCE:
                    self._told.add(sink)
                    message = f"{sink} has been out of reach for {PATIENCE:.0f} s, and what goes there waits here: {error}"
                    self._add(SinkEvent(sink=sink, error=error, message=message))
