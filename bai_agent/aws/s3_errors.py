"""Explains S3 errors in words for a person. obstore's errors are text that holds S3's codes."""

from __future__ import annotations

import re

from bai_agent.errors import BaiError

_NO_METADATA = re.compile(r"\bMetadataError: (.+)")
"""In obstore's text: what our provider of credentials raised, when the instance metadata service did not help."""


class S3Error(BaiError):
    """A bucket cannot be used as asked; the message is half a sentence that goes on behind the address."""


def classify_s3_error(error: Exception, *, missing: str | None = None, denied: str | None = None) -> str:
    """Return what `error` means, as half a sentence. `missing`, `denied`: what to say of a refusal instead."""
    text = str(error)
    code = code_of(error)
    status = re.search(r"status code: (\d{3})", text)
    number = status.group(1) if status else ""
    if code in _MEANINGS:
        return _MEANINGS[code]
    if code == "AccessDenied" or number == "403" or "PermissionDenied" in type(error).__name__:
        return missing or denied or _DENIED
    if found := _NO_METADATA.search(text):
        return f"there are no credentials: {found[1]}"
    if number == "401" or "Unauthenticated" in type(error).__name__:
        return "the credentials were refused; renew them"
    if code == "NoSuchKey" or isinstance(error, FileNotFoundError):
        return "there is no such key, and nothing below it; compare it with the bucket's listing"
    if "PreconditionError" in type(error).__name__:
        return "the object was replaced while it was read; run again when nobody writes to it"
    if "InvalidPath" in text or "parse path" in text:
        key = re.search(r'[Pp]ath "([^"]*)"', text)
        return f'the key "{key.group(1) if key else text}" has an empty, "." or ".." part and can be no file; rename it'
    for sign, sentence in _CONNECTION:
        if sign in text:
            return sentence
    if "without LOCATION" in text:
        return _ELSEWHERE
    detail = " ".join(text.split("Debug source")[0].split())
    return f"S3 did not answer as it should: {detail[:500]}"


def is_refusal(error: Exception) -> bool:
    """Return whether a retry cannot succeed: the request, the bucket or the credentials must change."""
    if _NO_METADATA.search(str(error)):
        return False  # it may answer again
    return (
        code_of(error) in {*_MEANINGS, "AccessDenied"}
        or any(sign in type(error).__name__ for sign in ("PermissionDenied", "Unauthenticated"))
        or "without LOCATION" in str(error)
    )


def code_of(error: Exception) -> str:
    """Return S3's code for `error`, such as "NoSuchBucket"; empty where it said none."""
    found = re.search(r"<Code>(\w+)</Code>", str(error))
    return found.group(1) if found else ""


_DENIED = (
    "access denied; the credentials need s3:GetObject on it (and s3:ListBucket on its bucket for a folder)"
)
DENIED_OR_MISSING = (
    "access denied, or there is no such key: S3 says the same to who may not list the bucket; "
    "check the key, and that the credentials have s3:GetObject on it"
)
_ELSEWHERE = "the bucket lies in another region; name it as `region`"
_MEANINGS = {
    "NoSuchBucket": "there is no bucket of that name; check its spelling and the endpoint",
    "InvalidBucketName": "that is not a valid name of a bucket",
    "InvalidAccessKeyId": "the credentials are unknown to S3; check the access key",
    "SignatureDoesNotMatch": "the credentials were refused (wrong secret key, or this machine's clock is off)",
    "RequestTimeTooSkewed": "this machine's clock is off by more than 15 minutes; set it",
    "ExpiredToken": "the credentials have expired; renew them",
    "InvalidToken": "the session token of the credentials is not valid; renew them",
    "AuthorizationHeaderMalformed": _ELSEWHERE,
    "PermanentRedirect": _ELSEWHERE,
    "InvalidObjectState": "the object is archived (Glacier); restore it first",
}
_CONNECTION = (
    ("dns error", "the endpoint's name cannot be resolved; check S3_ENDPOINT and the network"),
    ("Connection refused", "the endpoint refused the connection; check S3_ENDPOINT and that the server runs"),
    (
        "InvalidCertificate",
        "the endpoint's TLS certificate is not trusted; check S3_ENDPOINT and SSL_CERT_FILE",
    ),
    ("InvalidMessage", "the endpoint does not speak TLS; use http:// in S3_ENDPOINT if that is meant"),
    ("TimedOut", "the endpoint did not answer in time; check S3_ENDPOINT and the network"),
    ("deadline has elapsed", "the endpoint did not answer in time; check S3_ENDPOINT and the network"),
)
