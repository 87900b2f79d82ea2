"""Where the jobs on EC2 are: a bucket."""

from __future__ import annotations

from bai_agent.aws.credentials import from_botocore
from bai_agent.job.store import JobStore, open_store
from executor.backends.ec2.session import AwsSession
from executor.config import Settings

_ANY_REGION = "us-east-1"
"""Credentials are the same in all regions; a client wants to hear one."""


def bucket_store(settings: Settings, *, quick: bool = False) -> JobStore:
    """Return the store of jobs on EC2: `jobs` in the configured bucket. Raises UsageError, StoreError."""
    return open_bucket(f"s3://{settings.need_bucket()}/jobs", settings, quick=quick)


def open_bucket(url: str, settings: Settings, *, quick: bool = False) -> JobStore:
    """Return the store at `url` (s3://…), in the name of the configured profile. Raises UsageError, StoreError.

    quick: it is asked in passing, without waiting for it.
    """
    ours = settings.bucket is not None and f"{url}/".startswith(f"s3://{settings.bucket}/")
    region = settings.region if ours else None
    aws = AwsSession(settings.region or _ANY_REGION, settings.aws_profile)
    return open_store(url, region=region, credentials=from_botocore(aws.credentials()), quick=quick)
