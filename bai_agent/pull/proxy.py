"""The environment's HTTP proxy: which one a request goes through, and what lets us in there.

`http_proxy` and `https_proxy` name it as `http://user:password@host:port`, `no_proxy` the hosts that are asked directly:
names with all that is below them, addresses, networks such as 10.0.0.0/8, each with or without a port, or `*`.
"""

from __future__ import annotations

import base64
import ipaddress
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

_PORTS = {"http": 80, "https": 443}


class ProxyError(Exception):
    """The environment's proxy cannot be used; the text says which variable is wrong, and never a password."""


@dataclass(frozen=True)
class Proxy:
    """A proxy that speaks HTTP."""

    host: str
    port: int
    headers: dict[str, str] = field(repr=False)
    """What each request to the proxy itself says: who we are, where it wants to know."""


def proxy_for(target: SplitResult) -> Proxy | None:
    """Return the proxy for a request to `target`; None where that is asked directly. Raises ProxyError."""
    text = urllib.request.getproxies().get(target.scheme)
    if not text or _bypassed(target.hostname or "", target.port or _PORTS[target.scheme]):
        return None
    variable = f"{target.scheme}_proxy"
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ProxyError(f"{variable} is not an address; write http://host:port") from None
    if parts.scheme != "http":
        raise ProxyError(
            f'{variable} names a proxy with "{parts.scheme}://"; only http:// is supported, which carries https too'
        )
    if not host:
        raise ProxyError(f"{variable} names no host; write http://host:port")
    return Proxy(host, port or _PORTS["http"], _authorization(parts))


def basic_credentials(parts: SplitResult) -> str | None:
    """Return the user and password in an address as RFC 7617 wants them in a header; None where there are none."""
    if parts.username is None:
        return None
    pair = b":".join(unquote_to_bytes(each) for each in (parts.username, parts.password or ""))
    return "Basic " + base64.b64encode(pair).decode("ascii")


def _authorization(parts: SplitResult) -> dict[str, str]:
    credentials = basic_credentials(parts)
    return {"Proxy-Authorization": credentials} if credentials else {}


def _bypassed(host: str, port: int) -> bool:
    return bool(urllib.request.proxy_bypass(f"{host}:{port}")) or _in_network(host)


def _in_network(host: str) -> bool:
    """Return whether `no_proxy` has a network that `host` is in: the standard library knows names and addresses only."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        for entry in urllib.request.getproxies().get("no", "").split(","):
            with suppress(ValueError):
                if address in ipaddress.ip_network(entry.strip(), strict=False):
                    return True
    return False
