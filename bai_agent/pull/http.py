"""Sources with http:// and https:// addresses. A source is one file, which is fetched with the standard
library. An interrupted transfer is resumed with a Range request if the server supports ranges.

Environment variables can name a proxy: `http_proxy` and `https_proxy` in the form
`http://user:password@host:port`. `no_proxy` names the hosts that are contacted directly. The entries of
`no_proxy` are names (which include all their subdomains), addresses, and networks such as 10.0.0.0/8, each
with an optional port, or `*`.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import random
import re
import socket
import ssl
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from urllib.parse import SplitResult, quote, unquote, unquote_to_bytes, urljoin, urlsplit

from bai_agent.errors import PullError
from bai_agent.job.descriptor.source_tables import Source
from bai_agent.job.schema.source_schemes import source_name
from bai_agent.light_dataclass import dataclass, field
from bai_agent.pull.draft import CHUNK, PartialFile
from bai_agent.pull.landing import Landing
from bai_agent.pull.progress import PullWatch
from bai_agent.pull.remote import Remote, RemoteListing

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 30.0
ATTEMPTS = 6
"""After this many consecutive failures without a new byte, the pull of a source fails."""
_REDIRECTS = 10
_LONGEST_PAUSE_S = 20.0
_REDIRECT_CODES = (301, 302, 303, 307, 308)
_RETRIED_CODES = (408, 425, 429, 500, 502, 503, 504)
_IN_PATH = "/%:@!$&'()*+,;=~-._"
_DIGITS = re.compile(r"[0-9]{1,18}")
"""A number of bytes or seconds in a header. `isdigit` is not used, because it accepts some texts that `int`
rejects."""
_LARGEST = 2**63 - 1
"""Largest size of a file in bytes (off_t)."""
_COMPRESSED = (".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst", ".tzst", ".br", ".z", ".zip")
_REFUSED_BY_PROXY = re.compile(r"Tunnel connection failed: (40[137])\b")
"""Message of http.client after a proxy has refused a tunnel."""


class _PassingError(Exception):
    """A temporary failure, after which the request is repeated. The message is the end of a sentence for the
    user. `pause_s`: pause that the server requested (seconds)."""

    def __init__(self, text: str, *, pause_s: float | None = None) -> None:
        super().__init__(text)
        self.pause_s = pause_s


class _StartOverError(Exception):
    """The server does not have the requested range, so the bytes on disk are not the beginning of the
    server's file."""


@dataclass(frozen=True)
class _Answer:
    response: http.client.HTTPResponse
    start: int
    """Offset of the body's first byte in the file."""
    size: int | None
    """Size of the whole file. None if the server does not report the size."""
    tag: str | None
    """Validator with which a transfer is resumed: a strong ETag, or Last-Modified if there is no strong
    ETag."""


class HttpOrigin:
    """Origin of a source that is one file at a URL."""

    def __init__(self, source: Source, watch: PullWatch) -> None:
        if source.directory:
            raise PullError(
                f"{source_name(source.src)}: HTTP has no folders; name an archive, and set unpack"
            )
        self._source = source
        self._src = source_name(source.src)
        self._first = self._address(source.src)
        self._path = unquote(self._first.path)
        self._watch = watch

    def survey(self) -> RemoteListing:
        """Request the file's metadata from the server. Raises PullError."""
        for attempt in range(ATTEMPTS):
            try:
                with self._get(start=0, tag=None) as answer:
                    name, key = self._path.rpartition("/")[2], self._source.src
                    remote = Remote(name=name, key=key, size=answer.size, tag=answer.tag)
                    return RemoteListing((remote,), folder=False)
            except _PassingError as failure:
                self._back_off(attempt, failure)
        raise AssertionError("the last attempt raises")

    def fetch(
        self, remotes: Sequence[Remote], landing: Landing, *, keep: Callable[[PartialFile, Remote], None]
    ) -> None:
        """Fetch the file, and call `keep` with the complete temporary file. Raises PullError."""
        for remote in remotes:
            with landing.draft(remote.name, tag=remote.tag, size=remote.size) as draft:
                keep(draft, self._download(remote, draft, landing))

    def _download(self, remote: Remote, draft: PartialFile, landing: Landing) -> Remote:
        """Download the file into `draft`. Return the file's metadata. If the file has changed since `survey`,
        the metadata is newer than the result of `survey`."""
        attempt = best = 0
        known = remote
        while True:
            before = draft.size
            landing.tally.bytes = before
            if before and before == known.size:
                return known
            try:
                with self._get(start=before if known.tag else 0, tag=known.tag) as answer:
                    if answer.start != before or answer.tag != known.tag:
                        known = Remote(name=remote.name, key=remote.key, size=answer.size, tag=answer.tag)
                        draft.start_over(tag=known.tag, size=known.size)
                        before = 0
                    landing.tally.total_bytes = answer.size
                    self._copy(answer, draft, landing)
                    return known
            except _StartOverError:
                draft.start_over(tag=None, size=None)
                known = Remote(name=remote.name, key=remote.key, size=None, tag=None)
            except _PassingError as failure:
                # A server without ranges can fail at the same offset every time. Therefore, only bytes beyond
                # the earlier offsets count as progress.
                attempt = 0 if draft.size > best else attempt
                best = max(best, draft.size)
                self._back_off(attempt, failure)
                attempt += 1

    def _copy(self, answer: _Answer, draft: PartialFile, landing: Landing) -> None:
        at = landing.tally.bytes = answer.start
        while True:
            self._watch.check()
            with self._translated():
                chunk = answer.response.read(CHUNK)
            if not chunk:
                break
            draft.append(chunk)
            at += len(chunk)
            landing.tally.bytes = at
        if answer.size is not None and at != answer.size:
            raise _PassingError(f"the connection ended after {at:,} of {answer.size:,} bytes")
        if at == 0 and answer.size is None and not answer.response.chunked:
            # http.client accepts a response whose headers end early.
            raise _PassingError("the connection ended before the server sent a length or a first byte")

    @contextmanager
    def _get(self, *, start: int, tag: str | None) -> Iterator[_Answer]:
        """Request the file's bytes from `start` on, if the file still has the validator `tag`. Redirects are
        followed."""
        parts = self._first
        for _ in range(_REDIRECTS):
            self._watch.check()
            connection, target, headers = self._connection(parts)
            headers |= _headers(parts, start=start, tag=tag)
            with closing(connection):
                with self._translated():
                    connection.connect()
                # http.client drops its reference to the socket once the response has begun, but the socket
                # must still be closed.
                hang_up = partial(_hang_up, connection.sock)
                with self._watch.interruptible(hang_up):
                    with self._translated():
                        connection.sock.settimeout(READ_TIMEOUT_S)
                        connection.request("GET", target, headers=headers)
                        response = connection.getresponse()
                    with closing(response):
                        if response.status not in _REDIRECT_CODES or not response.headers.get("Location"):
                            yield self._answer(response, start=start)
                            return
                        parts = self._redirected(parts, response.headers["Location"])
        raise PullError(f"{self._src}: is redirected more than {_REDIRECTS} times")

    def _answer(self, response: http.client.HTTPResponse, *, start: int) -> _Answer:
        status, headers = response.status, response.headers
        etag = headers.get("ETag")
        tag = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
        if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            self._check_encodings(headers)
        if status == HTTPStatus.OK:
            length = response.length
            if length is not None and length > _LARGEST:
                raise _PassingError("the server reports a size that no file can have")
            return _Answer(response, 0, length, tag)
        if status == HTTPStatus.PARTIAL_CONTENT and start:
            span, _, size = headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
            if span.partition("-")[0] == str(start) and _DIGITS.fullmatch(size):
                return _Answer(response, start, int(size), tag)
            raise PullError(
                f'{self._src}: the server answers with another range ("{headers.get("Content-Range")}") than requested'
            )
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            raise _StartOverError
        if status in _RETRIED_CODES:
            pause = headers.get("Retry-After", "")
            raise _PassingError(
                f"the server answers {status} {response.reason}",
                pause_s=float(pause) if _DIGITS.fullmatch(pause) else None,
            )
        raise PullError(
            f"{self._src}: {_STATUSES.get(status, f'the server answers {status} {response.reason}')}"
        )

    def _check_encodings(self, headers: http.client.HTTPMessage) -> None:
        """Raise PullError if the response's body is encoded although the plain file was requested."""
        transfer = headers.get("Transfer-Encoding", "chunked").strip().lower()
        if transfer != "chunked":
            raise PullError(
                f'{self._src}: the server uses a Transfer-Encoding that was not requested ("{transfer}")'
            )
        content = headers.get("Content-Encoding", "identity").strip().lower()
        # Many servers send Content-Encoding together with a compressed archive, although the body is the
        # archive itself. With a checksum, an encoded body would be detected.
        expected = self._source.sha256 or self._source.md5 or self._path.lower().endswith(_COMPRESSED)
        if content not in ("", "identity") and not expected:
            raise PullError(
                f'{self._src}: the server sends the file encoded (Content-Encoding "{content}"), but the plain file was '
                "requested; give sha256 to accept the bytes as sent"
            )

    def _address(self, url: str, base: str = "") -> SplitResult:
        """Return the parts of `url`, which can be relative to `base`."""
        try:
            parts = urlsplit(urljoin(base, url))
            parts.port  # noqa: B018 - it raises
        except ValueError as error:
            words = "is redirected to an invalid address" if base else "is not an address"
            raise PullError(f"{self._src}: {words} ({error})") from error
        return parts

    def _redirected(self, old: SplitResult, location: str) -> SplitResult:
        new = self._address(location, old.geturl())
        if new.scheme not in ("http", "https") or (old.scheme, new.scheme) == ("https", "http"):
            raise PullError(
                f"{self._src}: is redirected from {old.scheme} to {new.scheme}, which is not followed"
            )
        return new

    def _connection(self, parts: SplitResult) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
        """Return a connection to the server or the environment's proxy, the request target, and the proxy's headers."""
        host, port = parts.hostname, parts.port
        if not host:
            raise PullError(f"{self._src}: names no host")
        # Existing escapes in the address are kept. Characters that are not allowed in a request are escaped.
        target = quote(parts.path or "/", safe=_IN_PATH)
        if parts.query:
            target += f"?{quote(parts.query, safe=_IN_PATH + '?[]|')}"
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        try:
            proxy = proxy_for(parts)
            with self._translated():
                if proxy is None:
                    return kind(host, port, timeout=CONNECT_TIMEOUT_S), target, {}
                connection = kind(proxy.host, proxy.port, timeout=CONNECT_TIMEOUT_S)
                if not secure:
                    whole = f"http://{parts.netloc.rpartition('@')[2]}{target}"
                    return connection, whole, dict(proxy.headers)
                connection.set_tunnel(host, port or 443, headers=proxy.headers)
                return connection, target, {}
        except ProxyError as error:
            raise PullError(f"{self._src}: {error}") from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate network errors to `_PassingError` if they are temporary, and to PullError otherwise."""
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            raise PullError(
                f"{self._src}: the server's TLS certificate is not trusted ({error.verify_message}); "
                "check the address, this machine's clock, and SSL_CERT_FILE"
            ) from error
        except socket.gaierror as error:
            raise _PassingError("the server's name cannot be resolved; check name and network") from error
        except TimeoutError as error:
            raise _PassingError("the server does not answer in time") from error
        except ConnectionRefusedError as error:
            raise _PassingError("the connection was refused; check host and port") from error
        except http.client.InvalidURL as error:
            raise PullError(f"{self._src}: {error}") from error
        except UnicodeError as error:
            raise PullError(f"{self._src}: has an invalid host name ({error})") from error
        except (OSError, http.client.HTTPException) as error:
            if refusal := _REFUSED_BY_PROXY.match(str(error)):
                raise PullError(f"{self._src}: {_PROXY_REFUSES.format(refusal[1])}") from error
            raise _PassingError(f"the connection broke ({error or type(error).__name__})") from error
        except (ValueError, OverflowError) as error:
            # An error of http.client itself, for example after a chunk of negative size.
            raise _PassingError(f"the server's answer is malformed ({error})") from error

    def _back_off(self, attempt: int, failure: _PassingError) -> None:
        self._watch.check()
        if attempt + 1 >= ATTEMPTS:
            raise PullError(f"{self._src}: {failure}; given up after {ATTEMPTS} attempts") from failure
        pause = failure.pause_s
        if pause is None:
            pause = 0.2 * 2**attempt * random.uniform(0.5, 1.5)  # noqa: S311 - jitter
        self._watch.pause(min(pause, _LONGEST_PAUSE_S))


_PROXY_REFUSES = (
    "the proxy refuses ({}); check user and password in http_proxy or https_proxy, or set no_proxy"
)
_STATUSES = {
    401: "access denied (401); put credentials into the address, or use a signed address",
    403: "access denied (403); a signed address may have expired",
    404: "there is no such file (404); check the address",
    407: _PROXY_REFUSES.format(407),
    410: "the file is gone (410); check the address",
}


def _headers(parts: SplitResult, *, start: int, tag: str | None) -> dict[str, str]:
    headers = {"User-Agent": "bai-agent", "Accept-Encoding": "identity", "Connection": "close"}
    if credentials := basic_credentials(parts):
        headers["Authorization"] = credentials
    if start and tag is not None:
        headers |= {"Range": f"bytes={start}-", "If-Range": tag}
    return headers


def _hang_up(waiting: socket.socket) -> None:
    """Shut down this connection, so that a thread that waits for the connection wakes up."""
    # The server has possibly closed the connection already.
    with suppress(OSError):
        waiting.shutdown(socket.SHUT_RDWR)


_PORTS = {"http": 80, "https": 443}


class ProxyError(Exception):
    """The proxy that the environment names cannot be used. The message names the variable, and never contains
    a password."""


@dataclass(frozen=True)
class Proxy:
    """A proxy that speaks HTTP."""

    host: str
    port: int
    headers: dict[str, str] = field(repr=False)
    """Headers that are sent to the proxy itself, including credentials if the proxy's address contains
    them."""


def proxy_for(target: SplitResult) -> Proxy | None:
    """Return the proxy for a request to `target`; None if the request goes directly to the server. Raises
    ProxyError."""
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
    """Return the user and password of an address as a header value (RFC 7617); None if the address has no
    user."""
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
    """Return whether a network in `no_proxy` contains `host`. The standard library supports no networks in
    `no_proxy`."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        for entry in urllib.request.getproxies().get("no", "").split(","):
            with suppress(ValueError):
                if address in ipaddress.ip_network(entry.strip(), strict=False):
                    return True
    return False
