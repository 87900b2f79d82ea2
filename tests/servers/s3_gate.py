"""A real S3 server (moto) behind a gate, which logs requests and can refuse, drop and delay them."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, TypeAlias

import boto3
from moto.server import ThreadedMotoServer
from sandbox.fake_aws.control_plane.moto_accounts import prepare_moto
from service_models import share_service_models

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

prepare_moto()
share_service_models()

Answer: TypeAlias = tuple[int, Mapping[str, str], bytes]
"""Status, headers, body."""


def denied(code: str, status: int = 403) -> tuple[int, bytes]:
    """Return S3's answer to a request that is denied or has unknown credentials."""
    return status, f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message></Error>'.encode()


@dataclass
class Gate:
    """Gate between clients and the S3 server."""

    url: str
    s3: S3Client
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path with query, and Range of each request."""
    signed: list[bool] = field(default_factory=list)
    regions: list[str] = field(default_factory=list)
    """Region in each signature."""
    access_keys: list[str] = field(default_factory=list)
    refuse: Callable[[str, str], tuple[int, bytes] | None] = lambda _method, _path: None
    """Function from method and path to the status and body of a refusal, or None."""
    checksums: list[tuple[str, str | None]] = field(default_factory=list)
    """Path without query, and checksum, of each PUT."""
    swallow: Callable[[str, str], bool] = lambda _method, _path: False
    """Function from method and path to whether the request gets no answer until `release`."""
    around: Callable[[str, str, Callable[[], Answer]], Answer | None] = lambda _method, _path, ask: ask()
    """Function of method, path and a function that queries the server. Returns the answer for the client.

    If it returns None, the connection is closed without an answer.
    """
    one_put: threading.Lock = field(default_factory=threading.Lock)
    """Held during each conditional put, because moto's check and write are two steps, but S3's are one."""
    hold: Callable[[str | None], bool] = lambda _range: False
    """Function from a Range to whether the body of the request is delayed until `release`."""
    release: threading.Event = field(default_factory=threading.Event)
    targets: list[str | None] = field(default_factory=list)
    """Targets of requests to services with a JSON protocol."""
    drops: int = 0
    """Number of further bodies that break off in the middle."""
    bucket_region: str | None = None

    def gets(self) -> list[tuple[str, str | None]]:
        """Return path and Range of all requests for content."""
        return [
            (path, wanted)
            for method, path, wanted in self.requests
            if method == "GET" and "list-type" not in path
        ]


@contextmanager
def s3_server() -> Iterator[str]:
    """Run moto's S3; yield its host and port."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"{host}:{port}"
    finally:
        server.stop()


@contextmanager
def open_gate(moto: str) -> Iterator[Gate]:
    """Run a gate before a server that was emptied and has only the bucket "bucket"."""
    reset = http.client.HTTPConnection(moto, timeout=60)
    reset.request("POST", "/moto-api/reset")
    reset.getresponse().read()
    s3 = _client(moto)
    s3.create_bucket(Bucket="bucket")
    with another_gate(moto, s3) as gate:
        yield gate


@cache
def _client(moto: str) -> S3Client:
    s3: S3Client = boto3.client(
        "s3",
        endpoint_url=f"http://{moto}",
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    return s3


@contextmanager
def another_gate(moto: str, s3: S3Client) -> Iterator[Gate]:
    """Run a further gate before a server. Its faults concern only the clients of this gate."""
    gate = Gate(url="", s3=s3)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(gate, moto))
    server.daemon_threads = True
    gate.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield gate
    finally:
        gate.release.set()
        server.shutdown()
        server.server_close()


def _handler(gate: Gate, moto: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            return

        def do_HEAD(self) -> None:
            self.forward()

        def do_GET(self) -> None:
            self.forward()

        def do_PUT(self) -> None:
            self.forward()

        def do_POST(self) -> None:
            self.forward()

        def do_DELETE(self) -> None:
            self.forward()

        def forward(self) -> None:
            wanted = self.headers.get("Range")
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            gate.requests.append((self.command, self.path, wanted))
            gate.targets.append(self.headers.get("X-Amz-Target"))
            authorization = self.headers.get("Authorization", "")
            gate.signed.append(bool(authorization))
            if authorization:
                gate.access_keys.append(authorization.partition("Credential=")[2].partition("/")[0])
                gate.regions.append(authorization.split("/")[2])
            if self.command == "PUT":
                path = self.path.partition("?")[0]
                gate.checksums.append((path, self.headers.get("x-amz-checksum-sha256")))
            if gate.swallow(self.command, self.path):
                gate.release.wait(60)
                self.close_connection = True
                return
            refusal = gate.refuse(self.command, self.path)
            if refusal is not None:
                self.answer(refusal[0], {"Content-Type": "application/xml"}, refusal[1])
                return
            answer = gate.around(self.command, self.path, lambda: self.ask(sent))
            if answer is None:
                self.close_connection = True
                return
            status, headers, body = answer
            if gate.bucket_region is not None:
                headers = {**headers, "x-amz-bucket-region": gate.bucket_region}
            self.answer(status, headers, body)

        def ask(self, sent: bytes) -> Answer:
            with gate.one_put if "If-None-Match" in self.headers else nullcontext():
                upstream = http.client.HTTPConnection(moto, timeout=60)
                headers = {**self.headers, "Connection": "close"}
                upstream.request(self.command, self.path, body=sent or None, headers=headers)
                response = upstream.getresponse()
                body = response.read()
            found = {
                name: value
                for name, value in response.headers.items()
                if name.lower() not in ("connection", "date", "server", "transfer-encoding")
            }
            return response.status, found, body

        def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            content = "list-type" not in self.path and len(body) > 1
            try:
                if content and gate.hold(self.headers.get("Range")):
                    self.wfile.write(body[: len(body) // 2])
                    self.wfile.flush()
                    gate.release.wait(60)
                    self.close_connection = True
                    return
                if content and gate.drops > 0:
                    gate.drops -= 1
                    self.wfile.write(body[: len(body) // 2])
                    self.close_connection = True
                    return
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

    return Handler
