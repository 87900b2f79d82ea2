"""A small web server whose clients cannot use up the threads or file descriptors of the server's process."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

MOST_CONNECTIONS = 32
"""Maximum number of connections at a time. A further connection closes the oldest connection, because normal
clients finish within milliseconds."""
_NO_DESCRIPTOR_S = 0.1
"""Pause after a connection could not be accepted (seconds). Without the pause, pending connections would keep
a CPU busy."""


class BoundedServer(socketserver.ThreadingTCPServer):
    """A server with one thread per connection and a limit on connections. Unlike the standard library's HTTP
    server, this server makes no DNS query for its own name."""

    allow_reuse_address = True
    daemon_threads = True
    # `block_on_close` is False, because otherwise closing the server would wait for slow clients.
    block_on_close = False
    request_queue_size = 128
    most_connections = MOST_CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type[socketserver.BaseRequestHandler]) -> None:
        """Listen on an address and port. An IPv6 address is given without brackets; port 0 means any free
        port. Raises OSError."""
        self.address_family = family_of(address[0])
        self._open: list[socket.socket] = []
        self._changing = threading.Lock()
        super().__init__(address, handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(_NO_DESCRIPTOR_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            oldest = self._open.pop(0) if len(self._open) >= self.most_connections else None
            self._open.append(request)
        if oldest is not None:
            # The connection's thread wakes and closes the connection. An error here means that the connection
            # is already closed.
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            if request in self._open:
                self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        return


class Answers(BaseHTTPRequestHandler):
    """Request handler that sends complete responses and logs nothing."""

    timeout = 10.0
    """Seconds without a byte after which a connection is closed."""

    def answer(self, content: bytes, kind: str, *, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the library's name
        return


def family_of(host: str) -> socket.AddressFamily:
    """Return the address family for an address or a host name; an IPv6 address is given without brackets."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
