"""Checks at submission whether web servers have a job's sources, so that a wrong address is reported at
once."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from bai_agent.job.descriptor.source_tables import Source
from bai_agent.job.schema.source_schemes import scheme_of, source_name

_GONE = frozenset({401, 403, 404, 410})
"""HTTP statuses that a retry would not change. After a status that is not in this set, the agent's pull
retries the request."""
_REQUEST_SECONDS = 3.0
_ALL_SECONDS = 5.0
_AT_ONCE = 8


def refused_sources(sources: Sequence[Source]) -> list[str]:
    """Return a sentence for each source that its web server refuses or does not have. The check takes at most
    a few seconds. Sources that already exist on this machine are skipped. A server that is slow or broken
    does not count as refusing a source.
    """
    asked = [
        each
        for each in sources
        if scheme_of(each.src) in ("http", "https") and not _is_there(Path(each.path))
    ]
    if not asked:
        return []
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="source-check")
    answers = {pool.submit(_status, each.src): each for each in asked}
    done, _ = wait(answers, timeout=_ALL_SECONDS)
    pool.shutdown(wait=False, cancel_futures=True)
    found = {answers[each].src: each.result() for each in done}
    return [
        f"{source_name(each.src)}: its server answers {found[each.src]}; correct the address, or its permissions"
        for each in asked
        if found.get(each.src) in _GONE
    ]


def _is_there(path: Path) -> bool:
    # A source with a relative path goes into the job's own folder, which is new, so the file cannot exist
    # yet.
    return path.is_absolute() and os.path.exists(path)  # noqa: PTH110 - Path.exists raises in a folder that may not be entered


def _status(src: str) -> int | None:
    """Return the server's HTTP status for `src`; None if the server does not answer."""
    status = _answer(urllib.request.Request(src, method="HEAD"))  # noqa: S310 - http and https only
    if status is None or status < 400:
        return status
    # Some servers do not support HEAD, and an address that was signed for GET is refused for other methods.
    return _answer(urllib.request.Request(src, headers={"Range": "bytes=0-0"}))  # noqa: S310


def _answer(request: urllib.request.Request) -> int | None:
    try:
        with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS) as response:  # noqa: S310
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except (OSError, http.client.HTTPException, ValueError):
        return None
