"""Requests end by their deadline, and a response is returned whatever its status."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.error import URLError

import pytest
from free_ports import free_port

from bai_agent.aws.http_answer import send
from bai_agent.aws.http_request import imds_request

_ANSWER = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone"


@contextmanager
def server(*pieces: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """Run a server that answers each connection with `pieces`; yield its address."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.recv(65536)
                    for piece in pieces:
                        connection.sendall(piece)
                        time.sleep(pause_s)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_response_that_trickles_in_is_ended_at_the_deadline(beginning: bytes) -> None:
    started = time.monotonic()
    with (
        server(beginning, *[b"x"] * 1000, pause_s=0.05) as address,
        pytest.raises(URLError, match="timed out"),
    ):
        send(address, timeout_s=0.5)
    assert time.monotonic() - started < 20  # of the 50 that it would take


def test_a_response_with_an_error_status_is_returned() -> None:
    with server(_ANSWER) as address:
        answer = send(address, timeout_s=20.0)
    assert (answer.status, answer.succeeded, answer.text) == (404, False, "none")


def test_a_truncated_response_body_raises_an_error() -> None:
    with server(_ANSWER[:-1]) as address, pytest.raises(URLError, match="IncompleteRead"):
        send(address, timeout_s=20.0)


def test_no_more_of_a_response_body_is_read_than_requested() -> None:
    with server(_ANSWER) as address:
        assert send(address, timeout_s=20.0, most_bytes=2).body == b"no"


@pytest.mark.parametrize("address", ["http://", "nonsense", "ftp:/x", "http://[", "http://a b/"])
def test_an_invalid_address_raises_an_error(address: str) -> None:
    with pytest.raises(URLError):
        send(address, timeout_s=20.0)


def test_requests_to_the_metadata_service_bypass_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    with server(_ANSWER) as address:
        environment = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": address}
        assert send(timeout_s=20.0, **imds_request("api/token", None, environment)).status == 404
        with pytest.raises(URLError, match="refused"):
            send(address, timeout_s=20.0)
