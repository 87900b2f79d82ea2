"""A client for one bucket: its endpoint, its region, whose credentials; and what its errors mean to a person.

obstore (Rust) moves the bytes. Its own retries are the only ones: they cover refused and dropped connections, stalls,
5xx and throttling, and go on in the middle of a body with a Range.
"""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bai_agent.errors import PullError

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3Store

RETRIES = 9
"""With the pauses below, some 35 seconds of an endpoint that does not answer at all."""
_REGION_TIMEOUT = 5.0
_CREDENTIALS_LIVE = timedelta(minutes=15)
_METADATA = "http://169.254.169.254"
_OWN_PROVIDERS = (
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)


def connect(
    bucket: str, *, src: str, region: str | None, anonymous: bool, environment: Mapping[str, str] = os.environ
) -> S3Store:
    """Return a client for `bucket`. Raises PullError where there are no credentials.

    `S3_ENDPOINT` (else `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`) names another server than AWS's own; the bucket is
    then the path's first part.
    """
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    endpoint = endpoint_of(environment)
    region = region or bucket_region(bucket, endpoint=endpoint, environment=environment)
    config: dict[str, Any] = {
        "region": region,
        "virtual_hosted_style_request": endpoint is None and "." not in bucket,
    }
    if endpoint is not None:
        config["endpoint"] = endpoint
    provider = None
    if anonymous:
        config["skip_signature"] = True
    else:
        provider = _credentials(src, environment)
    try:
        return S3Store(
            bucket,
            config=config,  # type: ignore[arg-type] # built piece by piece
            client_options={
                "allow_http": endpoint is not None and endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=10),
                "read_timeout": timedelta(seconds=30),
                "timeout": timedelta(minutes=30),
            },
            retry_config={
                "max_retries": RETRIES,
                "retry_timeout": timedelta(minutes=3),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=250),
                    "max_backoff": timedelta(seconds=15),
                    "base": 3,
                },
            },
            credential_provider=provider,
        )
    except BaseError as error:
        raise s3_problem(src, error) from error


def endpoint_of(environment: Mapping[str, str]) -> str | None:
    """Return the endpoint that the environment names; None for AWS's own."""
    for name in ("S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        value = environment.get(name, "").strip().rstrip("/")
        if value:
            return value if "://" in value else f"https://{value}"
    return None


def bucket_region(bucket: str, *, endpoint: str | None, environment: Mapping[str, str]) -> str:
    """Return the region in which `bucket` lies; where that cannot be found out, the environment's.

    S3 tells it to everybody, in the header x-amz-bucket-region of any answer to HeadBucket, be it 200, 301 or 403:
    https://docs.aws.amazon.com/AmazonS3/latest/API/API_HeadBucket.html
    """
    fallback = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    base = endpoint or f"https://s3.{fallback}.amazonaws.com" + (".cn" if fallback.startswith("cn-") else "")
    if not base.startswith(("http://", "https://")):
        return fallback
    request = urllib.request.Request(f"{base}/{bucket}", method="HEAD")  # noqa: S310 - checked above
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=_REGION_TIMEOUT) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
        error.close()
    except OSError:
        return fallback
    return headers.get("x-amz-bucket-region") or fallback


def s3_problem(src: str, error: Exception, *, missing: str | None = None) -> PullError:
    """Return what `error` of a request for `src` means. obstore's errors are text: the codes within are S3's own."""
    text = str(error)
    found = re.search(r"<Code>(\w+)</Code>", text)
    code = found.group(1) if found else ""
    status = re.search(r"status code: (\d{3})", text)
    number = status.group(1) if status else ""
    if code in _MEANINGS:
        return PullError(f"{src}: {_MEANINGS[code]}")
    if code == "AccessDenied" or number == "403" or "PermissionDenied" in type(error).__name__:
        return PullError(f"{src}: {missing or _DENIED}")
    if number == "401" or "Unauthenticated" in type(error).__name__:
        return PullError(f"{src}: the credentials were refused; renew them")
    if code == "NoSuchKey" or isinstance(error, FileNotFoundError):
        return PullError(
            f"{src}: there is no such key, and nothing below it; compare it with the bucket's listing"
        )
    if "PreconditionError" in type(error).__name__:
        return PullError(
            f"{src}: the object was replaced while it was read; run again when nobody writes to it"
        )
    if "InvalidPath" in text or "parse path" in text:
        key = re.search(r'[Pp]ath "([^"]*)"', text)
        return PullError(
            f'{src}: the key "{key.group(1) if key else text}" has an empty, "." or ".." part and can be no file; rename it'
        )
    for sign, sentence in _CONNECTION:
        if sign in text:
            return PullError(f"{src}: {sentence}")
    if "without LOCATION" in text:
        return PullError(f"{src}: the bucket lies in another region; name it as `region` of the source")
    detail = " ".join(text.split("Debug source")[0].split())
    return PullError(f"{src}: S3 did not deliver it: {detail[:500]}")


_DENIED = (
    "access denied; the credentials need s3:GetObject on it (and s3:ListBucket on its bucket for a folder)"
)
DENIED_OR_MISSING = (
    "access denied, or there is no such key: S3 says the same to who may not list the bucket; "
    "check the key, and that the credentials have s3:GetObject on it"
)
_MEANINGS = {
    "NoSuchBucket": "there is no bucket of that name; check its spelling and the endpoint",
    "InvalidBucketName": "that is no valid name of a bucket",
    "InvalidAccessKeyId": "the credentials are unknown to S3; check the access key",
    "SignatureDoesNotMatch": "the credentials were refused (wrong secret key, or this machine's clock is off)",
    "RequestTimeTooSkewed": "this machine's clock is off by more than 15 minutes; set it",
    "ExpiredToken": "the credentials have expired; renew them",
    "InvalidToken": "the session token of the credentials is not valid; renew them",
    "AuthorizationHeaderMalformed": "the bucket lies in another region; name it as `region` of the source",
    "PermanentRedirect": "the bucket lies in another region; name it as `region` of the source",
    "InvalidObjectState": "the object is archived (Glacier); restore it first",
}
_CONNECTION = (
    ("dns error", "the endpoint's name cannot be resolved; check S3_ENDPOINT and the network"),
    ("Connection refused", "the endpoint refused the connection; check S3_ENDPOINT and that the server runs"),
    ("certificate", "the endpoint's TLS certificate is not trusted; check S3_ENDPOINT and SSL_CERT_FILE"),
    ("InvalidMessage", "the endpoint does not speak TLS; use http:// in S3_ENDPOINT if that is meant"),
    ("TimedOut", "the endpoint did not answer in time; check S3_ENDPOINT and the network"),
    ("deadline has elapsed", "the endpoint did not answer in time; check S3_ENDPOINT and the network"),
)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _credentials(src: str, environment: Mapping[str, str]) -> Callable[[], S3Credential] | None:
    """Return a provider of credentials; None where obstore finds them itself. Raises PullError where there are none."""
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        return None
    if find_spec("botocore") is not None:
        return _botocore_credentials(src)
    if any(environment.get(name) for name in _OWN_PROVIDERS) or _on_instance(environment):
        return None
    raise _no_credentials(src)


def _botocore_credentials(src: str) -> Callable[[], S3Credential]:
    import botocore.session
    from botocore.exceptions import BotoCoreError

    # obstore.auth.boto3 would do, but needs Python 3.11.
    try:
        credentials = botocore.session.Session().get_credentials()
    except BotoCoreError as error:
        raise PullError(f"{src}: the AWS configuration cannot be used: {error}") from error
    if credentials is None:
        raise _no_credentials(src)

    def provide() -> S3Credential:
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key or "",
            "secret_access_key": frozen.secret_key or "",
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc) + _CREDENTIALS_LIVE,
        }

    return provide


def _on_instance(environment: Mapping[str, str]) -> bool:
    """Return whether the instance metadata service answers: without it, obstore would try for minutes."""
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return False
    base = environment.get("AWS_METADATA_ENDPOINT", _METADATA)
    request = urllib.request.Request(  # noqa: S310 - an address of our own choice
        f"{base}/latest/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(3):
        try:
            with opener.open(request, timeout=2):
                return True
        except OSError:
            continue
    return False


def _no_credentials(src: str) -> PullError:
    return PullError(
        f"{src}: there are no AWS credentials here; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, configure a profile, "
        "give the instance a role, or say anonymous = true for a public bucket"
    )
