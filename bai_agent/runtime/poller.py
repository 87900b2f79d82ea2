"""Calls a function at intervals. The calls are made on a separate thread, because a call can hang in a
network request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bai_agent.errors import BaiError

log = logging.getLogger(__name__)


class Poller(threading.Thread):
    """Calls `look` until `look` returns True, or until `end` is called. A failed call is repeated, and
    consecutive failures are logged only once."""

    def __init__(
        self, look: Callable[[], object], *, name: str, pause_s: Callable[[], float], failure: str
    ) -> None:
        """pause_s: function that returns the seconds until the next call. failure: text of the log message
        after a failed call."""
        super().__init__(name=name, daemon=True)
        self._look = look
        self._pause_s = pause_s
        self._failure = failure
        self._over = threading.Event()
        self._due = threading.Event()

    def run(self) -> None:
        fails = is_broken = False
        while not self._over.is_set():
            try:
                if self._look() is True:
                    return
                fails = is_broken = False
            except (BaiError, OSError) as error:
                if not fails:
                    log.warning("%s: %s", self._failure, error)
                fails = True
            except BaseException:
                # BaseException is caught in the thread's outermost frame, because obstore's panics are
                # BaseExceptions.
                if not is_broken:
                    log.exception("%s; trying again", self._failure)
                is_broken = True
            self.pause(self._pause_s())
            self._due.clear()

    def pause(self, seconds: float) -> None:
        """Wait until the next call is due."""
        self._due.wait(seconds)

    def look_now(self) -> None:
        """Call `look` again at once, without waiting for the rest of the pause."""
        self._due.set()

    def end(self) -> None:
        """Make no further calls of `look`. A call that hangs continues in the background."""
        self._over.set()
        self._due.set()


@contextmanager
def polling(
    look: Callable[[], object], *, name: str, pause_s: Callable[[], float], failure: str, join_s: float | None
) -> Iterator[None]:
    """While the context is open, call `look` at intervals. When the context closes, wait until the last call
    ends, for at most `join_s` seconds (None: without a limit)."""
    poller = Poller(look, name=name, pause_s=pause_s, failure=failure)
    poller.start()
    try:
        yield
    finally:
        poller.end()
        poller.join(join_s)
