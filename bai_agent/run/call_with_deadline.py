"""Does work that may hang beside a loop that must not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

_PAUSE_S = 0.05


def call_with_deadline(work: Callable[[], T], *, over: Callable[[], bool], name: str) -> T | None:
    """Return what `work` returns, or None when it is `over` before; the work is then left to itself.

    An error of `work` is raised here.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            # Not Exception: a panic of obstore's is none, and this thread's end shall not hide it.
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
