"""Reads the instance metadata service, version 2 (always with a token), with the standard library alone.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from urllib.error import URLError

from bai_agent.aws.http_answer import send
from bai_agent.aws.http_request import imds_request
from bai_agent.backoff import Backoff, retry
from bai_agent.decode import decode
from bai_agent.errors import MetadataError, RecordError
from bai_agent.light_dataclass import dataclass, field

BUSY = (429, 500, 502, 503, 504)
"""HTTP statuses after which a repeated request may succeed."""

_TOKEN_TIMEOUT_S = 2.0
_TRIES = 4
_TIMEOUT_S = 5.0
_PAUSE_S = 0.5
"""First pause between tries (seconds), which is doubled after each try. Early in a boot, the metadata service
may answer late or refuse requests. After the boot, the metadata service may throttle requests:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html#instancedata-throttling
"""


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The keys that sign a request."""

    access: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    expires: datetime | None = None
    """Time at which the keys expire. None if the keys do not expire, or if their time of expiry is
    unknown."""


def find_token(
    environment: Mapping[str, str], *, sleep: Callable[[float], object] = time.sleep
) -> str | None:
    """Return a token of the metadata service; None if the service is disabled or does not answer within
    seconds."""
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    try:
        return _ask("api/token", None, environment, timeout_s=_TOKEN_TIMEOUT_S, sleep=sleep)
    except MetadataError:
        return None


def read(name: str, *, environment: Mapping[str, str], sleep: Callable[[float], object] = time.sleep) -> str:
    """Return the metadata `name` (below `latest/meta-data/`). Raises MetadataError."""
    token = find_token(environment, sleep=sleep)
    if token is None:
        raise MetadataError("the instance metadata service does not answer", passes=True)
    return _ask(f"meta-data/{name}", token, environment, timeout_s=_TIMEOUT_S, sleep=sleep)


def read_if_there(name: str, *, environment: Mapping[str, str]) -> str | None:
    """Return the metadata with the name `name`; None if the service has no such metadata. Raises
    MetadataError."""
    try:
        return read(name, environment=environment)
    except MetadataError as error:
        if error.status == 404:
            return None
        raise


@dataclass(frozen=True, kw_only=True)
class _RoleKeys:
    AccessKeyId: str
    SecretAccessKey: str
    Token: str
    Expiration: str | None = None


def role_keys(environment: Mapping[str, str], *, sleep: Callable[[float], object] = time.sleep) -> Keys:
    """Return the credentials of the instance's role. Raises MetadataError."""
    folder = "iam/security-credentials/"
    role = read(folder, environment=environment, sleep=sleep).split("\n")[0].strip()
    try:
        text = read(f"{folder}{role}", environment=environment, sleep=sleep)
        found = decode(_RoleKeys, text, where=role)
        return Keys(
            access=found.AccessKeyId,
            secret=found.SecretAccessKey,
            token=found.Token,
            expires=_moment(found.Expiration),
        )
    except (RecordError, ValueError) as error:
        raise MetadataError(
            f"the instance's role {role} has no credentials; check its instance profile"
        ) from error


def _ask(
    path: str,
    token: str | None,
    environment: Mapping[str, str],
    *,
    timeout_s: float,
    sleep: Callable[[float], object],
) -> str:
    def ask() -> str:
        try:
            answer = send(timeout_s=timeout_s, **imds_request(path, token, environment))
        except URLError as error:
            sentence = f"the instance metadata service does not answer as it should: {error.reason}"
            raise MetadataError(sentence, passes=True) from error
        if answer.succeeded:
            return answer.text
        name = path.removeprefix("meta-data/")
        if answer.status == 404 and name.startswith("iam/"):
            raise MetadataError("the instance has no role; give it an instance profile")
        sentence = f"the instance metadata service answers {answer.status} to the request for {name}"
        raise MetadataError(sentence, status=answer.status, passes=answer.status in BUSY)

    return retry(ask, tries=_TRIES, backoff=Backoff(_PAUSE_S), sleep=sleep)


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
