"""The bucket with the jobs on EC2. An object `.regions/<region>` records each region in which jobs were
launched.

Expired machines are found by their tags, but only in recorded regions. One listing returns all regions, for
any number of jobs. Each launch records its region before the request is sent.
"""

from __future__ import annotations

import re

from bai_agent.aws.credentials import from_botocore
from bai_agent.job.store import JobStore, open_store
from executor.backends.ec2.session import AwsSession
from executor.configuration.config import Settings

_ANY_REGION = "us-east-1"
"""Region if none is configured. Credentials are the same in all regions, but a client needs the name of a
region."""
_REGIONS = ".regions/"
_REGION = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-\d{1,2}")


def bucket_store(settings: Settings, *, quick: bool = False) -> JobStore:
    """Return the store of jobs on EC2: `jobs` in the configured bucket. Raises UsageError, StoreError."""
    return open_bucket(f"s3://{settings.need_bucket()}/jobs", settings, quick=quick)


def open_bucket(url: str, settings: Settings, *, quick: bool = False) -> JobStore:
    """Return the store at `url` (s3://…), accessed with the credentials of the configured profile. Raises
    UsageError, StoreError.

    quick: whether to use short timeouts, for optional requests.
    """
    ours = settings.bucket is not None and f"{url}/".startswith(f"s3://{settings.bucket}/")
    region = settings.region if ours else None
    aws = AwsSession(settings.region or _ANY_REGION, settings.aws_profile)
    return open_store(url, region=region, credentials=from_botocore(aws.credentials()), quick=quick)


def name_region(store: JobStore, region: str) -> None:
    """Record that machines are launched in `region`. Raises StoreError."""
    # The object is written again at each launch, so that a lifecycle rule for old jobs does not delete the
    # object while newer jobs exist.
    store.put(f"{_REGIONS}{region}", b"{}\n")


def named_regions(store: JobStore) -> list[str]:
    """Return the regions in which jobs of this store were launched. Raises StoreError."""
    names = [each.key.removeprefix(_REGIONS) for each in store.find(_REGIONS)]
    return [each for each in names if _REGION.fullmatch(each)]
