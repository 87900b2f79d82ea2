"""A client for one bucket: its endpoint, its region, its time limits.

obstore (Rust) moves the bytes. Its own retries are the only ones: they cover refused and dropped connections, stalls,
5xx and throttling, and go on in the middle of a body with a Range.
"""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bai_agent.aws.credentials import credential_provider
from bai_agent.aws.imds_request import NoRedirects
from bai_agent.aws.s3_errors import S3Error, classify_s3_error

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3Store

_REGION_TIMEOUT_S = 5.0
_CHINA = "cn-"


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a client waits for an answer, and how often it asks again."""

    retries: int
    retry_for: timedelta
    """No new try is begun after so long."""
    silence: timedelta
    """A body that stands still for so long is broken off."""
    request: timedelta
    """The most that one request may take."""
    first_pause: timedelta = timedelta(milliseconds=250)
    longest_pause: timedelta = timedelta(seconds=15)


def connect(
    bucket: str,
    *,
    patience: Patience,
    prefix: str | None = None,
    region: str | None = None,
    endpoint: str | None = None,
    anonymous: bool = False,
    credentials: Callable[[], S3Credential] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> S3Store:
    """Return a client for `bucket`, or for what lies below `prefix` in it.

    Raises S3Error where there are no credentials, or the endpoint is not an address.

    `endpoint`, else `S3_ENDPOINT`, `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`, names another server than AWS's own; the
    bucket is then the path's first part.
    """
    # Its native part is loaded only where S3 is used.
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    endpoint = _address(endpoint or "") or endpoint_of(environment)
    if endpoint is not None and not _names_server(endpoint):
        raise S3Error(f'the endpoint "{endpoint}" is not an address; write for example "https://host:9000"')
    region = region or bucket_region(bucket, endpoint=endpoint, environment=environment)
    by_host = endpoint is None and "." not in bucket
    config: dict[str, Any] = {
        "region": region,
        "virtual_hosted_style_request": by_host,
        # A bucket with Object Lock takes nothing without a checksum:
        # https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html
        "checksum_algorithm": "SHA256",
    }
    if endpoint is not None:
        config["endpoint"] = endpoint
    elif region.startswith(_CHINA):
        # obstore knows no other domain than amazonaws.com.
        base = aws_address(region)
        config["endpoint"] = base.replace("://", f"://{bucket}.") if by_host else base
    if anonymous:
        config["skip_signature"] = True
    elif credentials is None:
        credentials = credential_provider(environment)
    try:
        return S3Store(
            bucket,
            prefix=prefix,
            config=config,  # type: ignore[arg-type] # built piece by piece
            client_options={
                "allow_http": endpoint is not None and endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=10),
                "read_timeout": patience.silence,
                "timeout": patience.request,
            },
            retry_config={
                "max_retries": patience.retries,
                "retry_timeout": patience.retry_for,
                "backoff": {
                    "init_backoff": patience.first_pause,
                    "max_backoff": patience.longest_pause,
                    "base": 3,
                },
            },
            credential_provider=credentials,
        )
    except BaseError as error:
        raise S3Error(classify_s3_error(error)) from error


def endpoint_of(environment: Mapping[str, str]) -> str | None:
    """Return the endpoint that the environment names; None for AWS's own."""
    for name in ("S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if address := _address(environment.get(name, "")):
            return address
    return None


def aws_address(region: str) -> str:
    """Return where AWS's own S3 is: https://docs.aws.amazon.com/general/latest/gr/s3.html, and for China
    https://docs.amazonaws.cn/en_us/aws/latest/userguide/endpoints-arns.html
    """
    return f"https://s3.{region}.amazonaws.com" + (".cn" if region.startswith(_CHINA) else "")


def bucket_region(bucket: str, *, endpoint: str | None, environment: Mapping[str, str]) -> str:
    """Return the region in which `bucket` lies; where that cannot be found out, the environment's.

    S3 tells it to everybody, in the header x-amz-bucket-region of any answer to HeadBucket, be it 200, 301 or 403:
    https://docs.aws.amazon.com/AmazonS3/latest/API/API_HeadBucket.html
    """
    fallback = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    base = endpoint or aws_address(fallback)
    if not base.startswith(("http://", "https://")):
        return fallback
    request = urllib.request.Request(f"{base}/{bucket}", method="HEAD")  # noqa: S310 - checked above
    opener = urllib.request.build_opener(NoRedirects)
    try:
        with opener.open(request, timeout=_REGION_TIMEOUT_S) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
        error.close()
    except (OSError, http.client.HTTPException, ValueError):
        # No server, none that speaks HTTP, or a name that cannot be one: whoever uses the bucket then says so.
        return fallback
    return headers.get("x-amz-bucket-region") or fallback


def _address(text: str) -> str | None:
    value = text.strip().rstrip("/")
    return (value if "://" in value else f"https://{value}") if value else None


def _names_server(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
