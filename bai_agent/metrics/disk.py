"""Waits for room on a full disk: a process that ended instead would meet it again after its restart."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from bai_agent.backoff import Backoff
from bai_agent.job.reserved_space import FULL

log = logging.getLogger(__name__)


def wait_for_room(
    write: Callable[[], None],
    *,
    path: Path,
    undo: Callable[[], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Call `write` until the disk has room for it; `undo` takes back what a failed call has written."""
    backoff = Backoff(0.1, 2.0)
    told = False
    while True:
        try:
            write()
            return
        except OSError as error:
            if error.errno not in FULL:
                raise
            if not told:
                log.warning("%s: no space left on its disk; waiting for room", path)
            told = True
            if undo is not None:
                undo()
        sleep(backoff.next())
