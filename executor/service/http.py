"""`/healthz`, `/readyz` and `/metrics` over HTTP."""

from __future__ import annotations

import logging
import threading
from http.server import BaseHTTPRequestHandler

from bai_agent.job.bounded_server import BoundedServer
from executor.errors import UsageError
from executor.service.counters import ServiceCounters

log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ":9108" (all of this machine's addresses) or "127.0.0.1:9108". Raises UsageError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f'--http: "{text}" is not an address; write for example ":9108" or "127.0.0.1:9108"')
    return host.strip("[]"), int(port)


class HttpEndpoints:
    """A server on a thread of its own."""

    def __init__(self, address: tuple[str, int], counters: ServiceCounters) -> None:
        """Raises UsageError if it cannot listen on the address."""

        class Handler(_Handler):
            known = counters

        try:
            self._server = BoundedServer(address, Handler)
        except OSError as error:
            raise UsageError(
                f"--http: {address[0]}:{address[1]} cannot be listened on: {error.strerror}"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    known: ServiceCounters
    timeout = _TIMEOUT_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._answer(200, b"ok\n")
        elif path == "/readyz":
            ready = self.known.ready
            self._answer(
                200 if ready else 503, b"ok\n" if ready else b"no events are being taken from Kafka\n"
            )
        elif path == "/metrics":
            self._answer(200, self.known.text(), "text/plain; version=0.0.4; charset=utf-8")
        else:
            self._answer(404, b"there are /healthz, /readyz and /metrics\n")

    def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
        log.debug(format, *arguments)
