"""http:// and https://: one file, with the standard library; resumed with a Range where the server can."""

from __future__ import annotations

import http.client
import random
import re
import socket
import ssl
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from bai_agent.errors import PullError
from bai_agent.job.descriptor import Source
from bai_agent.job.source_schemes import source_name
from bai_agent.pull.draft import CHUNK, PartialFile
from bai_agent.pull.landing import Landing
from bai_agent.pull.progress import PullWatch
from bai_agent.pull.proxy import ProxyError, basic_credentials, proxy_for
from bai_agent.pull.remote import Remote, RemoteListing

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 30.0
ATTEMPTS = 6
"""Failures in a row, without a byte in between, after which a source is given up."""
_REDIRECTS = 10
_LONGEST_PAUSE_S = 20.0
_REDIRECT_CODES = (301, 302, 303, 307, 308)
_RETRIED_CODES = (408, 425, 429, 500, 502, 503, 504)
_IN_PATH = "/%:@!$&'()*+,;=~-._"
_DIGITS = re.compile(r"[0-9]{1,18}")
"""What a header may say of bytes or seconds: not all that `isdigit` takes is a number to `int`."""
_LARGEST = 2**63 - 1
"""Bytes: no file is larger (off_t)."""
_COMPRESSED = (".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst", ".tzst", ".br", ".z", ".zip")
_REFUSED_BY_PROXY = re.compile(r"Tunnel connection failed: (40[137])\b")
"""What http.client says of a proxy that makes no tunnel."""


class _PassingError(Exception):
    """A failure that may pass; its text ends the sentence for a person. `pause_s`: seconds that the server asked for."""

    def __init__(self, text: str, *, pause_s: float | None = None) -> None:
        super().__init__(text)
        self.pause_s = pause_s


class _StartOverError(Exception):
    """The server has no such range of the file: what was kept is not a beginning of it."""


@dataclass(frozen=True)
class _Answer:
    response: http.client.HTTPResponse
    start: int
    """The offset of the body's first byte in the file."""
    size: int | None
    """The whole file's size, where the server tells it."""
    tag: str | None
    """A validator that is good for resuming: a strong ETag, else Last-Modified."""


class HttpOrigin:
    """One URL."""

    def __init__(self, source: Source, watch: PullWatch) -> None:
        if source.directory:
            raise PullError(
                f"{source_name(source.src)}: HTTP knows no folders; name an archive and unpack it"
            )
        self._url = source.src
        self._source = source
        self._src = source_name(source.src)
        self._watch = watch

    def survey(self) -> RemoteListing:
        """Return what the server tells of the file. Raises PullError."""
        for attempt in range(ATTEMPTS):
            try:
                with self._get(start=0, tag=None) as answer:
                    name = urllib.parse.unquote(urllib.parse.urlsplit(self._url).path).rpartition("/")[2]
                    return RemoteListing(
                        (Remote(name=name, key=self._url, size=answer.size, tag=answer.tag),), folder=False
                    )
            except _PassingError as failure:
                self._back_off(attempt, failure)
        raise AssertionError("the last attempt raises")

    def fetch(
        self, remotes: Sequence[Remote], landing: Landing, *, keep: Callable[[PartialFile, Remote], None]
    ) -> None:
        """Fetch the file; the complete draft goes to `keep`. Raises PullError."""
        for remote in remotes:
            with landing.draft(remote.name, tag=remote.tag, size=remote.size) as draft:
                keep(draft, self._download(remote, draft, landing))

    def _download(self, remote: Remote, draft: PartialFile, landing: Landing) -> Remote:
        """Fill `draft`; return what it holds, which may be newer than what the survey saw."""
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
                # A server without ranges may break off at the same place for ever: only what is new counts.
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
            # http.client takes headers that break off for complete ones.
            raise _PassingError("the connection ended before the file's length or first byte")

    @contextmanager
    def _get(self, *, start: int, tag: str | None) -> Iterator[_Answer]:
        """Ask for the file from `start` on, provided that it is still the one of `tag`; follows redirects."""
        url = self._url
        for _ in range(_REDIRECTS):
            self._watch.check()
            parts = self._split(url)
            connection, target, headers = self._connection(parts)
            headers |= _headers(parts, start=start, tag=tag)
            with closing(connection):
                with self._translated():
                    connection.connect()
                # The connection forgets its socket once the answer has begun, and it must be hung up even then.
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
                        url = self._redirected(url, response.headers["Location"])
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
                raise _PassingError("the server says that the file is larger than any file can be")
            return _Answer(response, 0, length, tag)
        if status == HTTPStatus.PARTIAL_CONTENT and start:
            span, _, size = headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
            if span.partition("-")[0] == str(start) and _DIGITS.fullmatch(size):
                return _Answer(response, start, int(size), tag)
            raise PullError(
                f'{self._src}: the server answers with another range ("{headers.get("Content-Range")}") than asked for'
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
        """Raise PullError where the body is not the file itself, though that was asked for."""
        transfer = headers.get("Transfer-Encoding", "chunked").strip().lower()
        if transfer != "chunked":
            raise PullError(
                f'{self._src}: the server sends it in a way that was not asked for (Transfer-Encoding "{transfer}")'
            )
        content = headers.get("Content-Encoding", "identity").strip().lower()
        # Many servers label an archive so, whose bytes are nevertheless the file. With a checksum it is seen in any case.
        name = urllib.parse.unquote(urllib.parse.urlsplit(self._url).path).lower()
        if content not in ("", "identity") and not name.endswith(_COMPRESSED) and not self._source_has_sums():
            raise PullError(
                f'{self._src}: the server sends it encoded (Content-Encoding "{content}"), though the plain file was '
                "asked for; give sha256 to take the bytes as they come"
            )

    def _source_has_sums(self) -> bool:
        return self._source.sha256 is not None or self._source.md5 is not None

    def _split(self, url: str) -> urllib.parse.SplitResult:
        try:
            return urllib.parse.urlsplit(url)
        except ValueError as error:
            raise PullError(f"{self._src}: is not an address ({error}); check its spelling") from error

    def _redirected(self, url: str, location: str) -> str:
        try:
            new = urllib.parse.urljoin(url, location)
            old_scheme, scheme = urllib.parse.urlsplit(url).scheme, urllib.parse.urlsplit(new).scheme
        except ValueError as error:
            raise PullError(f"{self._src}: is redirected to what is not an address ({error})") from error
        if scheme not in ("http", "https") or (old_scheme == "https" and scheme == "http"):
            raise PullError(
                f"{self._src}: is redirected from {old_scheme} to {scheme}, which is not followed"
            )
        return new

    def _connection(
        self, parts: urllib.parse.SplitResult
    ) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
        """Return a connection to the server or the environment's proxy, what to ask it for, and the proxy's headers."""
        try:
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise PullError(f"{self._src}: {error}") from error
        if not host:
            raise PullError(f"{self._src}: names no host")
        # What is escaped already stays as it is; what may not stand in a request is escaped.
        target = urllib.parse.quote(parts.path or "/", safe=_IN_PATH)
        if parts.query:
            target += f"?{urllib.parse.quote(parts.query, safe=_IN_PATH + '?[]|')}"
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
        """Turn what the network throws into what may pass and what will not."""
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            raise PullError(
                f"{self._src}: the server's TLS certificate is not trusted ({error.verify_message}); "
                "check the address, this machine's clock, and SSL_CERT_FILE"
            ) from error
        except socket.gaierror as error:
            raise _PassingError("its host's name cannot be resolved; check it and the network") from error
        except TimeoutError as error:
            raise _PassingError("the server does not answer in time") from error
        except ConnectionRefusedError as error:
            raise _PassingError("the connection was refused; check host and port") from error
        except http.client.InvalidURL as error:
            raise PullError(f"{self._src}: {error}") from error
        except UnicodeError as error:
            raise PullError(f"{self._src}: names no host that there could be ({error})") from error
        except (OSError, http.client.HTTPException) as error:
            if refusal := _REFUSED_BY_PROXY.match(str(error)):
                raise PullError(f"{self._src}: {_PROXY_REFUSES.format(refusal[1])}") from error
            raise _PassingError(f"the connection broke ({error or type(error).__name__})") from error

        except (ValueError, OverflowError) as error:
            # http.client's own, from a chunk of a negative size, say.
            raise _PassingError(f"the server's answer makes no sense ({error})") from error

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
    401: "access denied (401); give credentials in the address, or use a signed one",
    403: "access denied (403); a signed address may have expired",
    404: "there is no such file (404); check the address",
    407: _PROXY_REFUSES.format(407),
    410: "the file is gone (410); check the address",
}


def _headers(parts: urllib.parse.SplitResult, *, start: int, tag: str | None) -> dict[str, str]:
    headers = {"User-Agent": "bai-agent", "Accept-Encoding": "identity", "Connection": "close"}
    if credentials := basic_credentials(parts):
        headers["Authorization"] = credentials
    if start and tag is not None:
        headers |= {"Range": f"bytes={start}-", "If-Range": tag}
    return headers


def _hang_up(waiting: socket.socket) -> None:
    """Wake a thread that waits for this connection."""
    # It may have been closed by the other side in the meantime.
    with suppress(OSError):
        waiting.shutdown(socket.SHUT_RDWR)
