"""Sees through a job store that is elsewhere whether the job was cancelled, on a thread: a look may hang for a minute."""

from __future__ import annotations

import logging
import random
import threading

from bai_agent.errors import StoreError
from bai_agent.job.record import JobRecord

log = logging.getLogger(__name__)

SHORTEST, LONGEST = 5.0, 10.0
"""Seconds between two looks. Drawn anew each time, so that the nodes of a job do not ask together."""


class CancelLook(threading.Thread):
    """Looks now and then, whatever goes wrong; `cancelled` says what the last answer was."""

    def __init__(self, record: JobRecord, *, shortest: float = SHORTEST, longest: float = LONGEST) -> None:
        super().__init__(name="cancel", daemon=True)
        self._record = record
        self._between = (shortest, longest)
        self._seen = threading.Event()

    def cancelled(self) -> bool:
        return self._seen.is_set()

    def run(self) -> None:
        pause = threading.Event()
        told = False
        while True:
            try:
                if self._record.cancelled():
                    self._seen.set()
                    return
                told = False
            except StoreError as error:
                if not told:
                    log.warning("cannot see whether the job was cancelled: %s", error)
                told = True
            except BaseException:
                # The thread's outermost frame, and a panic of obstore's is no Exception: without this look a cancel would
                # never be heard.
                if not told:
                    log.exception("cannot see whether the job was cancelled; looking again")
                told = True
            pause.wait(random.uniform(*self._between))  # noqa: S311
