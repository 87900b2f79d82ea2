"""Signature Version 4: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html

The program that brings the agent has this module's text within it: standard library only, Python 3.6 or later.
"""

import hashlib
import hmac
from typing import Dict


def authorization(
    method: str,
    path: str,
    query: str,
    headers: Dict[str, str],
    payload: bytes,
    *,
    service: str,
    region: str,
    access: str,
    secret: str,
) -> str:
    """Return the header `authorization` of a request with `headers`, all of which are signed.

    Their names are in lower case, `x-amz-date` and `host` among them. Path and query are as they are sent, the query in
    alphabetical order.
    """
    stamp = headers["x-amz-date"]
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = "\n".join([method, path, query, lines, names, hashlib.sha256(payload).hexdigest()])
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    signature = f"AWS4{secret}".encode()
    for part in [*scope.split("/"), text]:
        signature = hmac.new(signature, part.encode(), hashlib.sha256).digest()
    return f"AWS4-HMAC-SHA256 Credential={access}/{scope}, SignedHeaders={names}, Signature={signature.hex()}"
