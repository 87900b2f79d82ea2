"""The thread of a sink that works in rounds: it looks what is new, delivers it, and waits."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod

from bai_agent.sinks.delivery import Delivery

log = logging.getLogger(__name__)

_FINISHING_PAUSE_S = 0.5
"""The longest pause between two rounds after `finish`."""
_PAST_DEADLINE_S = 1.0
"""For so long `finish` waits for the last round of a place on this machine, whatever its deadline."""


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
