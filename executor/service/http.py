"""Serves `/healthz`, `/readyz` and `/metrics` over HTTP."""

from __future__ import annotations

import threading

from bai_agent.job.bounded_server import Answers, BoundedServer
from executor.errors import UsageError
from executor.service.counters import ServiceCounters

_TIMEOUT_S = 5.0


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ":9108" (all of this machine's addresses) or "127.0.0.1:9108". Raises UsageError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f'--http: "{text}" is not an address; write for example ":9108" or "127.0.0.1:9108"')
    return host.strip("[]"), int(port)


class HttpEndpoints:
    """The HTTP server of the service, on a thread of its own."""

    def __init__(self, address: tuple[str, int], counters: ServiceCounters) -> None:
        """Raises UsageError if the server cannot listen on the address."""

        class Handler(_Handler):
            known = counters

        try:
            self._server = BoundedServer(address, Handler)
        except OSError as error:
            raise UsageError(
                f"--http: the service cannot listen on {address[0]}:{address[1]}: {error.strerror}"
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


class _Handler(Answers):
    known: ServiceCounters
    timeout = _TIMEOUT_S

    def do_GET(self) -> None:  # noqa: N802 - the library's name
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self.answer(self.known.text(), "text/plain; version=0.0.4; charset=utf-8")
            return
        status, text = 200, b"ok\n"
        if path == "/readyz" and not self.known.ready:
            status, text = 503, b"no events are being taken from Kafka\n"
        elif path not in ("/healthz", "/readyz"):
            status, text = 404, b"there are /healthz, /readyz and /metrics\n"
        self.answer(text, "text/plain; charset=utf-8", status=status)
