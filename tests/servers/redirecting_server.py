"""Runs a server that redirects all requests, and a server that no request may reach."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def redirecting(status: int) -> Iterator[tuple[str, list[str]]]:
    """Run both servers; yield the first server's address, and the headers that the second server gets."""
    arrived: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

        def answer(self) -> None:
            arrived.append(str(self.headers))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

    with _serving(Elsewhere) as there:

        class Redirecting(Elsewhere):
            def answer(self) -> None:
                self.send_response(status)
                self.send_header("Location", f"{there}/x")
                self.send_header("Content-Length", "0")
                self.end_headers()

        with _serving(Redirecting) as here:
            yield here, arrived


@contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
