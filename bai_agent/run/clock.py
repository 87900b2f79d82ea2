"""The time that a run waits by, passed in so that no test waits."""

from __future__ import annotations

import time


class Clock:
    """This machine's clocks. A subclass may let time pass as it likes."""

    def monotonic(self) -> float:
        """Return seconds, as `time.monotonic()`: pulls, sinks and uploads compare their deadlines with that one."""
        return time.monotonic()

    def time(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


CLOCK = Clock()
