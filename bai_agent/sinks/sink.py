"""Defines what all sinks have in common: their interface, the summary of their deliveries, and a base class
for sinks that work in rounds.

In each round, a sink that works in rounds reads new records, delivers the records, and waits.
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
"""`finish` waits at least this long for the last round of a sink that needs no network, even after its
deadline (seconds)."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Summary of a sink's deliveries over all restarts of the agent. The numbers are in the sink's unit, such
    as messages or bytes."""

    delivered: int
    """Number of units that were acknowledged."""
    undelivered: int
    """Number of units that were not acknowledged."""
    error: str | None
    """Reason why units are undelivered. None if `undelivered` is 0."""
    warnings: tuple[str, ...] = ()
    """Warnings that are shown to the user."""

    @classmethod
    def of(cls, *, delivered: int, undelivered: int, what: str, place: str, why: str) -> Delivery:
        """Return the summary with these numbers and a warning about undelivered units. what: name of the
        unit, such as "values". why: the reason, as half a sentence."""
        if not undelivered:
            return cls(delivered=delivered, undelivered=0, error=None)
        warning = f"{undelivered} of {delivered + undelivered} {what} did not reach {place}: {why}."
        return cls(delivered=delivered, undelivered=undelivered, error=why, warnings=(warning,))


class RareWarnings:
    """Logs warnings, but does not repeat the same text within a short time."""

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
    """A system to which records are sent during the run. A sink works on its own thread, so it never delays
    the run."""

    @property
    def name(self) -> str:
        """Display name: "Kafka"."""
        ...

    @property
    def error(self) -> str | None:
        """Reason why nothing can be delivered at the moment. None if deliveries succeed."""
        ...

    def start(self) -> None:
        """Start the deliveries. A restarted agent's sink continues at the position that the earlier sink reached."""
        ...

    def flush_soon(self) -> object:
        """Send the pending records at once, without waiting for further records."""
        ...

    def finish(self, deadline: float) -> Delivery:
        """Deliver the remaining records, and return a summary of the whole run, at `deadline`
        (`time.monotonic()`) at the latest.

        Called after the last record of the run was written.
        """
        ...


class SinkThread(threading.Thread, ABC):
    """Base class of sinks that work in rounds, on a separate thread. The rounds end when, after `finish`, a
    round has nothing left to do or the deadline has passed.

    Only this thread changes the sink's progress, and always replaces the whole object, so other threads see a
    consistent state.
    """

    _on_this_machine = False
    """Whether a round of this sink needs no network. In this case, the last round runs even after the
    deadline, because other sinks have possibly used up the time."""

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
        """Deliver the remaining records, and return a summary of the whole run, at `deadline`
        (`time.monotonic()`) at the latest."""
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
                # `finish` is checked for before the round, so that the last round finds all records.
                last = self._finishing.is_set()
                pause_s = self._round(last=last)
                if pause_s is None:
                    return
                self._pause(pause_s, last=last)
        except Exception:
            # Any error is caught in the thread's outermost frame. A defect must appear in the result, but
            # must not end the run.
            log.exception("%s: the sink ended because of an unexpected error", self.name)
            self._error = "the sink ended because of an unexpected error; agent.log has the details"
        finally:
            self._close()
            self._ended.set()

    @abstractmethod
    def _round(self, *, last: bool) -> float | None:
        """Deliver the records that are due. Return the seconds until the next round, or None if this round
        was the last.

        last: whether the run writes no further records. After the run's last record, the first round that
        finds no records is the last round.
        """

    @abstractmethod
    def _summary(self, deadline: float) -> Delivery:
        """Return the summary of the deliveries. Called after the last round, or at the deadline."""

    def _close(self) -> None:
        """Close connections and files. The thread calls this method after its last round."""

    def _failed(self, reason: str) -> None:
        """Store the reason why nothing can be delivered, which `error` returns, and log the reason once."""
        if reason != self._error:
            log.warning("%s: %s", self.name, reason)
        self._error = reason

    def _pause(self, seconds: float, *, last: bool) -> None:
        if last:
            # After `finish`, `_wake` stays set, so waiting for this event would return at once.
            time.sleep(min(seconds, _FINISHING_PAUSE_S))
            return
        self._wake.wait(seconds)
        if not self._finishing.is_set():
            self._wake.clear()
