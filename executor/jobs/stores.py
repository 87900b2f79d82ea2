"""Which job stores a command looks into.

`--store` or BAI_STORE names one, a folder or s3://bucket/prefix, and only that one is looked into. Where none is named, they
are the folder ~/.bai/jobs and, where a bucket is configured, `jobs` in it; what is found in the folder comes first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from bai_agent.job.store import JobStore, open_store
from executor.config import Settings, read_settings
from executor.jobs.jobs import store_at

_ANY_REGION = "us-east-1"
"""Credentials are the same in all regions; a client wants to hear one."""


def stores(named: str | None, settings: Callable[[], Settings] = read_settings) -> Iterator[JobStore]:
    """Yield the stores to look into, the nearest first; each is opened only when it is asked for.

    named: `--store`. settings: asked where they are needed. Raises UsageError, StoreError.
    """
    chosen_here = named or None
    named = chosen_here or os.environ.get("BAI_STORE") or None
    if named is not None and is_bucket(named):
        yield open_bucket(named, settings())
        return
    yield store_at(chosen_here, exists=True)
    if named is None:
        chosen = settings()
        if chosen.store_url is not None:
            yield bucket_store(chosen)


def bucket_store(settings: Settings, *, quick: bool = False) -> JobStore:
    """Return the store of jobs on EC2: `jobs` in the configured bucket. Raises UsageError, StoreError."""
    return open_bucket(f"s3://{settings.need_bucket()}/jobs", settings, quick=quick)


def open_bucket(url: str, settings: Settings, *, quick: bool = False) -> JobStore:
    """Return the store at `url` (s3://…), in the name of the configured profile. Raises UsageError, StoreError.

    quick: it is asked in passing, without waiting for it.
    """
    from bai_agent.aws.credentials import from_botocore
    from executor.backends.ec2.session import AwsSession

    region = settings.region if url == settings.store_url else None
    aws = AwsSession(settings.region or _ANY_REGION, settings.aws_profile)
    return open_store(url, region=region, credentials=from_botocore(aws.credentials()), quick=quick)


def is_bucket(named: str) -> bool:
    return named.startswith("s3://")
