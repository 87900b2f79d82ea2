"""Queries a list of sources to find out whether, and why, a run must end early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from bai_agent.job.outcome import UNWANTED, Outcome
from bai_agent.job.run_directory import RunDir
from bai_agent.light_dataclass import dataclass
from bai_agent.runtime.clock import CLOCK, Clock

_LOOK_SECONDS = 1.0
"""Seconds between two queries of all sources, after one source has given the first reason."""


@dataclass(frozen=True)
class StopReason:
    """Reason to end a run early: the outcome, and a sentence for the user."""

    outcome: Outcome
    message: str
    deadline: float | None = None
    """Time at which the machine will be terminated (`time.monotonic()`). None if only the job's limits
    apply."""
    by_store: bool = False
    """Whether the reason to end the run was read from the job store. If so, the store is reachable, and the
    user waits for the result in the store."""


class RunEndedError(Exception):
    """Ends a run before its last phase, for the reason `reason`."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason.message)
        self.reason = reason

    @classmethod
    def of(cls, outcome: Outcome, message: str) -> RunEndedError:
        """Return the error for a run that ended for this reason."""
        return cls(StopReason(outcome, message))


class StopSource(Protocol):
    """A source of reasons to end a run, such as a limit of the job or a signal."""

    def reason(self, running_s: float | None) -> StopReason | None:
        """Return the reason to end the run, or None.

        running_s: seconds since the benchmark's start; None if the benchmark has not started, or has ended.
        `reason` is called several times a second, so slow checks must run on a thread of their own.
        """
        ...


@runtime_checkable
class OfGeneration(Protocol):
    """A source of reasons to stop that applies to each generation separately."""

    def begin_generation(self, rundir: RunDir) -> None:
        """Forget the previous generation. The files of the next generation are in `rundir`."""
        ...


class StopMonitor:
    """Queries the sources of reasons to stop, in order. The first reason that a source gives remains the
    run's reason."""

    def __init__(self, sources: Sequence[StopSource], *, clock: Clock = CLOCK) -> None:
        self._sources = sources
        self._clock = clock
        self._reason: StopReason | None = None
        self._unwanted = False
        self._deadline: float | None = None
        self._next_look = 0.0

    def reason(self, *, running_s: float | None = None) -> StopReason | None:
        """Return the reason to end the run, or None. running_s: seconds since the benchmark's start."""
        if self._reason is None:
            self._reason = next(self._reasons(running_s), None)
        return self._reason

    def raise_reason(self) -> None:
        """Raise RunEndedError if there is a reason to end the run."""
        if reason := self.reason():
            raise RunEndedError(reason)

    def end_generation(self) -> None:
        """Forget the reason that ended a generation, because this reason must not end the next generation."""
        self._reason = None

    def begin_generation(self, rundir: RunDir) -> None:
        """Continue with the next generation, whose files are in `rundir`."""
        for source in self._sources:
            if isinstance(source, OfGeneration):
                source.begin_generation(rundir)

    def stopping(self) -> bool:
        """Return whether there is a reason to end the run. The limits on the benchmark's run time and silence
        are not checked."""
        return self.reason() is not None

    def abandoned(self) -> bool:
        """Return whether the job was cancelled or the agent was told to stop. After a cancel or a stop, the
        rest of the run is not needed.

        Returns True even if another source gave an earlier reason to end the run.
        """
        self._look_again()
        return self._unwanted

    def deadline(self) -> float | None:
        """Return the earliest time at which the machine will be terminated (`time.monotonic()`); None if no
        such time is known.

        The time of the termination is returned even if another source gave an earlier reason to end the run.
        The machine of a cancelled job can be terminated too.
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
        """Query the sources in order, and yield the reasons that they give."""
        for source in self._sources:
            found = source.reason(running_s)
            if found is not None:
                if found.deadline is not None:
                    self._deadline = (
                        found.deadline if self._deadline is None else min(found.deadline, self._deadline)
                    )
                yield found
