"""Defines the protocol of sinks, their deliveries, and the thread of sinks that work in rounds.

In each round a sink looks for new records, delivers them, and waits.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from typing import Protocol

from bai_agent.light_dataclass import dataclass

log = logging.getLogger(__name__)

_FINISHING_PAUSE_S = 0.5
"""Longest pause between two rounds after `finish` (seconds)."""
_SAME_WARNING_S = 300.0
_PAST_DEADLINE_S = 1.0
"""Seconds that `finish` waits for the last round of a sink on this machine, even after its deadline."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Summary of a sink's deliveries over all restarts of the agent, in the sink's unit (messages, bytes)."""

    delivered: int
    """Units that were acknowledged."""
    undelivered: int
    """Units without an acknowledgement."""
    error: str | None
    """Reason why units are undelivered. None if `undelivered` is 0."""
    warnings: tuple[str, ...] = ()
    """Warnings that are shown to the user."""

    @classmethod
    def of(cls, *, delivered: int, undelivered: int, what: str, place: str, why: str) -> Delivery:
        """Return the summary of these numbers. what: the unit, as in "values". why: half a sentence."""
        if not undelivered:
            return cls(delivered=delivered, undelivered=0, error=None)
        warning = f"{undelivered} of {delivered + undelivered} {what} did not reach {place}: {why}."
        return cls(delivered=delivered, undelivered=undelivered, error=why, warnings=(warning,))


class RareWarnings:
    """Logs warnings, but not the same text repeatedly."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last = (-_SAME_WARNING_S, "")

    def add(self, text: str) -> None:
        """Log `text`, unless the last warning had the same text and was logged a short time ago."""
        now = time.monotonic()
        at, last = self._last
        if text != last or now - at > _SAME_WARNING_S:
            self._log.warning("%s", text)
            self._last = (now, text)


class Sink(Protocol):
    """A destination of records during the run. A sink works on its own thread, so it never delays the run."""

    @property
    def name(self) -> str:
        """Display name: "Kafka"."""
        ...

    @property
    def error(self) -> str | None:
        """Reason why nothing can be delivered at the moment. None if deliveries succeed."""
        ...

    def start(self) -> None:
        """Begin, or continue from the position of the previous agent's sink."""
        ...

    def flush_soon(self) -> object:
        """Send the pending records now, without waiting for more."""
        ...

    def finish(self, deadline: float) -> Delivery:
        """Deliver the rest and return a summary of the whole run, by `deadline` (of `time.monotonic()`) at the latest.

        Called after the last record was written.
        """
        ...


class SinkThread(threading.Thread, ABC):
    """Runs rounds until a round after `finish` has nothing left to do, or until the deadline has passed.

    Only this thread replaces the sink's state, and always as a whole, so readers see a consistent state.
    """

    _on_this_machine = False
    """Whether a round needs no network. If so, the last round runs even after the deadline, because other
    sinks may have used up the time."""

    def __init__(self, name: str) -> None:
        """name: display name, such as "CloudWatch"."""
        super().__init__(name=name, daemon=True)
        self._error: str | None = None
        self._hurried = False
        """Whether `flush_soon` was called since the last delivery."""
        self._give_up_at = float("inf")
        self._finishing = threading.Event()
        self._wake = threading.Event()
        self._ended = threading.Event()

    @property
    def error(self) -> str | None:
        """Reason why nothing can be delivered at the moment. None if deliveries succeed."""
        return self._error

    def flush_soon(self) -> None:
        self._hurried = True
        self._wake.set()

    def finish(self, deadline: float) -> Delivery:
        """Deliver the rest and return a summary of the whole run, by `deadline` (of `time.monotonic()`)."""
        self._give_up_at = deadline
        self._finishing.set()
        self._wake.set()
        if self.is_alive():
            least = _PAST_DEADLINE_S if self._on_this_machine else 0.0
            self._ended.wait(max(least, deadline - time.monotonic()))
        return self._summary(deadline)

    def run(self) -> None:
        last = False
        try:
            while time.monotonic() < self._give_up_at or (self._on_this_machine and not last):
                # This is checked before the round, so that the last round finds all records.
                last = self._finishing.is_set()
                pause_s = self._round(last=last)
                if pause_s is None:
                    return
                self._pause(pause_s, last=last)
        except Exception:
            # This is the thread's outermost frame. A defect must appear in the result, but must not end the
            # run.
            log.exception("%s: the sink ended by a defect", self.name)
            self._error = "it ended by a defect; agent.log has the details"
        finally:
            self._close()
            self._ended.set()

    @abstractmethod
    def _round(self, *, last: bool) -> float | None:
        """Deliver what is due; return the seconds until the next round, or None if this round was the last.

        last: whether all records are written. If so, a round that finds no more records is the last.
        """

    @abstractmethod
    def _summary(self, deadline: float) -> Delivery:
        """Return the delivered and undelivered numbers. Called when the rounds are over or the time is up."""

    def _close(self) -> None:
        """Release the resources of the rounds."""

    def _failed(self, reason: str) -> None:
        """Log (once) the reason why nothing can be delivered, and store the reason for `error`."""
        if reason != self._error:
            log.warning("%s: %s", self.name, reason)
        self._error = reason

    def _pause(self, seconds: float, *, last: bool) -> None:
        if last:
            # After `finish`, `_wake` remains set, so waiting for it would return at once.
            time.sleep(min(seconds, _FINISHING_PAUSE_S))
            return
        self._wake.wait(seconds)
        if not self._finishing.is_set():
            self._wake.clear()
