"""Reads the instance metadata service, version 2 (always with a token), with the standard library alone.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from bai_agent.aws.imds_request import ask_imds
from bai_agent.backoff import Backoff, PassingError, retry

BUSY = (429, 500, 502, 503, 504)
"""Statuses after which the same request may well be answered."""

_TOKEN_TIMEOUT_S = 2.0
_TRIES = 4
_TIMEOUT_S = 5.0
_PAUSE_S = 0.5
"""Seconds; doubled each time. Early in a boot the service may answer late, or that it cannot; later it may throttle:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html#instancedata-throttling"""


class MetadataError(PassingError):
    """The service does not tell what was asked; the message is half a sentence. status: of its answer, where it gave one."""

    def __init__(self, message: str, *, status: int | None = None, passes: bool = False) -> None:
        super().__init__(message, passes=passes)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The keys that sign a request."""

    access: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    expires: datetime | None = None
    """None: never, or not known."""


def find_token(
    environment: Mapping[str, str], *, sleep: Callable[[float], object] = time.sleep
) -> str | None:
    """Return a token, or None where no service answers within seconds."""
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    try:
        return _ask("api/token", None, environment, timeout_s=_TOKEN_TIMEOUT_S, sleep=sleep)
    except MetadataError:
        return None


def read(name: str, *, token: str, environment: Mapping[str, str]) -> str:
    """Return what lies at `name` below `latest/meta-data/`. Raises MetadataError."""
    return _ask(f"meta-data/{name}", token, environment, timeout_s=_TIMEOUT_S)


def read_if_there(name: str, *, token: str, environment: Mapping[str, str]) -> str | None:
    """Return what lies at `name` below `latest/meta-data/`, or None where nothing does. Raises MetadataError."""
    try:
        return read(name, token=token, environment=environment)
    except MetadataError as error:
        if error.status == 404:
            return None
        raise


def role_keys(*, token: str, environment: Mapping[str, str]) -> Keys:
    """Return the credentials of the instance's role. Raises MetadataError."""
    folder = "iam/security-credentials/"
    role = read(folder, token=token, environment=environment).split("\n")[0].strip()
    try:
        found = json.loads(read(f"{folder}{role}", token=token, environment=environment))
        return Keys(
            access=found["AccessKeyId"],
            secret=found["SecretAccessKey"],
            token=found["Token"],
            expires=_moment(found.get("Expiration")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MetadataError(
            f"the instance's role {role} has no credentials; check its instance profile"
        ) from error


def _ask(
    path: str,
    token: str | None,
    environment: Mapping[str, str],
    *,
    timeout_s: float,
    sleep: Callable[[float], object] = time.sleep,
) -> str:
    def ask() -> str:
        try:
            return ask_imds(path, token, timeout_s=timeout_s, environment=environment)
        except urllib.error.HTTPError as error:
            error.close()
            name = path.removeprefix("meta-data/")
            if error.code == 404 and name.startswith("iam/"):
                raise MetadataError("the instance has no role; give it an instance profile") from error
            sentence = f"the instance metadata service says {error.code} to {name}"
            raise MetadataError(sentence, status=error.code, passes=error.code in BUSY) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            sentence = f"the instance metadata service does not answer as it should: {error}"
            raise MetadataError(sentence, passes=True) from error

    return retry(ask, tries=_TRIES, backoff=Backoff(_PAUSE_S), sleep=sleep)


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
