"""The protocol of sinks, their deliveries, and the thread of sinks that work in rounds: look for new records,
deliver them, wait."""

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
    """Summary of a sink, over all restarts of the agent, in the sink's own unit (messages, bytes)."""

    delivered: int
    """Units that were acknowledged."""
    undelivered: int
    """Units without an acknowledgement."""
    error: str | None
    """Reason in a sentence, if `undelivered` is not 0."""
    warnings: tuple[str, ...] = ()
    """Sentences for a person."""

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
        """Log `text`, unless it was the last one and that was a short time ago."""
        now = time.monotonic()
        at, last = self._last
        if text != last or now - at > _SAME_WARNING_S:
            self._log.warning("%s", text)
            self._last = (now, text)


class Sink(Protocol):
    """A destination of records during the run. It works on a thread of its own, so that it never delays the run."""

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
    """Runs rounds until one that follows `finish` has nothing left to do, or its deadline has passed.

    Only this thread replaces the sink's state, as a whole: readers see one state or the next.
    """

    _on_this_machine = False
    """Whether a round needs no network: the last one is then done even past the deadline, which other sinks may have used up."""

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
                # Checked before the round, which then finds all records.
                last = self._finishing.is_set()
                pause_s = self._round(last=last)
                if pause_s is None:
                    return
                self._pause(pause_s, last=last)
        except Exception:
            # The thread's outermost frame: a defect must appear in the result, and not end the run.
            log.exception("%s: the sink ended by a defect", self.name)
            self._error = "it ended by a defect; agent.log has the details"
        finally:
            self._close()
            self._ended.set()

    @abstractmethod
    def _round(self, *, last: bool) -> float | None:
        """Do what is due; return the seconds until the next round, None if this was the last one.

        last: no more records are written, so a round that finds none left is the last one.
        """

    @abstractmethod
    def _summary(self, deadline: float) -> Delivery:
        """Return the delivered and undelivered numbers; called when the rounds are over, or time is up."""

    def _close(self) -> None:
        """Release the resources of the rounds."""

    def _failed(self, reason: str) -> None:
        """Log the reason why nothing can be delivered, once, and keep it for `error`."""
        if reason != self._error:
            log.warning("%s: %s", self.name, reason)
        self._error = reason

    def _pause(self, seconds: float, *, last: bool) -> None:
        if last:
            # `_wake` remains set then, and would not wait.
            time.sleep(min(seconds, _FINISHING_PAUSE_S))
            return
        self._wake.wait(seconds)
        if not self._finishing.is_set():
            self._wake.clear()
