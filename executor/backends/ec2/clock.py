"""The time by the store's clock, which also dates the objects whose ages are measured."""

from __future__ import annotations

import os
import time
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from urllib.error import URLError

from bai_agent.aws.http_answer import send
from bai_agent.aws.s3_client import aws_address, endpoint_of
from bai_agent.job.run_directory import now_ms
from bai_agent.job.store import is_s3

_TIMEOUT_S = 5.0
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that cannot be set, and that continues while the machine sleeps: CLOCK_MONOTONIC stops then on
Linux, but not on a Mac."""


def store_now(url: str) -> int:
    """Return the time (ms UTC) by the clock of the server of the store `url`; ours for a folder.

    The server is asked once. After that the time since this machine's start is used, its sleep included, corrected by the difference.
    """
    if not is_s3(url):
        return now_ms()
    bucket = url.removeprefix("s3://").partition("/")[0]
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    base = endpoint_of(os.environ) or aws_address(region)
    # The server is asked before this machine's clock is read: the answer may take seconds.
    offset = _offset(f"{base}/{bucket}")
    return offset + _since_start()


def forget_clocks() -> None:
    """Ask servers again for their time: this process, and the clock of its machine, may have stood still."""
    _offset.cache_clear()


@lru_cache(maxsize=8)
def _offset(address: str) -> int:
    """Return the server's time minus that since this machine's start (ms); our own time if the server gives none."""
    server_time = _server_time(address)
    now = now_ms() if server_time is None else round(server_time.timestamp() * 1000)
    return now - _since_start()


def _since_start() -> int:
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def _server_time(address: str) -> datetime | None:
    # S3 reports its time with any answer, even with a refusal, and to everybody.
    try:
        date = send(address, method="HEAD", timeout_s=_TIMEOUT_S).headers.get("Date")
        return parsedate_to_datetime(date) if date else None
    except (URLError, ValueError):
        return None
