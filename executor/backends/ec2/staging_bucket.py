"""The staging bucket: files for instances, named by their content and uploaded once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bai_agent.aws.credentials import from_botocore
from bai_agent.aws.s3_client import bucket_region, endpoint_of
from bai_agent.job.store import JobStore, open_store
from bai_agent.light_dataclass import dataclass
from executor.backends.ec2.session import AwsSession
from executor.configuration.config import Settings
from executor.errors import UsageError

_AT_A_TIME = 4


@dataclass(frozen=True, kw_only=True)
class Upload:
    """A file that belongs into the bucket under `key`, which names its content."""

    key: str
    path: Path
    size: int
    what: str
    """For a person: "scripts", "data/train.csv"."""


def staging_bucket(settings: Settings) -> JobStore:
    """Return the staging bucket as a store of objects. Raises UsageError, StoreError."""
    aws = AwsSession(settings.need_region(), settings.aws_profile)
    return open_store(
        f"s3://{settings.need_bucket()}", region=aws.region, credentials=from_botocore(aws.credentials())
    )


def check_region(settings: Settings) -> None:
    """Raise UsageError if the staging bucket is in another region than the configured one.

    Every request is signed for the configured region, here and on instances, and S3 refuses requests for another region. If S3 does
    not tell the bucket's region, the configured one is accepted.
    """
    bucket, region = settings.need_bucket(), settings.need_region()
    there = bucket_region(
        bucket, endpoint=endpoint_of(os.environ), environment={**os.environ, "AWS_REGION": region}
    )
    if there != region:
        raise UsageError(
            f'the bucket {bucket} lies in {there}, and the configured region is {region}; write region = "{there}" into the '
            "configuration, and another one for the instances into the descriptor's [aws.ec2], or take a bucket of the region"
        )


def missing(bucket: JobStore, uploads: Sequence[Upload]) -> list[Upload]:
    """Return those of `uploads` that are not in the bucket yet, each once. Raises StoreError."""
    different = list({each.key: each for each in uploads}.values())
    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="look") as pool:
        there = pool.map(
            lambda each: any(found.key == each.key for found in bucket.find(each.key)), different
        )
        return [each for each, found in zip(different, there, strict=True) if not found]


def upload(
    bucket: JobStore, uploads: Sequence[Upload], *, on_upload: Callable[[Upload], None] = lambda upload: None
) -> None:
    """Upload the objects that are missing in the bucket; `on_upload` is called before each. Raises StoreError."""

    def bring(each: Upload) -> None:
        on_upload(each)
        bucket.put_file(each.key, each.path)

    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="upload") as pool:
        for done in [pool.submit(bring, each) for each in missing(bucket, uploads)]:
            done.result()
