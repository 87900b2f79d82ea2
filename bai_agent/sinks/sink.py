"""What a sink is and what it delivers, and the thread of those that work in rounds: they look what is new, deliver it, and wait."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger(__name__)

_FINISHING_PAUSE_S = 0.5
"""The longest pause between two rounds after `finish`."""
_PAST_DEADLINE_S = 1.0
"""For so long `finish` waits for the last round of a place on this machine, whatever its deadline."""


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

    @classmethod
    def of(cls, *, delivered: int, undelivered: int, what: str, place: str, why: str) -> Delivery:
        """Return the summary of so many that arrived, and did not. what: the unit, as in "values". why: half a sentence."""
        if not undelivered:
            return cls(delivered=delivered, undelivered=0, error=None)
        warning = f"{undelivered} of {delivered + undelivered} {what} did not reach {place}: {why}."
        return cls(delivered=delivered, undelivered=undelivered, error=why, warnings=(warning,))


class Sink(Protocol):
    """A place to which records go while the run goes on. It works on a thread of its own: nothing that it does holds up the run."""

    @property
    def name(self) -> str:
        """The place's name in a sentence for people: "Kafka"."""
        ...

    @property
    def error(self) -> str | None:
        """Why nothing can be delivered at the moment; None while all is well."""
        ...

    def start(self) -> None:
        """Begin, or go on where the last agent's sink of this kind was."""
        ...

    def hurry(self) -> object:
        """Send what is there now, without waiting for more."""
        ...

    def finish(self, deadline: float) -> Delivery:
        """Deliver what is left and return a summary of the whole run, by `deadline` (of `time.monotonic()`) at the latest.

        Called when nobody writes records any more.
        """
        ...


class SinkThread(threading.Thread, ABC):
    """Runs rounds until one that follows `finish` has nothing left to do, or its deadline has passed.

    What a sink has to say of its state it replaces whole, by this thread alone: readers see one state or the next.
    """

    _on_this_machine = False
    """Whether a round asks nothing of a network: the last one is then done past the deadline, too, which others may have used up."""

    def __init__(self, name: str) -> None:
        """name: the place's, in a sentence for people: "CloudWatch"."""
        super().__init__(name=name, daemon=True)
        self._error: str | None = None
        self._hurried = False
        """Whether `hurry` was called; whoever sends takes it back."""
        self._give_up_at = float("inf")
        self._finishing = threading.Event()
        self._wake = threading.Event()
        self._ended = threading.Event()

    @property
    def error(self) -> str | None:
        """Why nothing can be delivered at the moment; None while all is well."""
        return self._error

    def hurry(self) -> None:
        self._hurried = True
        self._wake.set()

    def finish(self, deadline: float) -> Delivery:
        """Deliver what is left and return a summary of the whole run, by `deadline` (of `time.monotonic()`)."""
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
                # Asked before the round: what is there now is all that there will be.
                last = self._finishing.is_set()
                pause_s = self._round(last=last)
                if pause_s is None:
                    return
                self._pause(pause_s, last=last)
        except Exception:
            # The thread's outermost frame: a defect here must end in the result, and not the run.
            log.exception("%s: the sink ended by a defect", self.name)
            self._error = "it ended by a defect; agent.log has the details"
        finally:
            self._close()
            self._ended.set()

    @abstractmethod
    def _round(self, *, last: bool) -> float | None:
        """Do what is due; return the seconds until the next round, None where there is none.

        last: nobody writes any more, so that a round that finds nothing left is the last one.
        """

    @abstractmethod
    def _summary(self, deadline: float) -> Delivery:
        """Return what was delivered and what was not; called when the rounds are over, or time is up."""

    def _close(self) -> None:
        """Give back what the rounds used."""

    def _failed(self, reason: str) -> None:
        """Log why nothing can be delivered, once, and keep it for `error`."""
        if reason != self._error:
            log.warning("%s: %s", self.name, reason)
        self._error = reason

    def _pause(self, seconds: float, *, last: bool) -> None:
        if last:
            # `_wake` is set for good then, and would not wait.
            time.sleep(min(seconds, _FINISHING_PAUSE_S))
            return
        self._wake.wait(seconds)
        if not self._finishing.is_set():
            self._wake.clear()
