"""Queries a list of sources to find out whether, and why, a run must end early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from bai_agent.job.outcome import UNWANTED, Outcome
from bai_agent.job.run_directory import RunDir
from bai_agent.light_dataclass import dataclass
from bai_agent.runtime.clock import CLOCK, Clock

_LOOK_SECONDS = 1.0
"""Seconds between two queries of all sources after the first reason."""


@dataclass(frozen=True)
class StopReason:
    """Reason to end a run early, with a sentence about it."""

    outcome: Outcome
    message: str
    deadline: float | None = None
    """Time at which the machine is taken away (`time.monotonic()`). None if only the job's limits apply."""
    by_store: bool = False
    """Whether the job store reported the reason. If so, the store is reachable, and the result is awaited
    there."""


class RunEndedError(Exception):
    """The run ended before its last phase."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason.message)
        self.reason = reason

    @classmethod
    def of(cls, outcome: Outcome, message: str) -> RunEndedError:
        """Return the error for a run that ended for this reason."""
        return cls(StopReason(outcome, message))


class StopSource(Protocol):
    """A source that may request the end of a run."""

    def reason(self, running_s: float | None) -> StopReason | None:
        """Return the reason to end the run, or None.

        running_s: seconds since the benchmark's start; None if the benchmark has not started, or has ended.
        `reason` is called several times a second, so slow checks must run on a thread of their own.
        """
        ...


@runtime_checkable
class OfGeneration(Protocol):
    """A source that judges each generation separately."""

    def begin_generation(self, rundir: RunDir) -> None:
        """Forget the previous generation. The files of the next generation are in `rundir`."""
        ...


class StopMonitor:
    """Queries the sources in their order. The first reason remains the run's reason."""

    def __init__(self, sources: Sequence[StopSource], *, clock: Clock = CLOCK) -> None:
        self._sources = sources
        self._clock = clock
        self._reason: StopReason | None = None
        self._unwanted = False
        self._deadline: float | None = None
        self._next_look = 0.0

    def reason(self, *, running_s: float | None = None) -> StopReason | None:
        """Return the reason to end the run, if there is a reason. running_s: seconds since the benchmark's
        start."""
        if self._reason is None:
            self._reason = next(self._reasons(running_s), None)
        return self._reason

    def raise_reason(self) -> None:
        """Raise RunEndedError if there is a reason to end the run."""
        if reason := self.reason():
            raise RunEndedError(reason)

    def end_generation(self) -> None:
        """Forget the reason that ended a generation, because the next generation is judged separately."""
        self._reason = None

    def begin_generation(self, rundir: RunDir) -> None:
        """Continue with the next generation, whose files are in `rundir`."""
        for source in self._sources:
            if isinstance(source, OfGeneration):
                source.begin_generation(rundir)

    def stopping(self) -> bool:
        """Return whether there is a reason other than the benchmark's own limits to end the run."""
        return self.reason() is not None

    def abandoned(self) -> bool:
        """Return whether the job was cancelled or the agent was told to stop, so that the rest of this run is
        not needed.

        A cancellation or an order to stop counts even if there was another reason before.
        """
        self._look_again()
        return self._unwanted

    def deadline(self) -> float | None:
        """Return the earliest time at which the machine is taken away (`time.monotonic()`); None if there is none.

        The time counts even if there was another reason before, because a cancelled job may lose its machine.
        """
        self._look_again()
        return self._deadline

    def _look_again(self) -> None:
        """Query all sources, at most once per `_LOOK_SECONDS`."""
        if self._clock.monotonic() >= self._next_look:
            self._next_look = self._clock.monotonic() + _LOOK_SECONDS
            for found in self._reasons(None):
                self._unwanted = self._unwanted or found.outcome in UNWANTED

    def _reasons(self, running_s: float | None) -> Iterator[StopReason]:
        """Query the sources one after another; yield their reasons."""
        for source in self._sources:
            found = source.reason(running_s)
            if found is not None:
                if found.deadline is not None:
                    self._deadline = (
                        found.deadline if self._deadline is None else min(found.deadline, self._deadline)
                    )
                yield found
