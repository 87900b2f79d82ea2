"""Reads the clock of the store's server, and formats times and time spans. Ages of objects are computed with
the server's clock, because that clock also sets the objects' timestamps."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from functools import lru_cache
from urllib.error import URLError

from bai_agent.aws.credentials import region_in
from bai_agent.aws.http_answer import send
from bai_agent.aws.s3_client import aws_address, endpoint_of
from bai_agent.job.run_directory import now_ms
from bai_agent.job.schema.durations import format_duration
from bai_agent.job.store import JobStore, is_s3

_TIMEOUT_S = 5.0
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that cannot be set, and that continues while the machine sleeps. On Linux, CLOCK_MONOTONIC stops
during sleep; on a Mac it continues."""


def store_now(url: str) -> int:
    """Return the time (ms UTC) by the clock of the store's server, or by this machine's clock if the store
    `url` is a folder.

    The server is queried once. A later time is this machine's uptime, including sleep, plus the difference between
    server time and uptime at the query.
    """
    if not is_s3(url):
        return now_ms()
    bucket = url.removeprefix("s3://").partition("/")[0]
    region = region_in(os.environ) or "us-east-1"
    base = endpoint_of(os.environ) or aws_address(region)
    # The server is queried before this machine's clock is read, because the server's answer may take seconds.
    offset = _offset(f"{base}/{bucket}")
    return offset + _since_start()


def age_of(store: JobStore, key: str, now: int) -> timedelta | None:
    """Return the age of an object; if the key ends with a slash, the age of the youngest object below the
    key. Returns None if no such object exists. now: the store's time (ms UTC). Raises StoreError."""
    found = store.find(key)
    times = [each.modified or now for each in found if key.endswith("/") or each.key == key]
    return elapsed(max(times), now) if times else None


def elapsed(since: int, now: int) -> timedelta:
    """Return the time from `since` to `now` (ms UTC); 0 if `since` is in the future, for example because
    another clock set it."""
    return timedelta(milliseconds=max(0, now - since))


def moment(ms: int) -> datetime:
    """Return a time given in ms UTC."""
    return datetime.fromtimestamp(ms / 1000, tz=timezone.utc)


def span(age: timedelta) -> str:
    """Return a time span in whole seconds, as text for the user."""
    return format_duration(timedelta(seconds=max(0, round(age.total_seconds()))))


def forget_clocks() -> None:
    """Forget the servers' times, so that the next `store_now` queries the server again. Call this function if
    the process and the machine's clock may have been suspended."""
    _offset.cache_clear()


@lru_cache(maxsize=8)
def _offset(address: str) -> int:
    """Return the server's time minus this machine's uptime (ms). If the server reports no time, this
    machine's time is used."""
    server_time = _server_time(address)
    now = now_ms() if server_time is None else round(server_time.timestamp() * 1000)
    return now - _since_start()


def _since_start() -> int:
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def _server_time(address: str) -> datetime | None:
    # S3 reports its time in every answer, even in a refusal and without credentials.
    try:
        date = send(address, method="HEAD", timeout_s=_TIMEOUT_S).headers.get("Date")
        return parsedate_to_datetime(date) if date else None
    except (URLError, ValueError):
        return None
