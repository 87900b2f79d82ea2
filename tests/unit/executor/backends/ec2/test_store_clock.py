"""The time by the store's clock, on a machine that sleeps."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from types import SimpleNamespace

import pytest

from executor.backends.ec2 import clock as store_clock
from executor.backends.ec2.clock import forget_clocks, store_now

SERVER_TIME = "Wed, 01 Jul 2026 12:00:00 GMT"
HOURS_MS = 2 * 3600 * 1000


def test_the_stores_clock_continues_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    real, slept_ns = time.clock_gettime_ns, 0

    def send(*_: object, **options: object) -> SimpleNamespace:
        nonlocal slept_ns
        slept_ns += 3_000_000_000  # the answer takes a while
        return SimpleNamespace(headers={"Date": SERVER_TIME})

    monkeypatch.setattr(store_clock, "send", send)
    forget_clocks()
    monkeypatch.setattr(
        time,
        "clock_gettime_ns",
        lambda clock: real(clock) + (slept_ns if clock == time.CLOCK_BOOTTIME else 0),
    )

    before = store_now("s3://bucket/jobs")
    slept_ns += HOURS_MS * 1_000_000
    after = store_now("s3://bucket/jobs")

    asked = parsedate_to_datetime(SERVER_TIME)
    assert datetime.fromtimestamp(before / 1000, tz=timezone.utc) >= asked
    assert after - before >= HOURS_MS
    forget_clocks()
