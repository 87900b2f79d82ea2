"""Whose name S3 is asked in: the environment's, a person's AWS configuration, or the instance's role."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bai_agent.s3.meaning import S3Error

if TYPE_CHECKING:
    from obstore.store import S3Credential

METADATA = "http://169.254.169.254"
_LIVE = timedelta(minutes=15)
_OWN_PROVIDERS = (
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)
_TRIES = 3
_FIRST_PAUSE = 0.5
BUSY = (429, 500, 502, 503, 504)
"""Statuses after which the same request may well be answered."""


def credential_provider(environment: Mapping[str, str]) -> Callable[[], S3Credential] | None:
    """Return a provider of credentials; None where obstore finds them itself. Raises S3Error where there are none."""
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        return None
    if find_spec("botocore") is not None:
        return _configured()
    if any(environment.get(name) for name in _OWN_PROVIDERS) or metadata_token(environment) is not None:
        return None
    raise S3Error(_NONE)


def from_botocore(credentials: Any) -> Callable[[], S3Credential]:
    """Return a provider of what botocore's `credentials` (those of a session) hold at each time."""

    # obstore.auth.boto3 would do, but needs Python 3.11.
    def provide() -> S3Credential:
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key or "",
            "secret_access_key": frozen.secret_key or "",
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc) + _LIVE,
        }

    return provide


def metadata_token(environment: Mapping[str, str]) -> str | None:
    """Return a token of the instance metadata service (IMDSv2), or None where none answers within seconds."""
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    request = urllib.request.Request(  # noqa: S310 - an address of our own choice
        f"{metadata_address(environment)}/latest/api/token",
        method="PUT",
        headers={"X-aws-ec2-metadata-token-ttl-seconds": "300"},
    )
    for attempt in range(_TRIES):
        try:
            with metadata_opener().open(request, timeout=2) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            error.close()
            # Something is there: early in a boot it may not be ready. Where nothing is, a wait would be for nothing.
            if error.code in BUSY and attempt + 1 < _TRIES:
                time.sleep(_FIRST_PAUSE * 2**attempt)
        except (OSError, http.client.HTTPException, UnicodeDecodeError):
            continue
    return None


def metadata_opener() -> urllib.request.OpenerDirector:
    """Return what asks the instance metadata service: past all proxies, which could never reach it, and following nobody
    elsewhere, as a token goes with each request."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirects)


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes an error of an answer that sends us elsewhere: urllib would take signature and session token along."""

    def redirect_request(self, *_: object) -> None:
        return None


def metadata_address(environment: Mapping[str, str]) -> str:
    """Return where the instance metadata service is."""
    return environment.get("AWS_METADATA_ENDPOINT", METADATA).rstrip("/")


def _configured() -> Callable[[], S3Credential]:
    import botocore.session
    from botocore.exceptions import BotoCoreError

    try:
        credentials = botocore.session.Session().get_credentials()
    except BotoCoreError as error:
        raise S3Error(f"the AWS configuration cannot be used: {error}") from error
    if credentials is None:
        raise S3Error(_NONE)
    return from_botocore(credentials)


_NONE = (
    "there are no AWS credentials here; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, configure a profile, "
    "give the instance a role, or say anonymous = true for a public bucket"
)
