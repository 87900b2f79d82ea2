"""A cancel is heard, whatever went wrong before."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from bai_agent.errors import StoreError
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.run.cancel import CancelLook


class PanicException(BaseException):
    """As a library written in Rust raises it: no Exception."""


class Failing(JobRecord):
    """A record at which the first looks fail."""

    failures: list[BaseException]

    def cancelled(self) -> bool:
        if self.failures:
            raise self.failures.pop()
        return super().cancelled()


@pytest.mark.parametrize("failure", [StoreError("away"), KeyError("x"), PanicException("panicked")])
def test_a_look_that_fails_is_not_the_last_one(
    tmp_path: Path, failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    record = Failing(DirectoryStore(tmp_path), "job-1")
    object.__setattr__(record, "failures", [failure] * 3)
    record.cancel(by="anna")
    look = CancelLook(record, shortest=0.001, longest=0.002)

    with caplog.at_level(logging.WARNING):
        look.start()
        deadline = time.monotonic() + 30
        while not look.cancelled() and look.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)

    assert look.cancelled()
    assert len(caplog.records) == 1
