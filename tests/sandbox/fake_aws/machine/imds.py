"""The instance metadata service, version 2, at 169.254.169.254: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html"""

from __future__ import annotations

import json
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Protocol

from sandbox.fake_aws.iam.identities import Credentials
from sandbox.fake_aws.machine.facts import Facts
from sandbox.fake_aws.machine.metadata import metadata_tree

VERSIONS = (
    "1.0",
    "2009-04-04",
    "2016-09-02",
    "2018-09-24",
    "2019-10-01",
    "2020-10-27",
    "2021-03-23",
    "latest",
)
TOKEN_SECONDS = 21_600
"""The longest life of a token that may be asked for."""


class Guest(Protocol):
    """Who asks, as far as it matters to the answer."""

    instance_id: str
    facts: Facts
    credentials: Credentials
    metadata: dict[str, str | None]
    """Overrides of the metadata tree; None: not there. Path below `latest/`."""
    metadata_requests: list[tuple[float, str, str, int]]
    """Time, method, path, status."""


class MetadataService:
    """One service for all machines of a aws: it tells them apart by their address, as nothing else reaches it."""

    def __init__(
        self, listener: socket.socket, *, find: Callable[[str], Guest | None], access_log: Path
    ) -> None:
        self._server = _Server(listener.getsockname(), _Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listener
        self._server.find = find
        self._server.access_log = access_log
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=[0.1], name="imds", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    find: Callable[[str], Guest | None]
    access_log: Path

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.lock = threading.Lock()
        self.tokens: dict[str, tuple[str, float]] = {}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A machine that is switched off leaves its connections; that is not an error of ours."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "EC2ws", ""
    timeout = 30

    def do_PUT(self) -> None:
        machine = self._machine()
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        seconds = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if machine is None or self.path.rstrip("/") != "/latest/api/token":
            return self._answer(machine, 404)
        if self.headers.get("X-Forwarded-For"):
            return self._answer(machine, 403)
        if not (seconds.isdigit() and 1 <= int(seconds) <= TOKEN_SECONDS):
            return self._answer(machine, 400)
        token = secrets.token_urlsafe(40)
        with self.server.lock:
            self.server.tokens[token] = (machine.instance_id, time.monotonic() + int(seconds))
        header = ("X-aws-ec2-metadata-token-ttl-seconds", seconds)
        return self._answer(machine, 200, token.encode(), header=header)

    def do_GET(self) -> None:
        machine = self._machine()
        if machine is None:
            return self._answer(None, 404)
        if not self._may_read(machine):
            return self._answer(machine, 401)
        version, _, path = self.path.partition("?")[0].lstrip("/").partition("/")
        if version == "":
            return self._answer(machine, 200, "\n".join(VERSIONS).encode())
        body = _look_up(machine, path) if version in VERSIONS else None
        return self._answer(machine, 404) if body is None else self._answer(machine, 200, body)

    do_HEAD = do_GET  # noqa: N815 http.server's name of it

    def _machine(self) -> Guest | None:
        return self.server.find(self.client_address[0])

    def _may_read(self, machine: Guest) -> bool:
        token = self.headers.get("X-aws-ec2-metadata-token")
        if token is None:
            return not machine.facts.tokens_required
        with self.server.lock:
            owner, until = self.server.tokens.get(token, ("", 0.0))
        return owner == machine.instance_id and time.monotonic() < until

    def _answer(
        self, machine: Guest | None, status: int, body: bytes = b"", header: tuple[str, str] | None = None
    ) -> None:
        if machine is not None:
            machine.metadata_requests.append((time.monotonic(), self.command, self.path, status))
        line = {
            "time": time.time(),
            "instance": machine.instance_id if machine else None,
            "method": self.command,
            "path": self.path,
            "status": status,
            "agent": self.headers.get("User-Agent"),
        }
        with self.server.lock, self.server.access_log.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        if header is not None:
            self.send_header(*header)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 http.server's name of it
        """The access log has it."""


def _look_up(machine: Guest, path: str) -> bytes | None:
    user_data = machine.facts.user_data
    if path.rstrip("/") == "user-data":
        return user_data
    tree = metadata_tree(machine.facts, machine.credentials)
    for name, value in machine.metadata.items():
        if value is None:
            tree.pop(name, None)
        else:
            tree[name] = value
    if path in tree:
        return tree[path].encode()
    prefix = path if path == "" or path.endswith("/") else f"{path}/"
    below = [name.removeprefix(prefix) for name in tree if name.startswith(prefix)]
    children = {child.partition("/")[0] + ("/" if "/" in child else "") for child in below} - {""}
    if prefix == "" and user_data is not None:
        children.add("user-data")
    return "\n".join(sorted(children)).encode() or None
