"""Whether a run is to end early, and why: asked in one place, of a list of sources."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bai_agent.job.outcome import Outcome

_UNWANTED = (Outcome.CANCELLED, Outcome.INTERRUPTED)
_LOOK_SECONDS = 1.0
"""Between two looks of `unwanted`."""


@dataclass(frozen=True)
class StopReason:
    """Why a run is ended early, and a sentence about it."""

    outcome: Outcome
    message: str
    deadline: float | None = None
    """When the machine is taken away (`time.monotonic()`); None: only the job's limits set a time."""


class RunEndedError(Exception):
    """The run is over before its last phase."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason.message)
        self.reason = reason


class StopSource(Protocol):
    """Something that may ask a run to end."""

    def reason(self, running_s: float | None) -> StopReason | None:
        """Return why the run is to end, or None.

        running_s: seconds since the benchmark's start; None: it has not started, or has ended. Called several times a
        second: what takes longer looks on a thread of its own.
        """
        ...


class StopWatch:
    """Asks the sources in their order. The first reason that one gives stays the run's reason."""

    def __init__(self, sources: Sequence[StopSource]) -> None:
        self._sources = sources
        self._reason: StopReason | None = None
        self._unwanted: StopReason | None = None
        self._next_look = 0.0

    def reason(self, *, running_s: float | None = None) -> StopReason | None:
        """Return the reason to end the run, if there is one. running_s: seconds since the benchmark's start."""
        if self._reason is None:
            self._reason = next(
                (found for source in self._sources if (found := source.reason(running_s)) is not None), None
            )
        return self._reason

    def stopping(self) -> bool:
        """Return whether there is a reason, apart from the benchmark's own limits, to end the run."""
        return self.reason() is not None

    def unwanted(self) -> bool:
        """Return whether nobody waits any more for what this run still does: it was cancelled, or is told to stop.

        Also where another reason was found before.
        """
        if self._unwanted is None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            found = (source.reason(None) for source in self._sources)
            self._unwanted = next((each for each in found if each and each.outcome in _UNWANTED), None)
        return self._unwanted is not None

    def deadline(self) -> float | None:
        """Return when the machine is taken away (`time.monotonic()`), where somebody has said so."""
        self.unwanted()
        times = [
            each.deadline for each in (self._reason, self._unwanted) if each and each.deadline is not None
        ]
        return min(times, default=None)
