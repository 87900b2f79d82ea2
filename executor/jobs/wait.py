"""Waits for the end of a job, wherever it runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from bai_agent.errors import BaiError, StoreError
from bai_agent.job.record import JobRecord
from executor.backends.backend import Backend
from executor.records.job_status import GOES_ON, JobStatus
from executor.records.retry_window import RetryWindow

_PAUSE_S, _FAR_PAUSE_S = 0.25, 5.0
"""Seconds between two looks at a job on this machine and elsewhere."""


class StillGoesOnError(BaiError):
    """The job has not ended within the time to wait."""


def wait_for_end(
    record: JobRecord,
    backend: Backend,
    *,
    timeout_s: float | None = None,
    on_status: Callable[[str], None] = lambda sentence: None,
) -> JobStatus:
    """Return a job's status when it has ended, or when nobody is left to write its result.

    timeout_s: seconds; None: as long as the job goes on, which its own limits bound. on_status: called where the store cannot be reached
    for a while. Raises StillGoesOnError, StoreError.
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
                    f"the job {record.job_id} has not ended within {timeout_s:g} s: it is {now.status}; it goes on"
                )
            pause = min(pause, left)
        time.sleep(pause)
        try:
            now = backend.status(record)
            reach.reached()
        except StoreError as error:
            on_status(reach.failed(error))
    return now
