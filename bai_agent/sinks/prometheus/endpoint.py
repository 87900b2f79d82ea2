"""`/metrics` on an address of this machine, for whoever scrapes it while the run lasts."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

from bai_agent.sinks.prometheus.exposition import CONTENT_TYPE

_REQUEST_S = 10.0
"""A client that is slower than this to ask or to take the answer loses its connection."""


class Endpoint:
    """A small web server on threads of its own."""

    def __init__(self, host: str, port: int, text: Callable[[], bytes]) -> None:
        """Listen. Port 0 is any free one. Raises OSError."""
        self._server = _Server((host, port), _handler(text))
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="Prometheus endpoint", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def family_of(host: str) -> socket.AddressFamily:
    """Return the kind of socket for an address or a name; an address of IPv6 comes without its brackets."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class _Server(socketserver.ThreadingTCPServer):
    """Not the HTTP server of the library: that one asks DNS for its own name, and waits where nobody answers."""

    allow_reuse_address = True
    daemon_threads = True
    # Else the end would wait for whoever reads slowly.
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = family_of(address[0])
        super().__init__(address, handler)

    def handle_error(self, request: object, client_address: object) -> None:
        return


def _handler(text: Callable[[], bytes]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, explain="the metrics are at /metrics")
                return
            content = text()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the library's name
            return

    return Handler
