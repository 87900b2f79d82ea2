"""What `bai doctor` tries of the bucket: whether it can be used, and what it costs unseen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from botocore.exceptions import ClientError

from executor.backends.ec2.doctor.findings import Health, HealthFinding, guarded, refused
from executor.backends.ec2.session import DENIED, FAILURES, AwsSession, code_of
from executor.config import Settings, config_file

_PROBE = "jobs/.doctor/probe.json"
"""An object of a few bytes that stays: whoever asks again finds that a conditional put of it fails, as it must."""


def bucket_findings(settings: Settings, aws: AwsSession, *, instances: str) -> Iterator[HealthFinding]:
    """Yield what was found of the configured bucket. instances: the region of the machines that will use it."""
    if not settings.bucket:
        yield HealthFinding(
            "bucket",
            Health.FAILED,
            "none is configured",
            f'write bucket = "…" into {config_file(os.environ)}',
            configuration=True,
        )
        return
    bucket = settings.bucket
    s3 = aws.s3()
    try:
        headers = s3.head_bucket(Bucket=bucket)["ResponseMetadata"]["HTTPHeaders"]
    except ClientError as error:
        code = code_of(error)
        if code in ("404", "NoSuchBucket"):
            yield HealthFinding(
                "bucket",
                Health.FAILED,
                f"{bucket} does not exist",
                f"make it: aws s3 mb s3://{bucket} --region {aws.region}",
            )
        elif code in ("301", "PermanentRedirect"):
            yield HealthFinding(
                "bucket",
                Health.FAILED,
                f"{bucket} lies in another region than {aws.region}",
                "configure its region",
                configuration=True,
            )
        elif code in ("403", *DENIED):
            yield HealthFinding(
                "bucket",
                Health.FAILED,
                f"{bucket} may not be used",
                "it is somebody else's, or the policy lacks s3:ListBucket",
            )
        else:
            yield refused("bucket", error)
        return
    except FAILURES as error:
        yield refused("bucket", error)
        return
    there = headers.get("x-amz-bucket-region") or aws.region
    if there != aws.region:
        # S3 refuses what is signed for another region, and jobs are told the configured one.
        yield HealthFinding(
            "bucket",
            Health.FAILED,
            f"{bucket} lies in {there}, and the configured region is {aws.region}",
            f'write region = "{there}" into the configuration (a descriptor\'s [aws.ec2] region may name another one for the '
            "instances), or take a bucket of the region",
        )
        return
    yield HealthFinding("bucket", Health.OK, f"{bucket} in {there}")
    if instances != aws.region:
        yield HealthFinding(
            "bucket",
            Health.WARNING,
            f"{bucket} lies in {there}, and the machines will be in {instances}: each GB between them is paid for, and a gateway "
            f"endpoint of {instances} does not lead to it",
            f"take a bucket in {instances}, or machines in {there}",
        )
    yield guarded("bucket list", lambda: _listable(s3, bucket))
    yield guarded("bucket write", lambda: _conditional(s3, bucket))
    yield guarded("bucket versions", lambda: _versions(s3, bucket))


def _listable(s3: Any, bucket: str) -> HealthFinding:
    s3.list_objects_v2(Bucket=bucket, Prefix="jobs/", MaxKeys=1)
    return HealthFinding("bucket list", Health.OK, "jobs/ can be listed")


def _conditional(s3: Any, bucket: str) -> HealthFinding:
    """Put an object twice on condition that there is none; the second time must fail."""
    for _ in range(2):
        try:
            # Object Lock takes nothing without a checksum.
            s3.put_object(
                Bucket=bucket, Key=_PROBE, Body=b"{}\n", IfNoneMatch="*", ChecksumAlgorithm="SHA256"
            )
        except ClientError as error:
            if code_of(error) in ("PreconditionFailed", "412", "ConditionalRequestConflict"):
                return HealthFinding(
                    "bucket write", Health.OK, "objects can be written, on condition that there is none"
                )
            raise
    return HealthFinding(
        "bucket write",
        Health.FAILED,
        "the server ignores If-None-Match, so a job could be launched twice",
        "use Amazon S3, or a server that knows conditional writes",
    )


def _versions(s3: Any, bucket: str) -> HealthFinding:
    """Look whether old versions of objects, which a versioned bucket keeps and charges for, ever go."""
    try:
        if s3.get_bucket_versioning(Bucket=bucket).get("Status") != "Enabled":
            return HealthFinding("bucket versions", Health.OK, "none are kept")
        rules = _lifecycle_rules(s3, bucket)
    except ClientError as error:
        if code_of(error) in DENIED:
            return HealthFinding(
                "bucket versions",
                Health.UNKNOWN,
                "these credentials may not look at them (s3:GetBucketVersioning, s3:GetLifecycleConfiguration)",
            )
        raise
    if any(each.get("Status") == "Enabled" and "NoncurrentVersionExpiration" in each for each in rules):
        return HealthFinding("bucket versions", Health.OK, "kept, and a lifecycle rule removes old ones")
    return HealthFinding(
        "bucket versions",
        Health.WARNING,
        "all are kept for ever and paid for, even of what was deleted: no lifecycle rule is about old ones",
        f"add one with NoncurrentVersionExpiration: aws s3api put-bucket-lifecycle-configuration --bucket {bucket}",
    )


def _lifecycle_rules(s3: Any, bucket: str) -> list[dict[str, Any]]:
    try:
        return list(s3.get_bucket_lifecycle_configuration(Bucket=bucket).get("Rules", ()))
    except ClientError as error:
        if code_of(error) == "NoSuchLifecycleConfiguration":
            return []
        raise
