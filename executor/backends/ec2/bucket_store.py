"""The job store of jobs on EC2, in the configured bucket. An object `.regions/<region>` of the store records
each region in which jobs were launched.

bai finds expired machines by their tags, but only in recorded regions. One listing of the bucket returns all
recorded regions, however many jobs there are. Each launch records its region before it sends its request to
EC2.
"""

from __future__ import annotations

import re

from bai_agent.aws.credentials import from_botocore
from bai_agent.job.store import JobStore, open_store
from executor.backends.ec2.session import AwsSession
from executor.configuration.config import Settings

_ANY_REGION = "us-east-1"
"""Region of the AWS session if no region is configured. Credentials are the same in all regions, but an AWS
session needs a region."""
_REGIONS = ".regions/"
_REGION = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-\d{1,2}")


def bucket_store(settings: Settings, *, quick: bool = False) -> JobStore:
    """Return the store of jobs on EC2: the folder `jobs` in the configured bucket. Raises UsageError,
    StoreError."""
    return open_bucket(f"s3://{settings.need_bucket()}/jobs", settings, quick=quick)


def open_bucket(url: str, settings: Settings, *, quick: bool = False) -> JobStore:
    """Return the store at `url` (s3://…), accessed with the credentials of the configured profile. Raises
    UsageError, StoreError.

    quick: whether to use short timeouts, for requests whose failure does not stop the command.
    """
    ours = settings.bucket is not None and f"{url}/".startswith(f"s3://{settings.bucket}/")
    region = settings.region if ours else None
    aws = AwsSession(settings.region or _ANY_REGION, settings.aws_profile)
    return open_store(url, region=region, credentials=from_botocore(aws.credentials()), quick=quick)


def name_region(store: JobStore, region: str) -> None:
    """Record that machines are launched in `region`. Raises StoreError."""
    # Each launch rewrites the region's object, so that a lifecycle rule that deletes old objects does not
    # delete it while newer jobs exist.
    store.put(f"{_REGIONS}{region}", b"{}\n")


def named_regions(store: JobStore) -> list[str]:
    """Return the regions in which jobs of this store were launched. Raises StoreError."""
    names = [each.key.removeprefix(_REGIONS) for each in store.find(_REGIONS)]
    return [each for each in names if _REGION.fullmatch(each)]
