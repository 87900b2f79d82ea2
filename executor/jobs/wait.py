"""Waits for the end of a job, wherever it runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from bai_agent.errors import BaiError, StoreError
from bai_agent.job.record import JobRecord
from executor.backends.backend import Backend
from executor.records.job_status import GOES_ON, JobStatus
from executor.records.retry_window import RetryWindow

_PAUSE, _FAR_PAUSE = 0.25, 5.0
"""Seconds between two looks at a job on this machine and elsewhere."""


class StillGoesOnError(BaiError):
    """The time of somebody who waits for a job is up before the job has ended."""


def wait_for_end(
    record: JobRecord,
    backend: Backend,
    *,
    timeout: float | None = None,
    said: Callable[[str], None] = lambda sentence: None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> JobStatus:
    """Return how a job stands as soon as nothing more is to be expected: it has ended, or nobody will write its end.

    timeout: seconds; None: as long as the job goes on, which its own limits bound. said: hears of a store that cannot be reached
    for a while. Raises StillGoesOnError, StoreError.
    """
    latest = clock() + timeout if timeout is not None else None
    now = backend.status(record)
    reach = RetryWindow(far=backend.remote)
    while now.status in GOES_ON:
        pause = _FAR_PAUSE if backend.remote else _PAUSE
        if latest is not None:
            left = latest - clock()
            if left <= 0:
                raise StillGoesOnError(
                    f"the job {record.job_id} has not ended within {timeout:g} s: it is {now.status}; it goes on"
                )
            pause = min(pause, left)
        sleep(pause)
        try:
            now = backend.status(record)
            reach.reached()
        except StoreError as error:
            said(reach.failed(error))
    return now
