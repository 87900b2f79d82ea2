"""Which job stores a command looks into.

`--store` or BAI_STORE names one, a folder or s3://bucket/prefix, and only that one is looked into. Where none is named, they
are the folder ~/.bai/jobs and, where a bucket is configured, `jobs` in it; what is found in the folder comes first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from bai_agent.job.store import JobStore
from executor.backends.local.job_store import store_at
from executor.config import Settings, read_settings


def stores(named: str | None, settings: Callable[[], Settings] = read_settings) -> Iterator[JobStore]:
    """Yield the stores to look into, the nearest first; each is opened only when it is asked for.

    named: `--store`. settings: asked where they are needed. Raises UsageError, StoreError.
    """
    chosen_here = named or None
    named = chosen_here or os.environ.get("BAI_STORE") or None
    if named is not None and named.startswith("s3://"):
        yield _open_bucket(named, settings())
        return
    yield store_at(chosen_here, exists=True)
    if named is None:
        chosen = settings()
        if chosen.store_url is not None:
            yield _open_bucket(chosen.store_url, chosen)


def _open_bucket(url: str, settings: Settings) -> JobStore:
    # Whoever has no bucket does not wait for what asks AWS.
    from executor.backends.ec2.job_store import open_bucket

    return open_bucket(url, settings)
