"""Calls an AWS service with a JSON protocol, with the standard library alone: an instance need not have boto3."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

from bai_agent.aws.credentials import find_keys, keys_in
from bai_agent.aws.imds import BUSY, Keys, MetadataError, find_token, read, role_keys
from bai_agent.aws.imds_request import NoRedirects
from bai_agent.aws.sigv4 import authorization
from bai_agent.backoff import Backoff, PassingError, retry

_TIMEOUT_S = 20.0
_TRIES = 4
_FIRST_PAUSE_S = 1.0
_LATER_CODES = (
    "ThrottlingException",
    "TooManyRequestsException",
    "InternalServiceError",
    "InternalServerError",
    "ServiceUnavailableException",
)
_ENDPOINT_NAMES = {"logs": "CLOUDWATCH_LOGS"}
"""What a service is called in `AWS_ENDPOINT_URL_…` where that is not its host's name."""


class ServiceError(PassingError):
    """A service did not do what was asked; the message is half a sentence with its code."""

    def __init__(self, message: str, *, passes: bool = False, code: str = "") -> None:
        super().__init__(message, passes=passes)
        self.code = code
        """The service's own word for it; empty where it said none."""


def ask(
    service: str,
    target: str,
    question: Mapping[str, Any],
    *,
    environment: Mapping[str, str] = os.environ,
    tries: int = _TRIES,
) -> dict[str, Any]:
    """Return the answer of `service` ("ssm") to `target` ("AmazonSSM.GetParameter"). Raises ServiceError.

    `AWS_ENDPOINT_URL_<SERVICE>` or `AWS_ENDPOINT_URL` names another server than AWS's own.
    """
    token = None if keys_in(environment) else find_token(environment)
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    try:
        keys = find_keys(environment, lambda: role_keys(token=_present(token), environment=environment))
        region = region or read("placement/region", token=_present(token), environment=environment)
    except MetadataError as error:
        raise ServiceError(str(error)) from error
    url = _endpoint(service, region, environment)
    body = json.dumps(question).encode()

    def send() -> dict[str, Any]:
        headers = signed(
            url, body, target=target, service=service, region=region, keys=keys, at=datetime.now(timezone.utc)
        )
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310 - AWS's or the user's own
        try:
            with urllib.request.build_opener(NoRedirects).open(request, timeout=_TIMEOUT_S) as response:
                # CreateLogStream answers with nothing.
                return _object(json.loads(response.read() or b"{}"))
        except urllib.error.HTTPError as error:
            code, message = _problem(error)
            sentence = f"{service} says {code or error.code}{f': {message}' if message else ''}"
            raise ServiceError(
                sentence, passes=error.code in BUSY or code in _LATER_CODES, code=code
            ) from error
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            raise ServiceError(f"{url} did not answer as it should: {error}", passes=True) from error

    return retry(send, tries=tries, backoff=Backoff(_FIRST_PAUSE_S))


def signed(
    url: str, body: bytes, *, target: str, service: str, region: str, keys: Keys, at: datetime
) -> dict[str, str]:
    """Return the headers of a POST of `body` to `url`, signed."""
    parts = urlsplit(url)
    headers = {
        "content-type": "application/x-amz-json-1.1",
        "host": parts.netloc,
        "x-amz-date": at.strftime("%Y%m%dT%H%M%SZ"),
        "x-amz-target": target,
    }
    if keys.token:
        headers["x-amz-security-token"] = keys.token
    headers["authorization"] = authorization(
        "POST",
        parts.path or "/",
        "",
        headers,
        body,
        service=service,
        region=region,
        access=keys.access,
        secret=keys.secret,
    )
    return headers


def _present(token: str | None) -> str:
    if token is None:
        raise ServiceError(
            "there are no AWS credentials or no region here; set AWS_REGION, AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or give the instance a role"
        )
    return token


def _endpoint(service: str, region: str, environment: Mapping[str, str]) -> str:
    for name in (
        f"AWS_ENDPOINT_URL_{_ENDPOINT_NAMES.get(service, service.upper())}",
        "AWS_ENDPOINT_URL",
    ):
        if environment.get(name):
            return environment[name].rstrip("/") + "/"
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://{service}.{region}.{suffix}/"


def _problem(error: urllib.error.HTTPError) -> tuple[str, str]:
    with error:
        try:
            answer = json.load(error)
            code = str(answer.get("__type", "")).rpartition("#")[2]
            return code, str(answer.get("message") or answer.get("Message") or "")
        except (OSError, ValueError, AttributeError, RecursionError, http.client.HTTPException):
            return "", ""


def _object(answer: object) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise ValueError("the answer is not a JSON object")
    return answer
