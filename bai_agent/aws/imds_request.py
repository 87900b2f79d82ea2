"""One request to the instance metadata service: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html

The program that brings the agent has this module's text within it: standard library only, Python 3.6 or later.
"""

import urllib.request
from typing import Any, Mapping, Optional


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Turns redirects into errors: urllib would pass signature and session token on."""

    def redirect_request(self, *_: Any) -> None:
        return None


def ask_imds(path: str, token: Optional[str], *, timeout_s: float, environment: Mapping[str, str]) -> str:
    """Return what lies at `path` below `latest/`. Raises OSError, HTTPException, ValueError.

    Without a token it asks for one (`api/token`), good for five minutes. `AWS_EC2_METADATA_SERVICE_ENDPOINT` names another
    address than the usual one, as for AWS's own tools.
    """
    address = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
    request = urllib.request.Request(f"{address.rstrip('/')}/latest/{path}")
    if token is None:
        request.method = "PUT"
        request.add_header("X-aws-ec2-metadata-token-ttl-seconds", "300")
    else:
        request.add_header("X-aws-ec2-metadata-token", token)
    # Past all proxies, which could never reach the service.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirects)
    with opener.open(request, timeout=timeout_s) as answer:
        text: str = answer.read(1 << 20).decode()
        return text
