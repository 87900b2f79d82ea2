"""Sees through a job store that is elsewhere whether the job was cancelled, on a thread: a look may hang for a minute."""

from __future__ import annotations

import logging
import random
import threading

from bai_agent.errors import StoreError
from bai_agent.job.record import JobRecord

log = logging.getLogger(__name__)

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 10.0
"""Seconds between two looks. Drawn anew each time, so that the nodes of a job do not ask together."""
FIRST_ANSWER_S = 3.0
"""Seconds that the first answer is waited for. A store that answers takes a fraction of one."""


class CancelLook(threading.Thread):
    """Looks now and then, whatever goes wrong; `cancelled` says what the last answer was."""

    def __init__(
        self,
        record: JobRecord,
        *,
        shortest_s: float = SHORTEST_PAUSE_S,
        longest_s: float = LONGEST_PAUSE_S,
        first_answer_s: float = FIRST_ANSWER_S,
    ) -> None:
        super().__init__(name="cancel", daemon=True)
        self._record = record
        self._between = (shortest_s, longest_s)
        self._first_answer_s = first_answer_s
        self._looked, self._seen = threading.Event(), threading.Event()

    def cancelled(self) -> bool:
        """Return what the last answer was. Only the first call waits, until there is one or for `first_answer_s`.

        Otherwise a benchmark would start that was cancelled before its machine was there, and a short one would succeed.
        """
        if not self._looked.wait(self._first_answer_s):
            self._looked.set()
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
                # The thread's outermost frame, and a panic of obstore's is not an Exception: without this look a cancel would
                # never be heard.
                if not told:
                    log.exception("cannot see whether the job was cancelled; looking again")
                told = True
            finally:
                self._looked.set()
            pause.wait(random.uniform(*self._between))  # noqa: S311
