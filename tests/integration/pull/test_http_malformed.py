"""Whatever a server answers, a pull ends with the file or with an error that names the source."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bai_agent.errors import PullError
from bai_agent.job.descriptor.source_tables import Source, SourceKind
from bai_agent.pull import http, pull

OK = b"HTTP/1.1 200 OK\r\n"
BODY = b"Content-Length: 2\r\n\r\nhi"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
MOVED = b"HTTP/1.1 302 Found\r\nLocation: "


class RawServer:
    """Says the same bytes to whoever connects and asks, then hangs up."""

    def __init__(self) -> None:
        self.answer = b""
        self.heads: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        # Closing alone would leave the thread in its accept(), with a descriptor that is listed nowhere.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(5)
                head = b""
                while b"\r\n\r\n" not in head and (piece := connection.recv(65536)):
                    head += piece
                self.heads.append(head)
                connection.sendall(self.answer.replace(b"PORT", str(self.port).encode()))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RawServer]:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(http, "ATTEMPTS", 2)
    monkeypatch.setattr(http, "_LONGEST_PAUSE_S", 0.001)
    server = RawServer()
    yield server
    server.close()


def bring(folder: Path, src: str, *, name: str = "x", sha256: str | None = None) -> bytes:
    pull(
        [Source(src=src, path=name, sha256=sha256)],
        folders={SourceKind.DATA: folder},
        manifest=folder / f"{name}.job.json",
        deadline=time.monotonic() + 30,
        report=lambda _: None,
        stopping=lambda: False,
    )
    return (folder / name).read_bytes()


MALFORMED = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "binary": bytes(range(256)) * 8,
    "status without number": b"HTTP/1.1 OK\r\n\r\n",
    "status of four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "negative status": b"HTTP/1.1 -20 OK\r\n\r\n",
    "status in other digits": "HTTP/1.1 ２００ OK\r\n\r\n".encode(),
    "another protocol": b"HTTP/2.0 200 OK\r\n\r\n",
    "endless status line": b"HTTP/1.1 200 " + b"a" * 100_000,
    "too many headers": OK + b"a: b\r\n" * 1000 + BODY,
    "endless header": OK + b"a: " + b"b" * 100_000 + b"\r\n" + BODY,
    "only a beginning": OK + b"Content-Len",
    "body that ends early": OK + b"Content-Length: 10\r\n\r\nhi",
    "length beyond all files": OK + b"Content-Length: " + b"9" * 30 + b"\r\n\r\nhi",
    "length of many digits": OK + b"Content-Length: " + b"9" * 4300 + b"\r\n\r\nhi",
    "negative chunk": CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
    "chunk that is not a number": CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n",
    "chunk without end": CHUNKED + b"5\r\nhel",
    "chunk of all memory": CHUNKED + b"f" * 40 + b"\r\nhello",
    "endless chunk size": CHUNKED + b"1" * 100_000,
    "chunk after which nothing comes": CHUNKED + b"5\r\nhello\r\n",
    "unknown transfer encoding": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    "encoded content": OK + b"Content-Encoding: gzip\r\n" + BODY,
    "unknown content encoding": OK + b"Content-Encoding: aws-chunked\r\n" + BODY,
    "redirect to a broken address": MOVED + b"http://[::1\r\n\r\n",
    "redirect to a broken relative address": MOVED + b"//[\r\n\r\n",
    "redirect to a port beyond all": MOVED + b"http://127.0.0.1:99999/\r\n\r\n",
    "redirect to a port that is not a number": MOVED + b"http://127.0.0.1:x/\r\n\r\n",
    "redirect to nowhere": MOVED + b"http:///x\r\n\r\n",
    "redirect to a host with a space": MOVED + b"http://a b/x\r\n\r\n",
    "redirect to a host with a NUL": MOVED + b"http://a\0b/x\r\n\r\n",
    "redirect to a host with an escape": MOVED + b"http://a\x1b[31mb/x\r\n\r\n",
    "redirect to a label too long": MOVED + b"http://" + b"a" * 70 + b"/x\r\n\r\n",
    "redirect to an unprintable host": MOVED + b"http://\xff\xfe/x\r\n\r\n",
    "redirect to a file": MOVED + b"file:///etc/passwd\r\n\r\n",
    "redirect to itself": MOVED + b"http://127.0.0.1:PORT/f\r\n\r\n",
    "redirect without a target": b"HTTP/1.1 302 Found\r\n\r\n",
    "a part that nobody asked for": b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-1/2\r\n" + BODY,
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "unknown status": b"HTTP/1.1 999 What\r\n" + BODY,
    "a switch of protocols": b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\n\r\n",
    "busy with an absurd pause": b"HTTP/1.1 503 Busy\r\nRetry-After: " + b"9" * 5000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_http_response_gives_an_error_that_names_the_source(
    tmp_path: Path, server: RawServer, kind: str
) -> None:
    server.answer = MALFORMED[kind]

    with pytest.raises(PullError, match=f"^http://127.0.0.1:{server.port}/f: "):
        bring(tmp_path, f"http://127.0.0.1:{server.port}/f")

    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "answer",
    [
        OK + BODY,
        OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
        OK + b"Content-Length: many\r\n\r\nhi",
        OK + b"Content-Length: -2\r\n\r\nhi",
        OK + b"\r\nhi",
        b"HTTP/1.0 200\r\n\r\nhi",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + BODY,
        OK + b'ETag: "a\r\n b"\r\nLast-Modified: \xff\0\r\n' + BODY,
        OK + b"Content-Encoding: identity\r\nContent-Range: nonsense\r\n" + BODY,
        CHUNKED + b"2;name=value\r\nhi\r\n0\r\nTrailer: x\r\n\r\n",
    ],
)
def test_malformed_but_unambiguous_http_responses_are_accepted(
    tmp_path: Path, server: RawServer, answer: bytes
) -> None:
    server.answer = answer

    assert bring(tmp_path, f"http://127.0.0.1:{server.port}/f") == b"hi"


@pytest.mark.parametrize(("path", "with_sum"), [("a.tar.gz", False), ("a.json", True)])
def test_encoded_bytes_are_accepted_with_a_matching_checksum(
    tmp_path: Path, server: RawServer, path: str, with_sum: bool
) -> None:
    server.answer = OK + b"Content-Encoding: gzip\r\n" + BODY
    digest = "8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4"

    src = f"http://127.0.0.1:{server.port}/{path}"
    assert bring(tmp_path, src, sha256=digest if with_sum else None) == b"hi"


HEADER = st.sampled_from(
    [
        "Content-Length",
        "Transfer-Encoding",
        "Location",
        "ETag",
        "Last-Modified",
        "Content-Range",
        "Retry-After",
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    status=st.one_of(st.sampled_from([b"200", b"206", b"302", b"416", b"503"]), st.binary(max_size=6)),
    headers=st.lists(st.tuples(HEADER, st.binary(max_size=30)), max_size=4),
    body=st.binary(max_size=40),
)
@example(status=b"200", headers=[("Transfer-Encoding", b"chunked")], body=b"-1\r\n")
def test_any_http_response_gives_the_file_or_an_error(
    tmp_path: Path, server: RawServer, status: bytes, headers: list[tuple[str, bytes]], body: bytes
) -> None:
    lines = b"".join(name.encode() + b": " + value + b"\r\n" for name, value in headers)
    server.answer = b"HTTP/1.1 " + status + b" \r\n" + lines + b"\r\n" + body
    with suppress(PullError):
        bring(tmp_path, f"http://127.0.0.1:{server.port}/f", name=f"x{len(list(tmp_path.iterdir()))}")


@pytest.mark.parametrize(
    "src",
    [
        "http://[::1/f",
        "http://me:s3cr3t@[::1/f?key=s3cr3t",
        "http://a b/f",
        "https://a\x1bb/f",
        "http://[x]/f",
    ],
)
def test_an_invalid_address_gives_an_error_without_its_password(
    tmp_path: Path, server: RawServer, src: str
) -> None:
    with pytest.raises(PullError) as refusal:
        bring(tmp_path, src)
    assert "s3cr3t" not in str(refusal.value)


@pytest.mark.parametrize(
    ("userinfo", "sent"),
    [
        ("me:s3cr3t@", b"Proxy-Authorization: Basic bWU6czNjcjN0\r\n"),
        ("me%40corp:p%3As%2F%25@", b"Proxy-Authorization: Basic bWVAY29ycDpwOnMvJQ==\r\n"),
        ("me@", b"Proxy-Authorization: Basic bWU6\r\n"),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_receives_the_credentials_in_its_address(
    tmp_path: Path,
    server: RawServer,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    userinfo: str,
    sent: bytes,
) -> None:
    monkeypatch.setenv(f"{scheme}_proxy", f"http://{userinfo}127.0.0.1:{server.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    server.answer = OK + BODY if scheme == "http" else b"HTTP/1.1 502 Bad\r\n\r\n"

    if scheme == "http":
        assert bring(tmp_path, "http://files.test/f") == b"hi"
        assert server.heads[0].startswith(b"GET http://files.test/f HTTP/1.1\r\n")
    else:
        with pytest.raises(PullError, match="502"):
            bring(tmp_path, "https://files.test/f")
        assert server.heads[0].startswith(b"CONNECT files.test:443 HTTP/1.")
    assert sent in server.heads[0]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_refuses_is_named_at_once_without_the_password(
    tmp_path: Path, server: RawServer, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv(f"{scheme}_proxy", f"http://me:s3cr3t@127.0.0.1:{server.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    server.answer = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"

    with pytest.raises(PullError, match="http_proxy or https_proxy") as refusal:
        bring(tmp_path, f"{scheme}://files.test/f")

    assert "s3cr3t" not in str(refusal.value)
    assert len(server.heads) == 1


@pytest.mark.parametrize(
    "proxy",
    [
        "http://[::1",
        "https://me:s3cr3t@proxy:1",
        "socks5://me:s3cr3t@proxy:1",
        "http://me:s3cr3t@",
        "http://p:x",
    ],
)
def test_an_unusable_proxy_is_an_error_without_its_password(
    tmp_path: Path, server: RawServer, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)

    with pytest.raises(PullError, match="http_proxy") as refusal:
        bring(tmp_path, "http://files.test/f")

    assert "s3cr3t" not in str(refusal.value)


@pytest.mark.parametrize("no_proxy", ["*", "127.0.0.1", "x, 127.0.0.1:PORT", "10.0.0.0/8, 127.0.0.0/8"])
def test_hosts_of_no_proxy_are_asked_directly(
    tmp_path: Path, server: RawServer, monkeypatch: pytest.MonkeyPatch, no_proxy: str
) -> None:
    monkeypatch.setenv("http_proxy", "http://me:s3cr3t@127.0.0.1:1")
    monkeypatch.setenv("no_proxy", no_proxy.replace("PORT", str(server.port)))
    server.answer = OK + BODY

    assert bring(tmp_path, f"http://127.0.0.1:{server.port}/f") == b"hi"
    assert b"Proxy-Authorization" not in server.heads[0]


def test_a_host_outside_no_proxy_goes_through_the_proxy(
    tmp_path: Path, server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"127.0.0.1:{server.port}")
    monkeypatch.setenv("no_proxy", "10.0.0.0/8,example.com,localhost")
    server.answer = OK + BODY

    assert bring(tmp_path, "http://files.test:8080/f") == b"hi"
    assert server.heads[0].startswith(b"GET http://files.test:8080/f ")
