"""Asks web servers before a run whether they have what it pulls, so that a wrong address is found at once."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from bai_agent.job.descriptor import Source
from bai_agent.job.source_schemes import scheme_of, source_name

_GONE = frozenset({401, 403, 404, 410})
"""Answers that waiting does not change; all others are left to the pull, which tries again."""
_REQUEST_SECONDS = 3.0
_ALL_SECONDS = 5.0
_AT_ONCE = 8


def refused_sources(sources: Sequence[Source]) -> list[str]:
    """Return a sentence for each source that its web server refuses or does not have, within some seconds.

    Not asked for: what lies in place already. A server that is slow, away or out of order proves nothing.
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
        f"{source_name(each.src)}: its server answers {found[each.src]}; correct the address, or see who may read it"
        for each in asked
        if found.get(each.src) in _GONE
    ]


def _is_there(path: Path) -> bool:
    # A relative path lies in the job's own folder, which is new.
    return path.is_absolute() and os.path.exists(path)  # noqa: PTH110 - Path.exists raises where it may not look


def _status(src: str) -> int | None:
    """Return the status with which the server answers for `src`; None where it gives none."""
    status = _answer(urllib.request.Request(src, method="HEAD"))  # noqa: S310 - http and https only
    if status is None or status < 400:
        return status
    # Not every server knows HEAD, and an address that was signed for GET is refused for anything else.
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
