"""The progress of a pull, and the signal that tells its threads to end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bai_agent.light_dataclass import dataclass


@dataclass
class PullProgress:
    """Progress of the pull of one source. Content that was already in place counts as arrived.

    The thread that pulls the source updates the progress. Reports get a copy.
    """

    src: str
    path: str
    bytes: int = 0
    total_bytes: int | None = None
    objects: int = 0
    total_objects: int | None = None
    done: bool = False


class PullEndedError(Exception):
    """Ends a thread whose work is no longer needed. The thread that ended the pull knows the reason."""


class PullWatch:
    """Tells the threads of one pull to end, and interrupts their waits."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._interrupts: list[Callable[[], None]] = []

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def end(self) -> None:
        """Make every call of `check` raise PullEndedError, and interrupt the blocks of `interruptible`."""
        self._ended.set()
        with self._lock:
            interrupts = list(self._interrupts)
        for interrupt in interrupts:
            interrupt()

    def check(self) -> None:
        """Raise PullEndedError if the pull has been ended."""
        if self._ended.is_set():
            raise PullEndedError

    def pause(self, pause_s: float) -> None:
        """Wait `pause_s` seconds; raise PullEndedError as soon as the pull is ended."""
        self._ended.wait(pause_s)
        self.check()

    @contextmanager
    def interruptible(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Make the thread that ends the pull call `interrupt` if the block of this context still runs."""
        with self._lock:
            self._interrupts.append(interrupt)
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._interrupts.remove(interrupt)
