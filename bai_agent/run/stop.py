"""Whether a run is to end early, and why: asked in one place, of a list of sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from bai_agent.job.outcome import Outcome
from bai_agent.run.clock import CLOCK, Clock

_UNWANTED = (Outcome.CANCELLED, Outcome.INTERRUPTED)
_LOOK_SECONDS = 1.0
"""Between two times that all sources are asked again after the first reason."""


@dataclass(frozen=True)
class StopReason:
    """Why a run is ended early, and a sentence about it."""

    outcome: Outcome
    message: str
    deadline: float | None = None
    """When the machine is taken away (`time.monotonic()`); None: only the job's limits set a time."""
    by_store: bool = False
    """The job store said so, so it answers, and whoever asked waits for the result there."""


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

    def __init__(self, sources: Sequence[StopSource], *, clock: Clock = CLOCK) -> None:
        self._sources = sources
        self._clock = clock
        self._reason: StopReason | None = None
        self._unwanted = False
        self._deadline: float | None = None
        self._next_look = 0.0

    def reason(self, *, running_s: float | None = None) -> StopReason | None:
        """Return the reason to end the run, if there is one. running_s: seconds since the benchmark's start."""
        if self._reason is None:
            self._reason = next(self._reasons(running_s), None)
        return self._reason

    def stopping(self) -> bool:
        """Return whether there is a reason, apart from the benchmark's own limits, to end the run."""
        return self.reason() is not None

    def unwanted(self) -> bool:
        """Return whether nobody waits any more for what this run still does: it was cancelled, or is told to stop.

        Also where another reason was found first.
        """
        self._look_again()
        return self._unwanted

    def deadline(self) -> float | None:
        """Return when the machine is taken away (`time.monotonic()`), at the earliest; None where no source says so.

        Also where that was said after another reason: a job that was cancelled may lose its machine meanwhile.
        """
        self._look_again()
        return self._deadline

    def _look_again(self) -> None:
        """Ask every source, at most once per `_LOOK_SECONDS`."""
        if self._clock.monotonic() >= self._next_look:
            self._next_look = self._clock.monotonic() + _LOOK_SECONDS
            for found in self._reasons(None):
                self._unwanted = self._unwanted or found.outcome in _UNWANTED

    def _reasons(self, running_s: float | None) -> Iterator[StopReason]:
        """Ask one source after another; yield the reasons that they give."""
        for source in self._sources:
            found = source.reason(running_s)
            if found is not None:
                if found.deadline is not None:
                    self._deadline = (
                        found.deadline if self._deadline is None else min(found.deadline, self._deadline)
                    )
                yield found
