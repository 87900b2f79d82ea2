"""Opens HTTP requests without following redirects, which could take a signature or a token elsewhere, and signs them for AWS.

The program that fetches the agent contains the text of this module: standard library only, Python 3.6 or later.
"""

import hashlib
import hmac
import urllib.request
from typing import Any, Dict, Mapping, Optional
from urllib.error import HTTPError


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def open_url(
    url: str, *, data: Optional[bytes] = None, timeout_s: float, by_proxy: bool = True, **request: Any
) -> Any:
    """Return the response, whatever its status. The caller reads and closes it. Raises OSError, HTTPException, ValueError.

    `timeout_s` bounds the connection and each read. Without `by_proxy` the environment's proxies are not used.
    `request` is urllib's: method, headers.
    """
    handlers = [_NoRedirects()] if by_proxy else [_NoRedirects(), urllib.request.ProxyHandler({})]
    opener = urllib.request.build_opener(*handlers)
    try:
        return opener.open(urllib.request.Request(url, data, **request), timeout=timeout_s)
    except HTTPError as error:
        return error


def imds_request(path: str, token: Optional[str], environment: Mapping[str, str]) -> Dict[str, Any]:
    """Return the arguments of open_url for a request to the instance metadata service at `path` below `latest/`.

    Without a token the request asks for one (`api/token`), valid for five minutes.
    `AWS_EC2_METADATA_SERVICE_ENDPOINT` replaces the usual address, as in AWS's own tools. A proxy could never
    reach the service. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
    """
    address = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
    method, headers = "GET", {"X-aws-ec2-metadata-token": token}
    if token is None:
        method, headers = "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    url = f"{address.rstrip('/')}/latest/{path}"
    return {"url": url, "method": method, "headers": headers, "by_proxy": False}


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
    """Return the header `authorization` (Signature Version 4) of a request, which signs all of `headers`.

    Header names are in lower case, `x-amz-date` and `host` among them. Path and query are as sent, the query in
    alphabetical order. https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
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
