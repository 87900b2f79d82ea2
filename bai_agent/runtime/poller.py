"""Looks at something at intervals, on a thread of its own, since a look may hang as long as the network does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bai_agent.errors import BaiError

log = logging.getLogger(__name__)


class Poller(threading.Thread):
    """Looks until a look returns True, or until `end`. Looks that fail are repeated; consecutive failures are logged once."""

    def __init__(
        self, look: Callable[[], object], *, name: str, pause_s: Callable[[], float], failure: str
    ) -> None:
        """pause_s: seconds until the next look. failure: text of the log about a failed look."""
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
                # The thread's outermost frame. obstore's panics are BaseExceptions.
                if not is_broken:
                    log.exception("%s; trying again", self._failure)
                is_broken = True
            self.pause(self._pause_s())
            self._due.clear()

    def pause(self, seconds: float) -> None:
        """Wait until the next look is due."""
        self._due.wait(seconds)

    def look_now(self) -> None:
        """Look without waiting for the rest of the pause."""
        self._due.set()

    def end(self) -> None:
        """Stop looking. A look that hangs may continue."""
        self._over.set()
        self._due.set()


@contextmanager
def polling(
    look: Callable[[], object], *, name: str, pause_s: Callable[[], float], failure: str, join_s: float | None
) -> Iterator[None]:
    """Look while the block runs; then wait for the last look, up to `join_s` seconds (None: without a limit)."""
    poller = Poller(look, name=name, pause_s=pause_s, failure=failure)
    poller.start()
    try:
        yield
    finally:
        poller.end()
        poller.join(join_s)
