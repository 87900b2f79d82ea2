"""The time by the store's clock, which is the one that the ages of objects are measured with."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

from bai_agent.aws.s3_client import aws_address, endpoint_of
from bai_agent.job.run_directory import now_ms
from bai_agent.job.store import is_s3

_TIMEOUT_S = 5.0


def store_now(url: str) -> int:
    """Return the time (ms UTC) by the clock of the server behind the store `url`; ours for a folder.

    The server is asked once; from then on our own clock, moved by the difference, serves.
    """
    if not is_s3(url):
        return now_ms()
    bucket = url.removeprefix("s3://").partition("/")[0]
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    base = endpoint_of(os.environ) or aws_address(region)
    return time.monotonic_ns() // 1_000_000 + _offset(f"{base}/{bucket}")


def forget_clocks() -> None:
    """Ask servers anew for their time: after this process may have stood still, and its monotonic clock with it."""
    _offset.cache_clear()


@lru_cache(maxsize=8)
def _offset(address: str) -> int:
    """Return the server's time less the monotonic clock, in ms; our own time where the server gives none."""
    server_time = _server_time(address)
    now = now_ms() if server_time is None else round(server_time.timestamp() * 1000)
    return now - time.monotonic_ns() // 1_000_000


def _server_time(address: str) -> datetime | None:
    # S3 tells its time to everybody, with any answer: a refusal does as well.
    request = urllib.request.Request(address, method="HEAD")  # noqa: S310 - http(s) by construction
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - likewise
            date = answer.headers.get("Date")
    except urllib.error.HTTPError as error:
        date = error.headers.get("Date")
        error.close()
    except OSError:
        return None
    try:
        return parsedate_to_datetime(date) if date else None
    except ValueError:
        return None
