"""Opens HTTP requests, and signs requests to AWS. Redirects are not followed, because they could take a
signature or a token to another host.

The text of this module is copied into the program that downloads the agent to an instance. The module must
therefore run with Python 3.6 and only the standard library.
"""

import hashlib
import hmac
import time
import urllib.request
from typing import Any, Dict, Mapping, Optional, Tuple
from urllib.error import HTTPError


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def open_url(
    url: str, *, data: Optional[bytes] = None, timeout_s: float, by_proxy: bool = True, **request: Any
) -> Any:
    """Return the response, whatever its status. The caller reads and closes the response. Raises OSError,
    HTTPException, ValueError.

    `timeout_s` bounds the connection and each read. `by_proxy`: whether the proxies in the environment's
    variables are used. `request`: method and headers, as arguments of urllib's Request.
    """
    handlers = [_NoRedirects()] if by_proxy else [_NoRedirects(), urllib.request.ProxyHandler({})]
    opener = urllib.request.build_opener(*handlers)
    try:
        return opener.open(urllib.request.Request(url, data, **request), timeout=timeout_s)
    except HTTPError as error:
        return error


def imds_request(path: str, token: Optional[str], environment: Mapping[str, str]) -> Dict[str, Any]:
    """Return the arguments of open_url for a request to the instance metadata service at `path` below `latest/`.

    If `token` is None, the request is for a token (path `api/token`) that is valid for five minutes.
    `AWS_EC2_METADATA_SERVICE_ENDPOINT` replaces the usual address, as in AWS's own tools. Proxies are not
    used, because a proxy could never reach this machine's metadata service.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
    """
    address = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
    method, headers = "GET", {"X-aws-ec2-metadata-token": token}
    if token is None:
        method, headers = "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    url = f"{address.rstrip('/')}/latest/{path}"
    return {"url": url, "method": method, "headers": headers, "by_proxy": False}


def signed_headers(
    method: str,
    host: str,
    path: str,
    query: str,
    payload: bytes,
    headers: Mapping[str, str],
    *,
    at: float,
    service: str,
    region: str,
    keys: Tuple[str, str, Optional[str]],
) -> Dict[str, str]:
    """Return `headers` together with the headers that sign the request (Signature Version 4). Header names
    are in lower case.

    Path and query have the form in which they are sent. The query's parameters are in alphabetical order. at:
    the time (seconds since the epoch). keys: access key, secret key, session token.
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
    """
    access, secret, token = keys
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
    digest = hashlib.sha256(payload).hexdigest()
    found = {**headers, "host": host, "x-amz-date": stamp}
    if service == "s3":
        found["x-amz-content-sha256"] = digest
    if token:
        found["x-amz-security-token"] = token
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    names = ";".join(sorted(found))
    lines = "".join(f"{name}:{found[name]}\n" for name in sorted(found))
    request = "\n".join([method, path, query, lines, names, digest])
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    signature = f"AWS4{secret}".encode()
    for part in [*scope.split("/"), text]:
        signature = hmac.new(signature, part.encode(), hashlib.sha256).digest()
    sign = f"Credential={access}/{scope}, SignedHeaders={names}, Signature={signature.hex()}"
    return {**found, "authorization": f"AWS4-HMAC-SHA256 {sign}"}
