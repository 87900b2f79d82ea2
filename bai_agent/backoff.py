"""Retries, and the pauses between tries."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from bai_agent.errors import PassingError

T = TypeVar("T")


class Backoff:
    """The pauses between tries, in seconds. Each pause is `factor` times the previous pause, up to the
    longest pause."""

    def __init__(self, first_s: float, longest_s: float = float("inf"), *, factor: float = 2.0) -> None:
        self._first = self._next = min(first_s, longest_s)
        self._longest = longest_s
        self._factor = factor

    def next(self) -> float:
        """Return the next pause (seconds)."""
        pause = self._next
        self._next = min(pause * self._factor, self._longest)
        return pause

    def reset(self) -> None:
        """Make the next pause the shortest pause again, because a try has succeeded."""
        self._next = self._first


def retry(
    work: Callable[[], T], *, tries: int, backoff: Backoff, sleep: Callable[[float], object] = time.sleep
) -> T:
    """Return the result of `work`. After a temporary error `work` is called again, at most `tries` times in
    total."""
    for _ in range(tries - 1):
        try:
            return work()
        except PassingError as error:
            if not error.passes:
                raise
        sleep(backoff.next())
    return work()
