"""How a pull's threads hear that they shall end, and how the caller hears how far they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class PullProgress:
    """How far one source is. What was there already counts as arrived."""

    src: str
    path: str
    bytes: int
    total_bytes: int | None
    objects: int
    total_objects: int | None
    done: bool


@dataclass
class PullTally:
    """The same, as it grows: written by the one thread that pulls the source, read by the caller's."""

    src: str
    path: str
    bytes: int = 0
    total_bytes: int | None = None
    objects: int = 0
    total_objects: int | None = None
    done: bool = False

    def snapshot(self) -> PullProgress:
        return PullProgress(
            src=self.src,
            path=self.path,
            bytes=self.bytes,
            total_bytes=self.total_bytes,
            objects=self.objects,
            total_objects=self.total_objects,
            done=self.done,
        )


class PullEndedError(Exception):
    """Unwinds a thread whose work nobody wants any more; the caller's thread knows why."""


class PullWatch:
    """Tells the threads of one pull to end, whatever they are waiting for."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._interrupts: list[Callable[[], None]] = []

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def end(self) -> None:
        """Make every `check` raise, and wake who waits in an `interruptible` call."""
        self._ended.set()
        with self._lock:
            interrupts = list(self._interrupts)
        for interrupt in interrupts:
            interrupt()

    def check(self) -> None:
        """Raise EndedError once the end was ordered."""
        if self._ended.is_set():
            raise PullEndedError

    def pause(self, pause_s: float) -> None:
        """Wait so long; raise EndedError as soon as the end is ordered."""
        self._ended.wait(pause_s)
        self.check()

    @contextmanager
    def interruptible(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Have `interrupt` called (from another thread) when the end is ordered within this block."""
        with self._lock:
            self._interrupts.append(interrupt)
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._interrupts.remove(interrupt)
