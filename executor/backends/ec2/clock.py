"""The time by the store's clock, which is the one that the ages of objects are measured with."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

from bai_agent.aws.s3_client import aws_address, endpoint_of
from bai_agent.job.run_directory import now_ms

_TIMEOUT = 5.0


def store_now(url: str, environment: Mapping[str, str] = os.environ) -> int:
    """Return the time (ms UTC) by the clock of the server behind the store `url`; ours for a folder.

    The server is asked once; from then on our own clock, moved by the difference, serves.
    """
    if not url.startswith("s3://"):
        return now_ms()
    bucket = url.removeprefix("s3://").partition("/")[0]
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    base = endpoint_of(environment) or aws_address(region)
    return time.monotonic_ns() // 1_000_000 + _offset(f"{base}/{bucket}")


@lru_cache(maxsize=8)
def _offset(address: str) -> int:
    """Return the server's time less the monotonic clock, in ms; where no server tells, our own time's."""
    moment = _told(address)
    told = now_ms() if moment is None else round(moment.timestamp() * 1000)
    return told - time.monotonic_ns() // 1_000_000


def _told(address: str) -> datetime | None:
    # S3 tells its time to everybody, with any answer: a refusal does as well.
    request = urllib.request.Request(address, method="HEAD")  # noqa: S310 - http(s) by construction
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310 - likewise
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
