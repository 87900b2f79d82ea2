"""`/metrics` on an address of this machine, for whoever scrapes it while the run lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

from bai_agent.job.bounded_server import BoundedServer
from bai_agent.sinks.prometheus.exposition import CONTENT_TYPE

_REQUEST_S = 10.0
"""A client that is slower than this to ask or to take the answer loses its connection."""


class Endpoint:
    """A small web server on threads of its own."""

    def __init__(self, host: str, port: int, text: Callable[[], bytes]) -> None:
        """Listen. Port 0 is any free one. Raises OSError."""
        self._server = BoundedServer((host, port), _handler(text))
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="Prometheus endpoint", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


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
