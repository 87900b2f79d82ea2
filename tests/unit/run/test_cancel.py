"""A cancel is noticed despite earlier errors of the store."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest
from failures import PanicException

from bai_agent.errors import StoreError
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.run.stop_sources import CancelLook


class FailingRecord(JobRecord):
    """A record at which the first looks fail."""

    failures: list[BaseException]

    def cancelled(self) -> bool:
        if self.failures:
            raise self.failures.pop()
        return super().cancelled()


@pytest.mark.parametrize("failure", [StoreError("away"), KeyError("x"), PanicException("panicked")])
def test_a_cancel_is_noticed_after_failed_requests_to_the_store(
    tmp_path: Path, failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    record = FailingRecord(DirectoryStore(tmp_path), "job-1")
    object.__setattr__(record, "failures", [failure] * 3)
    record.cancel(by="anna")
    look = CancelLook(record, shortest_s=0.001, longest_s=0.002)

    with caplog.at_level(logging.WARNING):
        look.start()
        deadline = time.monotonic() + 60
        while not look.cancelled() and look.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)

    assert look.cancelled()
    assert len(caplog.records) == 1


class SlowRecord(JobRecord):
    """A record that answers when it is let."""

    let: threading.Event

    def cancelled(self) -> bool:
        assert self.let.wait(60)
        return super().cancelled()


def slow_record(tmp_path: Path) -> SlowRecord:
    record = SlowRecord(DirectoryStore(tmp_path), "job-1")
    object.__setattr__(record, "let", threading.Event())
    record.cancel(by="anna")
    return record


def test_a_cancel_written_before_the_start_is_noticed_at_the_first_check(tmp_path: Path) -> None:
    record = slow_record(tmp_path)
    look = CancelLook(record, first_answer_s=30)
    look.start()
    timer = threading.Timer(0.1, record.let.set)
    timer.start()

    assert look.cancelled()

    timer.join()


def test_only_the_first_check_for_a_cancel_waits_for_the_store(tmp_path: Path) -> None:
    record = slow_record(tmp_path)
    look = CancelLook(record, first_answer_s=0.01)
    look.start()

    assert not look.cancelled()
    look._first_answer_s = 3600  # whoever waits again does not come back
    assert not look.cancelled()

    record.let.set()
