"""Creates clients for S3 buckets with endpoint, region and time limits, and translates S3's errors into
sentences.

The library obstore (written in Rust) uploads and downloads the objects. Only obstore retries requests, after
refused and dropped connections, stalls, 5xx and throttling. A retry resumes the response's body with a Range.
S3's error codes are found in the texts of obstore's errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import urlsplit

from bai_agent.aws.credentials import credential_provider, region_in
from bai_agent.aws.http_answer import send
from bai_agent.errors import S3Error
from bai_agent.light_dataclass import dataclass

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3Store

_REGION_TIMEOUT_S = 5.0
_CHINA = "cn-"


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Time limits and retries of an S3 client."""

    retries: int
    retry_for: timedelta
    """Longest time from the start of a request to the start of its last try."""
    silence: timedelta
    """Longest time without a received byte before a request is aborted."""
    request: timedelta
    """Longest time of one request."""
    first_pause: timedelta = timedelta(milliseconds=250)
    longest_pause: timedelta = timedelta(seconds=15)


def connect(
    bucket: str,
    *,
    patience: RetryPolicy,
    prefix: str | None = None,
    region: str | None = None,
    endpoint: str | None = None,
    anonymous: bool = False,
    credentials: Callable[[], S3Credential] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> S3Store:
    """Return a client for `bucket`, or for the keys below `prefix` in the bucket.

    Raises CredentialsError if there are no credentials, and S3Error if the endpoint is not an address.

    `endpoint` replaces AWS's server. If `endpoint` is None, the environment variable `S3_ENDPOINT`,
    `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL` replaces AWS's server. In the URLs of a server that replaces
    AWS's, the bucket is the first part of the path.
    """
    # Imported here, so that obstore's native part is loaded only if S3 is used.
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
        # A bucket with Object Lock refuses objects without a checksum:
        # https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html
        "checksum_algorithm": "SHA256",
    }
    if endpoint is not None:
        config["endpoint"] = endpoint
    elif region.startswith(_CHINA):
        # obstore itself only uses the domain amazonaws.com, but buckets in China are in another domain.
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
    """Return the S3 endpoint in the environment's variables; None if no variable is set."""
    for name in ("S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if address := _address(environment.get(name, "")):
            return address
    return None


def aws_address(region: str) -> str:
    """Return the address of AWS's own S3: https://docs.aws.amazon.com/general/latest/gr/s3.html, for China
    https://docs.amazonaws.cn/en_us/aws/latest/userguide/endpoints-arns.html
    """
    return f"https://s3.{region}.amazonaws.com" + (".cn" if region.startswith(_CHINA) else "")


def bucket_region(bucket: str, *, endpoint: str | None, environment: Mapping[str, str]) -> str:
    """Return the region of `bucket`, or the environment's region if the bucket's region cannot be determined.

    S3 sends the region even without credentials, in the header x-amz-bucket-region of any answer to
    HeadBucket (200, 301 or 403): https://docs.aws.amazon.com/AmazonS3/latest/API/API_HeadBucket.html
    """
    fallback = region_in(environment) or "us-east-1"
    base = endpoint or aws_address(fallback)
    if not base.startswith(("http://", "https://")):
        return fallback
    try:
        answer = send(f"{base}/{bucket}", method="HEAD", timeout_s=_REGION_TIMEOUT_S)
    except URLError:
        # The server is missing or does not use HTTP, or the bucket's name is invalid. The first use of the
        # bucket reports this error.
        return fallback
    return answer.headers.get("x-amz-bucket-region") or fallback


def _address(text: str) -> str | None:
    value = text.strip().rstrip("/")
    return (value if "://" in value else f"https://{value}") if value else None


def _names_server(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def classify_s3_error(error: Exception, *, missing: str | None = None, denied: str | None = None) -> str:
    """Return the meaning of `error` as a phrase for a message. missing, denied: texts to return instead if
    access was denied (`missing` has precedence)."""
    code = code_of(error)
    text = f"{type(error).__name__}: {error}"
    if code in _MEANINGS:
        return _MEANINGS[code]
    if code == "AccessDenied" or re.search("status code: 403|^PermissionDenied", text):
        return missing or denied or _DENIED
    for sign, sentence in _SIGNS:
        if found := re.search(sign, text):
            return sentence.format(*found.groups())
    detail = " ".join(str(error).split("Debug source")[0].split())
    return f"S3 did not answer as it should: {detail[:500]}"


def is_refusal(error: Exception) -> bool:
    """Return whether a retry is useless, because the request, the bucket or the credentials must change
    first."""
    if re.search(_NO_METADATA, str(error)):
        return False  # the service may answer later
    return (
        code_of(error) in {*_MEANINGS, "AccessDenied"}
        or any(sign in type(error).__name__ for sign in ("PermissionDenied", "Unauthenticated"))
        or "without LOCATION" in str(error)
    )


def code_of(error: Exception) -> str:
    """Return S3's code of `error`, such as "NoSuchBucket"; empty if there is none."""
    found = re.search(r"<Code>(\w+)</Code>", str(error))
    return found.group(1) if found else ""


_DENIED = "access denied; the credentials need s3:GetObject on the key (and, for a folder, s3:ListBucket on its bucket)"
DENIED_OR_MISSING = (
    "access denied, or there is no such key (S3 reports which only if the credentials have s3:ListBucket); "
    "check the key, and that the credentials have s3:GetObject on the key"
)
_ELSEWHERE = "the bucket is in another region; name that region as `region`"
_MEANINGS = {
    "NoSuchBucket": "there is no bucket of that name; check its spelling and the endpoint",
    "InvalidBucketName": "the name of the bucket is invalid",
    "InvalidAccessKeyId": "the credentials are unknown to S3; check the access key",
    "SignatureDoesNotMatch": "the credentials were refused (wrong secret key, or this machine's clock is off)",
    "RequestTimeTooSkewed": "this machine's clock is off by more than 15 minutes; set it",
    "ExpiredToken": "the credentials have expired; renew them",
    "InvalidToken": "the session token of the credentials is not valid; renew them",
    "AuthorizationHeaderMalformed": _ELSEWHERE,
    "PermanentRedirect": _ELSEWHERE,
    "InvalidObjectState": "the object is archived (Glacier); restore it first",
}
_NO_METADATA = r"\bMetadataError: (.+)"
"""Regular expression that matches obstore's error text if bai's credential provider failed because of the
instance metadata service."""
_SIGNS = (
    (_NO_METADATA, "there are no credentials: {}"),
    ("status code: 401|^Unauthenticated", "the credentials were refused; renew them"),
    (
        "<Code>NoSuchKey</Code>|^FileNotFoundError",
        "there is no such key and nothing below it; compare it with the bucket's listing",
    ),
    (
        "^PreconditionError",
        "the object was replaced while it was read; run again when nothing writes to the object any more",
    ),
    (
        '(?s)(?:InvalidPath|parse path).*?[Pp]ath "([^"]*)"',
        'the key "{}" has an empty, "." or ".." part and cannot be a file; rename it',
    ),
    ("dns error", "the endpoint's name cannot be resolved; check S3_ENDPOINT and the network"),
    ("Connection refused", "the endpoint refused the connection; check S3_ENDPOINT and that the server runs"),
    (
        "InvalidCertificate",
        "the endpoint's TLS certificate is not trusted; check S3_ENDPOINT and SSL_CERT_FILE",
    ),
    ("InvalidMessage", "the endpoint does not speak TLS; use http:// in S3_ENDPOINT if that is intended"),
    (
        "TimedOut|deadline has elapsed",
        "the endpoint did not answer in time; check S3_ENDPOINT and the network",
    ),
    ("without LOCATION", _ELSEWHERE),
)
"""Regular expressions for an error's type and text, each with the meaning of the error. The first expression
that matches gives the meaning."""
