"""Serves git repositories over https on this machine, as a host of repositories does."""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from server_certificates import certificate_from

_PRIVATE = "/private"


class GitServer:
    """Serves the repositories below `folder`. Repositories below `private/` need a login."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = certificate_from(datetime.now(timezone.utc) - timedelta(hours=1), folder)
        self.requests: list[str] = []
        self.hangs = False
        """Whether requests are never answered."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which git trusts the server."""
        return {"GIT_SSL_CAINFO": str(self.certificate)}

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server._answer(self)

            def do_POST(self) -> None:
                server._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        path, _, query = request.path.partition("?")
        self.requests.append(request.path)
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if self.hangs:
            request.rfile.read(1)  # until the client is gone
            return
        if path.startswith(_PRIVATE) and not self._has_login(request):
            request.send_response(401)
            request.send_header("WWW-Authenticate", 'Basic realm="git"')
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        done = subprocess.run(
            ("git", "http-backend"),
            input=body,
            capture_output=True,
            check=True,
            timeout=60,
            env={
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(self.folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_CONFIG_GLOBAL": "/dev/null",
                "GIT_PROTOCOL": request.headers.get("Git-Protocol") or "",
                "REQUEST_METHOD": request.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": request.headers.get("Content-Type") or "",
                "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding") or "",
                "REMOTE_ADDR": "127.0.0.1",
            },
        )
        self._send(request, done.stdout)

    @staticmethod
    def _has_login(request: BaseHTTPRequestHandler) -> bool:
        given = request.headers.get("Authorization") or ""
        return given == "Basic " + base64.b64encode(b"user:password").decode()

    @staticmethod
    def _send(request: BaseHTTPRequestHandler, answer: bytes) -> None:
        head, _, content = answer.partition(b"\r\n\r\n")
        headers = [line.split(": ", 1) for line in head.decode().split("\r\n")]
        status = next((value for name, value in headers if name == "Status"), "200 OK")
        request.send_response(int(status.split()[0]))
        for name, value in headers:
            if name != "Status":
                request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)


@contextmanager
def git_server(folder: Path) -> Iterator[GitServer]:
    """Serve the repositories of a new folder."""
    folder.mkdir()
    server = GitServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.close()


class Repository:
    """A repository that a `GitServer` serves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", self.folder, *arguments),
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            env={"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"},
        ).stdout.strip()

    def commit(self, files: Mapping[str, str]) -> str:
        """Commit these files in addition to the existing files; return the commit."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--message=c")
        return self.git("rev-parse", "HEAD")
