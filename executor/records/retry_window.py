"""Patience with a job store that cannot be reached for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

from bai_agent.errors import StoreError
from bai_agent.job.store import RecordError, StoreRefusedError

_TRY_FOR_S = 600.0
"""Seconds in which a store that cannot be reached is asked again."""


class RetryWindow:
    """Whether a store may be asked again after it failed, by somebody who waits for a job elsewhere."""

    def __init__(self, *, far: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """far: the store is not a folder of this machine, whose failure would be one for good."""
        self._far = far
        self._clock = clock
        self._reached = clock()

    def reached(self) -> None:
        """Take note that the store has answered."""
        self._reached = self._clock()

    def failed(self, error: StoreError) -> str:
        """Return what to say before it is asked again. Raises `error` where that would not help any more."""
        if (
            not self._far
            or isinstance(error, (StoreRefusedError, RecordError))
            or self._clock() - self._reached > _TRY_FOR_S
        ):
            raise error
        return f"{error}; trying again"
