"""HTTP sources against a real server that misbehaves in the ways that servers do."""

from __future__ import annotations

import hashlib
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from server_certificates import certificate_from

from bai_agent.errors import PullError, PullStopped
from bai_agent.job.descriptor.source_tables import Source, SourceKind
from bai_agent.pull import PullProgress, http, pull
from bai_agent.pull.s3_source import PATIENCE

CONTENT = os.urandom(3 << 20)


@dataclass
class Site:
    """What the server holds and how it behaves."""

    content: bytes = CONTENT
    etag: str | None = '"one"'
    ranges: bool = True
    says_length: bool = True
    statuses: list[int] = field(default_factory=list)
    """Answered before anything else, one a request."""
    drop_after: list[int] = field(default_factory=list)
    """Bytes after which the connection is dropped, one a request with a body."""
    retry_after: str = "0"
    location: str | None = None
    stall: threading.Event | None = None
    """Half of the body is sent, then nothing until it is set."""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range of each request."""
    bodies: int = 0
    url: str = ""


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            site.requests.append((self.path, wanted))
            if site.statuses:
                self.answer(site.statuses.pop(0), {"Retry-After": site.retry_after})
                return
            if site.location is not None and self.path != "/landed":
                self.answer(302, {"Location": site.location})
                return
            start = 0
            if wanted and site.ranges and self.headers.get("If-Range") in (None, site.etag):
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            body = site.content[start:]
            headers = {"Content-Length": str(len(body))} if site.says_length else {}
            if site.etag is not None:
                headers["ETag"] = site.etag
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(site.content) - 1}/{len(site.content)}"
            site.bodies += 1
            # The first request is the survey's, which looks at the headers only.
            cut = site.drop_after.pop(0) if site.bodies > 1 and site.drop_after else None
            self.answer(206 if start else 200, headers)
            self.send(body, cut)

        def answer(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def send(self, body: bytes, cut: int | None) -> None:
            try:
                if cut is not None:
                    self.wfile.write(body[:cut])
                    return
                if site.stall is not None:
                    self.wfile.write(body[: len(body) // 2])
                    self.wfile.flush()
                    site.stall.wait(60)
                    return
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):
                return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield site
    if site.stall is not None:
        site.stall.set()
    server.shutdown()
    server.server_close()


def bring(
    tmp_path: Path,
    source: Source,
    *,
    seconds: float = 30.0,
    job: str = "job",
    stopping: Callable[[], bool] = lambda: False,
) -> list[PullProgress]:
    reports: list[PullProgress] = []
    pull(
        [source],
        folders={SourceKind.DATA: tmp_path},
        manifest=tmp_path / f"{job}.json",
        deadline=time.monotonic() + seconds,
        report=reports.append,
        stopping=stopping,
    )
    return reports


def test_a_file_at_an_address_with_a_query_and_odd_characters_is_downloaded(
    tmp_path: Path, site: Site
) -> None:
    source = Source(
        src=f"{site.url}/a b/ü%20x?sig=secret&n=1", path="x", sha256=hashlib.sha256(CONTENT).hexdigest()
    )
    reports = bring(tmp_path, source)
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert site.requests[0][0] == "/a%20b/%C3%BC%20x?sig=secret&n=1"
    assert "secret" not in reports[-1].src
    assert "secret" not in (tmp_path / ".x.bai-pulled").read_text() + (tmp_path / "job.json").read_text()


def test_a_query_is_escaped_for_the_server(tmp_path: Path, site: Site) -> None:
    bring(tmp_path, Source(src=f"{site.url}/f?name=große Daten&part[]=1%2F2", path="x"))

    assert (tmp_path / "x").read_bytes() == CONTENT
    assert site.requests[0][0] == "/f?name=gro%C3%9Fe%20Daten&part[]=1%2F2"


def test_a_retry_after_header_that_is_not_a_number_is_ignored(tmp_path: Path, site: Site) -> None:
    site.statuses = [503]
    site.retry_after = "²"

    bring(tmp_path, Source(src=f"{site.url}/f", path="x"))

    assert (tmp_path / "x").read_bytes() == CONTENT


def test_a_dropped_connection_is_resumed_where_it_broke(tmp_path: Path, site: Site) -> None:
    site.drop_after = [1 << 20, 1 << 20]
    bring(tmp_path, Source(src=f"{site.url}/f", path="x"))
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert [wanted for _, wanted in site.requests] == [None, None, f"bytes={1 << 20}-", f"bytes={2 << 20}-"]


def test_a_download_from_a_server_without_ranges_starts_over(tmp_path: Path, site: Site) -> None:
    site.ranges = False
    site.drop_after = [1 << 20]
    bring(tmp_path, Source(src=f"{site.url}/f", path="x"))
    assert (tmp_path / "x").read_bytes() == CONTENT


def test_a_server_that_always_disconnects_at_the_same_byte_is_given_up(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ATTEMPTS", 3)
    site.ranges = False
    site.drop_after = [1 << 20] * 20
    with pytest.raises(
        PullError, match=f"{site.url}/f: the connection ended after 1,048,576 of 3,145,728 bytes"
    ):
        bring(tmp_path, Source(src=f"{site.url}/f", path="x"))
    assert not (tmp_path / "x").exists()


def test_content_that_changes_between_two_attempts_is_not_mixed(tmp_path: Path, site: Site) -> None:
    site.drop_after = [1 << 20]
    newer = os.urandom(2 << 20)

    class Changing(list[int]):
        def pop(self, index: object = -1) -> int:
            site.content, site.etag = newer, '"two"'
            self.clear()
            return 1 << 20

    site.drop_after = Changing([1])
    bring(tmp_path, Source(src=f"{site.url}/f", path="x"))
    assert (tmp_path / "x").read_bytes() == newer


def test_temporary_errors_are_retried(tmp_path: Path, site: Site) -> None:
    site.statuses = [503, 429, 500]
    bring(tmp_path, Source(src=f"{site.url}/f", path="x"))
    assert (tmp_path / "x").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("status", "words"), [(404, "no such file"), (403, "access denied"), (410, "gone"), (418, "418")]
)
def test_a_permanent_http_error_is_reported_at_once(
    tmp_path: Path, site: Site, status: int, words: str
) -> None:
    site.statuses = [status]
    with pytest.raises(PullError, match=words) as refusal:
        bring(tmp_path, Source(src=f"{site.url}/f", path="x"))
    assert f"{site.url}/f" in str(refusal.value)
    assert len(site.requests) == 1


def test_a_file_with_a_wrong_checksum_or_size_is_not_stored(tmp_path: Path, site: Site) -> None:
    with pytest.raises(PullError, match="md5"):
        bring(tmp_path, Source(src=f"{site.url}/f", path="x", md5="0" * 32))
    with pytest.raises(PullError, match="3,145,728 bytes instead of the 5"):
        bring(tmp_path, Source(src=f"{site.url}/f", path="x", size=5))
    assert not (tmp_path / "x").exists()


def test_a_response_body_of_unknown_length_is_downloaded(tmp_path: Path, site: Site) -> None:
    site.says_length = False
    bring(tmp_path, Source(src=f"{site.url}/f", path="x", sha256=hashlib.sha256(CONTENT).hexdigest()))
    assert (tmp_path / "x").read_bytes() == CONTENT


def test_an_unchanged_file_is_not_fetched_by_another_job(tmp_path: Path, site: Site) -> None:
    bring(tmp_path, Source(src=f"{site.url}/f", path="x"), job="one")
    inode = (tmp_path / "x").stat().st_ino
    bring(tmp_path, Source(src=f"{site.url}/f", path="x"), job="two")
    assert (tmp_path / "x").stat().st_ino == inode
    assert len(site.requests) == 3
    site.etag = '"two"'
    bring(tmp_path, Source(src=f"{site.url}/f", path="x"), job="three")
    assert (tmp_path / "x").stat().st_ino != inode


def test_redirects_are_followed_but_not_to_files(tmp_path: Path, site: Site) -> None:
    site.location = "/landed"
    bring(tmp_path, Source(src=f"{site.url}/f", path="x"))
    assert (tmp_path / "x").read_bytes() == CONTENT
    site.location = "file:///etc/passwd"
    with pytest.raises(PullError, match="from http to file"):
        bring(tmp_path, Source(src=f"{site.url}/g", path="y"))
    site.location = "/again"
    with pytest.raises(PullError, match="more than 10 times"):
        bring(tmp_path, Source(src=f"{site.url}/h", path="z"))


def test_a_stalled_connection_ends_at_the_deadline_or_on_a_stop(tmp_path: Path, site: Site) -> None:
    site.stall = threading.Event()
    with pytest.raises(PullError, match="pull_timeout"):
        bring(tmp_path, Source(src=f"{site.url}/f", path="x"), seconds=0.5)
    with pytest.raises(PullStopped):
        bring(
            tmp_path,
            Source(src=f"{site.url}/f", path="y"),
            stopping=lambda: (tmp_path / ".y.bai-pulled").exists(),
        )
    # No thread of the pull is left in the stalled connection.
    assert not any(thread.name.startswith("pull-") for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:1/f", "connection was refused"),
        ("http://no-such-host.invalid/f", "cannot be resolved"),
        ("http:///f", "no host"),
        (f"http://{'a' * 64}/f", "invalid host name"),
        ("http://a..b/f", "invalid host name"),
    ],
)
def test_an_unreachable_address_is_named_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, words: str
) -> None:
    monkeypatch.setattr(http, "ATTEMPTS", 2)
    with pytest.raises(PullError, match=words):
        bring(tmp_path, Source(src=url, path="x"))


def test_a_server_that_does_not_speak_tls_is_named(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ATTEMPTS", 2)
    secure = site.url.replace("http:", "https:")
    with pytest.raises(PullError, match=f"{secure}/f: the connection broke"):
        bring(tmp_path, Source(src=f"{secure}/f", path="x"))


@pytest.fixture
def stranger(tmp_path: Path, site: Site) -> Iterator[str]:
    """An HTTPS server whose certificate nobody has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_from(datetime.now(timezone.utc), tmp_path))

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            return  # the refusals that this is about

    server = Quiet(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_an_unsigned_certificate_is_refused(
    tmp_path: Path, stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PullError, match="certificate is not trusted"):
        bring(tmp_path, Source(src=f"{stranger}/f", path="x"))
    monkeypatch.setattr("bai_agent.pull.s3_source.PATIENCE", replace(PATIENCE, retries=1))
    monkeypatch.setenv("S3_ENDPOINT", stranger)
    with pytest.raises(PullError, match="certificate is not trusted"):
        bring(tmp_path, Source(src="s3://bucket/f", path="x", anonymous=True))
