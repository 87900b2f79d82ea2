"""Tells when a place that metrics and logs go to has been out of reach for some time, and when it is back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

PATIENCE = 10.0
"""Seconds: shorter troubles are nobody's business."""


class SinkTroubles:
    """Turns the sinks' errors into events `sink`: one when a trouble lasts, one when it is over."""

    def __init__(self, add: Callable[..., None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._add = add
        self._clock = clock
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def observe(self, errors: Mapping[str, str | None]) -> None:
        """Take note of the error, if any, that each sink has now; the keys are the sinks' names for people."""
        for sink, error in errors.items():
            if error is None:
                self._since.pop(sink, None)
                if sink in self._told:
                    self._told.remove(sink)
                    self._add("sink", sink=sink, error=None, message=f"{sink} takes everything again.")
            elif sink not in self._told:
                since = self._since.setdefault(sink, self._clock())
                if self._clock() - since >= PATIENCE:
                    self._told.add(sink)
                    message = f"{sink} has been out of reach for {PATIENCE:.0f} s, and what goes there waits here: {error}"
                    self._add("sink", sink=sink, error=error, message=message)
