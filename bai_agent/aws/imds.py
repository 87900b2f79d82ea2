"""Asks the instance metadata service, version 2, with the standard library alone: tokens always, and time enough.

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
from bai_agent.errors import BaiError

BUSY = (429, 500, 502, 503, 504)
"""Statuses after which the same request may well be answered."""

_TOKEN_TRIES = 4
_TOKEN_TIMEOUT = 2.0
_TRIES = 4
_TIMEOUT = 5.0
_PAUSE = 0.5
"""Seconds; doubled each time. Early in a boot the service may answer late, or that it cannot; later it may throttle:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html#instancedata-throttling"""


class MetadataError(BaiError):
    """The service does not tell what was asked; the message is half a sentence. status: of its answer, where it gave one."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Whose name a request is signed in."""

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
    for attempt in range(_TOKEN_TRIES):
        if attempt:
            sleep(_PAUSE * 2 ** (attempt - 1))
        try:
            return ask_imds("api/token", None, timeout=_TOKEN_TIMEOUT, environment=environment)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in BUSY:
                return None
        except (OSError, http.client.HTTPException, ValueError):
            continue
    return None


def read(name: str, *, token: str, environment: Mapping[str, str]) -> str:
    """Return what lies at `name` below `latest/meta-data/`. Raises MetadataError."""
    failure = MetadataError(f"the instance metadata service was not asked for {name}")
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE * 2 ** (attempt - 1))
        try:
            return ask_imds(f"meta-data/{name}", token, timeout=_TIMEOUT, environment=environment)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404 and name.startswith("iam/"):
                raise MetadataError("the instance has no role; give it an instance profile") from error
            failure = MetadataError(
                f"the instance metadata service says {error.code} to {name}", status=error.code
            )
            if error.code not in BUSY:
                raise failure from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            failure = MetadataError(f"the instance metadata service does not answer as it should: {error}")
    raise failure


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


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
