"""Waits for the end of a job, wherever the job runs, even if the job's store cannot be reached for a
while."""

from __future__ import annotations

import time
from collections.abc import Callable

from bai_agent.errors import BaiError, RecordError, StoreError, StoreRefusedError
from bai_agent.job.record import JobRecord
from executor.backends.backend import Backend
from executor.errors import StillGoesOnError
from executor.records.job_status import GOES_ON, JobStatus

_PAUSE_S, _FAR_PAUSE_S = 0.25, 5.0
"""Time between two checks of a job on this machine, and elsewhere (seconds)."""
_TRY_FOR_S = 600.0
"""Time for which requests to an unreachable store are retried (seconds)."""


def may_pass(error: BaiError) -> bool:
    """Return whether the error says that a store cannot be reached now, but may answer later."""
    return isinstance(error, StoreError) and not isinstance(error, (RecordError, StoreRefusedError))


class RetryWindow:
    """Decides whether requests to an unreachable store are retried, for a user who waits for a job."""

    def __init__(self, *, far: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """far: whether the store is remote. Requests to a store in a folder of this machine are not retried,
        because failures of a folder are permanent."""
        self._far = far
        self._clock = clock
        self._reached = clock()

    def reached(self) -> None:
        """Record that the store has answered."""
        self._reached = self._clock()

    def failed(self, error: StoreError) -> str:
        """Return a message to show before a failed request is retried. Raises `error` if a retry would not
        help any more."""
        if not self._far or not may_pass(error) or self._clock() - self._reached > _TRY_FOR_S:
            raise error
        return f"{error}; trying again"


def wait_for_end(
    record: JobRecord,
    backend: Backend,
    *,
    timeout_s: float | None = None,
    on_status: Callable[[str], None] = lambda sentence: None,
) -> JobStatus:
    """Wait until a job has ended, or until its result can no longer be written; return the job's status.
    timeout_s: maximum waiting time (seconds); if None, only the job's own limits bound the waiting time.
    on_status: called if the store cannot be reached for a while. Raises StillGoesOnError, StoreError.
    """
    latest = time.monotonic() + timeout_s if timeout_s is not None else None
    now = backend.status(record)
    reach = RetryWindow(far=backend.remote)
    while now.status in GOES_ON:
        pause = _FAR_PAUSE_S if backend.remote else _PAUSE_S
        if latest is not None:
            left = latest - time.monotonic()
            if left <= 0:
                raise StillGoesOnError(
                    f"the job {record.job_id} has not ended within {timeout_s:g} s: it is {now.status} and continues"
                )
            pause = min(pause, left)
        time.sleep(pause)
        try:
            now = backend.status(record)
            reach.reached()
        except StoreError as error:
            on_status(reach.failed(error))
    return now
