"""Asks an AWS service that speaks JSON, with the standard library alone: the agent's bundle has no boto3.

Signature Version 4: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

from bai_agent.errors import BaiError
from bai_agent.s3.credentials import BUSY, NoRedirects, metadata_address, metadata_opener, metadata_token

_TIMEOUT = 20.0
_TRIES = 4
_METADATA_TIMEOUT = 5.0
_METADATA_PAUSE = 0.5
"""Seconds; doubled each time. Early in a boot the service may answer late, or that it cannot."""
_LATER_CODES = (
    "ThrottlingException",
    "TooManyRequestsException",
    "InternalServiceError",
    "InternalServerError",
)


class AwsError(BaiError):
    """A service did not do what was asked; the message is half a sentence with its code."""


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Whose name a request is signed in."""

    access: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


def ask(
    service: str, target: str, question: Mapping[str, Any], *, environment: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Return the answer of `service` ("ssm") to `target` ("AmazonSSM.GetParameter"). Raises AwsError.

    `AWS_ENDPOINT_URL_<SERVICE>` or `AWS_ENDPOINT_URL` names another server than AWS's own.
    """
    token = None if environment.get("AWS_ACCESS_KEY_ID") else metadata_token(environment)
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    region = region or _metadata("placement/region", token, environment)
    keys = _keys(token, environment)
    url = _endpoint(service, region, environment)
    body = json.dumps(question).encode()
    answer = AwsError(f"{service} was not asked")
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(2.0 ** (attempt - 1))
        headers = signed(
            url, body, target=target, service=service, region=region, keys=keys, at=datetime.now(timezone.utc)
        )
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310 - AWS's or the user's own
        try:
            with urllib.request.build_opener(NoRedirects).open(request, timeout=_TIMEOUT) as response:
                return dict(json.load(response))
        except urllib.error.HTTPError as error:
            code, message = _problem(error)
            answer = AwsError(f"{service} says {code or error.code}{f': {message}' if message else ''}")
            if error.code not in BUSY and code not in _LATER_CODES:
                raise answer from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            answer = AwsError(f"{url} did not answer as it should: {error}")
    raise answer


def signed(
    url: str, body: bytes, *, target: str, service: str, region: str, keys: Keys, at: datetime
) -> dict[str, str]:
    """Return the headers of a POST of `body` to `url`, signed."""
    stamp = at.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    headers = {
        "content-type": "application/x-amz-json-1.1",
        "host": urlsplit(url).netloc,
        "x-amz-date": stamp,
        "x-amz-target": target,
    }
    if keys.token:
        headers["x-amz-security-token"] = keys.token
    names = sorted(headers)
    listed = ";".join(names)
    lines = "".join(f"{name}:{headers[name]}\n" for name in names)
    canonical = f"POST\n{urlsplit(url).path or '/'}\n\n{lines}\n{listed}\n{hashlib.sha256(body).hexdigest()}"
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{keys.secret}".encode()
    for part in (stamp[:8], region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope}, SignedHeaders={listed}, Signature={signature}"
    )
    return headers


def _keys(token: str | None, environment: Mapping[str, str]) -> Keys:
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        return Keys(
            access=environment["AWS_ACCESS_KEY_ID"],
            secret=environment["AWS_SECRET_ACCESS_KEY"],
            token=environment.get("AWS_SESSION_TOKEN"),
        )
    role = _metadata("iam/security-credentials/", token, environment).split("\n")[0].strip()
    try:
        found = json.loads(_metadata(f"iam/security-credentials/{role}", token, environment))
        return Keys(access=found["AccessKeyId"], secret=found["SecretAccessKey"], token=found["Token"])
    except (ValueError, KeyError, TypeError) as error:
        raise AwsError(
            f"the instance's role {role} has no credentials; check its instance profile"
        ) from error


def _metadata(name: str, token: str | None, environment: Mapping[str, str]) -> str:
    if token is None:
        raise AwsError(
            "there are no AWS credentials or no region here; set AWS_REGION, AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or give the instance a role"
        )
    request = urllib.request.Request(  # noqa: S310 - an address of our own choice
        f"{metadata_address(environment)}/latest/meta-data/{name}",
        headers={"X-aws-ec2-metadata-token": token},
    )
    opener = metadata_opener()
    failure = AwsError(f"the instance metadata service was not asked for {name}")
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_METADATA_PAUSE * 2 ** (attempt - 1))
        try:
            with opener.open(request, timeout=_METADATA_TIMEOUT) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404 and name.startswith("iam/"):
                raise AwsError("the instance has no role; give it an instance profile") from error
            failure = AwsError(f"the instance metadata service says {error.code} to {name}")
            if error.code not in BUSY:
                raise failure from error
        except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
            failure = AwsError(f"the instance metadata service does not answer as it should: {error}")
    raise failure


def _endpoint(service: str, region: str, environment: Mapping[str, str]) -> str:
    for name in (f"AWS_ENDPOINT_URL_{service.upper()}", "AWS_ENDPOINT_URL"):
        if environment.get(name):
            return environment[name].rstrip("/") + "/"
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://{service}.{region}.{suffix}/"


def _problem(error: urllib.error.HTTPError) -> tuple[str, str]:
    with error:
        try:
            said = json.load(error)
            code = str(said.get("__type", "")).rpartition("#")[2]
            return code, str(said.get("message") or said.get("Message") or "")
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            return "", ""
