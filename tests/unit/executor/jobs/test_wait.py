"""Who waits for a job elsewhere is not sent home by a network that is away for a while."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from handmade_job import HandmadeJob

from bai_agent.errors import StoreError, StoreRefusedError
from bai_agent.job.record import JobRecord
from executor.jobs import stream
from executor.jobs.wait import RetryWindow


class Elsewhere:
    """A store that is not a folder of this machine, and cannot be reached the first times that it is asked."""

    folder = None

    def __init__(self, job: HandmadeJob, failures: list[StoreError]) -> None:
        self._job = job
        self._failures = failures

    def find(self, prefix: str) -> Any:
        if self._failures:
            raise self._failures.pop(0)
        return self._job.store.find(prefix)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job.store, name)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandmadeJob:
    monkeypatch.setattr("executor.jobs.stream.time.sleep", lambda seconds: None)
    made = HandmadeJob(tmp_path)
    made.prints("a line\n")
    made.ends()
    return made


def test_a_followed_log_continues_when_its_store_returns(job: HandmadeJob) -> None:
    store: Any = Elsewhere(job, [StoreError("away"), StoreError("away")])
    told: list[str] = []

    printed = list(
        stream.pieces_of_nodes(
            [JobRecord(store, "digits-1").node()], "log", follow=True, on_status=told.append
        )
    )

    assert printed == [(0, b"a line\n")]
    assert told == ["away; trying again"] * 2


def test_time_spent_by_a_slow_reader_does_not_count_towards_the_retry_window(
    job: HandmadeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(
        "executor.jobs.stream.RetryWindow", lambda *, far: RetryWindow(far=far, clock=lambda: now[0])
    )
    failures: list[StoreError] = []
    store: Any = Elsewhere(job, failures)

    printed = stream.pieces_of_nodes([JobRecord(store, "digits-1").node()], "log", follow=True)
    assert next(printed) == (0, b"a line\n")
    now[0] = 3600.0
    failures.append(StoreError("away"))

    assert list(printed) == []


@pytest.mark.parametrize(
    ("failure", "follow"), [(StoreError("away"), False), (StoreRefusedError("no rights"), True)]
)
def test_reading_once_or_being_refused_is_not_retried(
    job: HandmadeJob, failure: StoreError, follow: bool
) -> None:
    store: Any = Elsewhere(job, [failure])

    with pytest.raises(StoreError, match=str(failure)):
        list(stream.pieces_of_nodes([JobRecord(store, "digits-1").node()], "log", follow=follow))


def test_retries_end_ten_minutes_after_the_last_successful_request() -> None:
    now = 0.0
    reach = RetryWindow(far=True, clock=lambda: now)
    away = StoreError("away")

    now = 600.0
    assert reach.failed(away) == "away; trying again"
    reach.reached()
    now = 1200.0
    assert reach.failed(away) == "away; trying again"
    now = 1201.0
    with pytest.raises(StoreError):
        reach.failed(away)


def test_a_failing_local_folder_is_a_permanent_error() -> None:
    with pytest.raises(StoreError):
        RetryWindow(far=False).failed(StoreError("no such device"))
