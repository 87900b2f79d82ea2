"""Calls AWS services with a JSON protocol. This module uses only the standard library, because some instances
do not have boto3."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit

from bai_agent.aws.credentials import find_keys, region_in
from bai_agent.aws.http_answer import Answer, send
from bai_agent.aws.http_request import signed_headers
from bai_agent.aws.imds import BUSY, Keys, read
from bai_agent.backoff import Backoff, retry
from bai_agent.decode import parse_json
from bai_agent.errors import CredentialsError, MetadataError, RecordError, ServiceError

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
"""Names of services in `AWS_ENDPOINT_URL_…`, by the service's name in signatures. Services whose two names
are equal are not listed."""
_HOSTS = {"ecr": "api.ecr"}
"""Beginnings of services' host names, by the service's name in signatures. Services whose host name begins
with the name in signatures are not listed."""


def ask(
    service: str,
    target: str,
    question: Mapping[str, Any],
    *,
    environment: Mapping[str, str] = os.environ,
    find: Callable[[], Keys] | None = None,
    region: str | None = None,
    tries: int = _TRIES,
) -> dict[str, Any]:
    """Call the API operation `target` (such as "AmazonSSM.GetParameter") of the AWS service `service` (such
    as "ssm"), and return the operation's response. Raises ServiceError.

    find: function that returns the signing keys. If `find` is None, the signing keys come from the
    environment, botocore or the instance's role. region: the AWS region; if None, the region in the
    environment or the instance's own region. `AWS_ENDPOINT_URL_<SERVICE>` or `AWS_ENDPOINT_URL` replaces
    AWS's server.
    """
    region = region or region_in(environment)
    try:
        keys = (find or find_keys(environment))()
        region = region or read("placement/region", environment=environment)
    except (CredentialsError, MetadataError) as error:
        raise ServiceError(
            f"{error}{'' if region else '; set AWS_REGION'}", passes=isinstance(error, MetadataError)
        ) from error
    url = _endpoint(service, region, environment)
    body = json.dumps(question).encode()

    def post() -> dict[str, Any]:
        now = datetime.now(timezone.utc)
        headers = signed(url, body, target=target, service=service, region=region, keys=keys, at=now)
        return _post(url, body, headers, service=service)

    return retry(post, tries=tries, backoff=Backoff(_FIRST_PAUSE_S))


def _post(url: str, body: bytes, headers: Mapping[str, str], *, service: str) -> dict[str, Any]:
    try:
        answer = send(url, method="POST", headers=headers, data=body, timeout_s=_TIMEOUT_S)
        if answer.succeeded:
            # CreateLogStream has an empty answer.
            return _object(parse_json(answer.body or b"{}", where=url))
    except (URLError, ValueError, RecordError) as error:
        raise ServiceError(f"{url} did not answer as it should: {error}", passes=True) from error
    code, message = _problem(answer)
    sentence = f"{service} says {code or answer.status}{f': {message}' if message else ''}"
    raise ServiceError(sentence, passes=answer.status in BUSY or code in _LATER_CODES, code=code)


def signed(
    url: str, body: bytes, *, target: str, service: str, region: str, keys: Keys, at: datetime
) -> dict[str, str]:
    """Return the headers of a signed POST of `body` to `url`."""
    parts = urlsplit(url)
    return signed_headers(
        "POST",
        parts.netloc,
        parts.path or "/",
        "",
        body,
        {"content-type": "application/x-amz-json-1.1", "x-amz-target": target},
        at=at.timestamp(),
        service=service,
        region=region,
        keys=(keys.access, keys.secret, keys.token),
    )


def _endpoint(service: str, region: str, environment: Mapping[str, str]) -> str:
    for name in (
        f"AWS_ENDPOINT_URL_{_ENDPOINT_NAMES.get(service, service.upper())}",
        "AWS_ENDPOINT_URL",
    ):
        if environment.get(name):
            return environment[name].rstrip("/") + "/"
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://{_HOSTS.get(service, service)}.{region}.{suffix}/"


def _problem(answer: Answer) -> tuple[str, str]:
    try:
        found = _object(parse_json(answer.body, where="the refusal"))
    except (ValueError, RecordError):
        return "", ""
    code = str(found.get("__type", "")).rpartition("#")[2]
    return code, str(found.get("message") or found.get("Message") or "")


def _object(answer: object) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise ValueError("the answer is not a JSON object")
    return answer
