"""Signature version 4, checked: moto takes any. https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html"""

from __future__ import annotations

import hashlib
import hmac
import re
from datetime import datetime, timedelta, timezone
from typing import Any

from sandbox.fake_aws.answers import Answer, error
from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.iam.identities import Identities

MAX_SKEW = timedelta(minutes=15)

_HEADER = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<scope>[^,]+), ?SignedHeaders=(?P<headers>[^,]+), ?Signature=(?P<signature>\w+)"
)


def refusal(
    call: Call, environ: dict[str, Any], body: bytes, identities: Identities, now: datetime
) -> Answer | None:
    """Return the refusal that AWS would answer with, None where the request is signed as it should be.

    A presigned URL is let through unchecked.
    """
    head = environ["REQUEST_METHOD"] == "HEAD"

    def refuse(code: str, message: str) -> Answer:
        return error(call.service, 403, code, message, head=head)

    if "X-Amz-Signature" in str(environ.get("QUERY_STRING")):
        return None
    found = _HEADER.match(environ.get("HTTP_AUTHORIZATION", ""))
    if found is None:
        return refuse("AccessDenied", "the request is not signed")
    caller = identities.find(found["key"])
    if caller is None:
        return refuse("InvalidAccessKeyId", "the access key does not exist")
    if caller.token != environ.get("HTTP_X_AMZ_SECURITY_TOKEN"):
        return refuse("InvalidToken", "the session token does not belong to the access key")
    if now > caller.expires:
        return refuse("ExpiredToken", "the session token has expired")
    stamp = environ.get("HTTP_X_AMZ_DATE", "")
    try:
        signed_at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return refuse("AccessDenied", "no valid X-Amz-Date")
    if abs(now - signed_at) > MAX_SKEW:
        return refuse(
            "RequestTimeTooSkewed",
            f"the request was signed at {stamp}; the server's time is {now:%Y%m%dT%H%M%SZ}",
        )
    stated = environ.get("HTTP_X_AMZ_CONTENT_SHA256")
    payload = hashlib.sha256(body).hexdigest()
    if stated is not None and re.fullmatch(r"[0-9a-f]{64}", stated) and stated != payload:
        return refuse("XAmzContentSHA256Mismatch", "the body is not the one that was signed")
    expected = _signature(environ, found, caller.secret_key, stamp, stated or payload)
    if not hmac.compare_digest(expected, found["signature"]):
        return refuse("SignatureDoesNotMatch", "the signature does not match")
    return None


def _signature(environ: dict[str, Any], found: re.Match[str], secret: str, stamp: str, payload: str) -> str:
    path, _, query = str(environ["REQUEST_URI"]).partition("?")
    if path.startswith("http"):
        path = "/" + path.split("/", 3)[3]
    pairs = sorted((part.partition("=")[0], part.partition("=")[2]) for part in query.split("&") if part)
    headers = "".join(f"{name}:{_header(environ, name)}\n" for name in found["headers"].split(";"))
    canonical = "\n".join(
        [
            environ["REQUEST_METHOD"],
            path,
            "&".join(f"{name}={value}" for name, value in pairs),
            headers,
            found["headers"],
            payload,
        ]
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, found["scope"], digest])
    key = f"AWS4{secret}".encode()
    for part in found["scope"].split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def _header(environ: dict[str, Any], name: str) -> str:
    field = name.upper().replace("-", "_")
    value = environ.get(field if field in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{field}", "")
    return " ".join(str(value).split())
