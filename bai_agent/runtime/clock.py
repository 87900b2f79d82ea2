"""The clock of a run, which tests replace, and a function that gives a deadline to a call that can hang."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

_PAUSE_S = 0.05


class Clock:
    """This machine's clocks. Subclasses in tests control the time."""

    def monotonic(self) -> float:
        """Return the seconds of `time.monotonic()`. The deadlines of pulls, sinks and uploads are times of
        the monotonic clock."""
        return time.monotonic()

    def time(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


CLOCK = Clock()


def call_with_deadline(work: Callable[[], T], *, over: Callable[[], bool], name: str) -> T | None:
    """Return the result of `work()`, or None if `over()` returns True before `work` ends. After None is
    returned, `work` continues on a thread in the background.

    Raises the error of `work`.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            # BaseException is caught, because obstore's panics are BaseExceptions and the caller must get
            # them.
            failed.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    while thread.is_alive() and not over():
        thread.join(_PAUSE_S)
    if failed:
        raise failed[0]
    if not done:
        log.warning("there was no time to wait for: %s", name)
        return None
    return done[0]
