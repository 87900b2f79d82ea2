"""Waiting for a server, which is a real one here, until it is ready."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from run_contexts import ScriptedStopSource, SteppingClock, make_context
from server_certificates import certificate_from

from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.descriptor.strategy_tables import ReadinessProbe, Server
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Peer
from bai_agent.job.run_directory import RunDir
from bai_agent.nodes.peer_services import wait_for_server
from bai_agent.runtime.stop import RunEndedError, StopReason

PEER = Peer(rank=1, address="127.0.0.1")
JOIN = {"limits": Limits(join=timedelta(minutes=1))}


class Answers:
    """The statuses that a server answers with, in turn; the last one again and again."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = statuses
        self.paths: list[str] = []

    def next(self, path: str) -> int:
        self.paths.append(path)
        return self.statuses[min(len(self.paths), len(self.statuses)) - 1]


@contextmanager
def serving(answers: Answers, certificate: Path | None = None) -> Iterator[int]:
    """Run an HTTP server, or an HTTPS server with the certificate; yield its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answers.next(self.path))
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def probe(**keys: Any) -> ReadinessProbe:
    # No test waits as long as a probe may take.
    return ReadinessProbe(**{"path": "/ping", "timeout_seconds": 3600, **keys})


def wait(rundir: RunDir, port: int, found: ReadinessProbe | None) -> SteppingClock:
    """Wait for the server; return the clock, which shows how long that took without the answers."""
    clock = SteppingClock()
    context = make_context(rundir, clock=clock, tables=JOIN)
    wait_for_server(context, Server(ports=(port,), argv=("serve",), readiness_probe=found), PEER)
    return clock


def test_a_server_may_have_a_self_signed_certificate(rundir: RunDir, tmp_path: Path) -> None:
    answers = Answers(200)
    with serving(answers, certificate_from(datetime.now(timezone.utc), tmp_path)) as port:
        wait(rundir, port, probe(scheme="HTTPS"))

    assert answers.paths == ["/ping"]


def test_the_readiness_probe_is_repeated_until_it_succeeds(rundir: RunDir) -> None:
    answers = Answers(503, 404, 302)
    with serving(answers) as port:
        clock = wait(rundir, port, probe(path="ping?x=1"))

    assert answers.paths == ["/ping?x=1"] * 3
    assert clock.passed == pytest.approx(30)  # the delay, and two periods, as in Kubernetes


def test_a_server_is_ready_after_success_threshold_successes_in_a_row(rundir: RunDir) -> None:
    answers = Answers(200, 503, 200, 200, 503)
    with serving(answers) as port:
        wait(rundir, port, probe(success_threshold=2, initial_delay_seconds=0, period_seconds=1))

    assert len(answers.paths) == 4


def test_a_probe_that_never_succeeds_ends_at_the_limit_in_a_sentence(rundir: RunDir) -> None:
    answers = Answers(503)
    with serving(answers) as port, pytest.raises(RunEndedError) as ended:
        wait(rundir, port, probe())

    assert ended.value.reason.outcome is Outcome.JOIN_FAILED
    assert ended.value.reason.message == (
        f"The server of node 1 was not ready within limits.join (1m): GET http://127.0.0.1:{port}/ping: it answered with status 503."
    )
    # However small failure_threshold is
    assert len(answers.paths) == 6


def test_a_probe_answered_byte_by_byte_times_out(rundir: RunDir) -> None:
    slow = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def drip() -> None:
        peer, _ = slow.accept()
        with peer:
            while not over.wait(0.01):
                try:
                    peer.sendall(b"H")
                except OSError:
                    return

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        server = Server(
            ports=(slow.getsockname()[1],),
            argv=("serve",),
            readiness_probe=probe(timeout_seconds=1, initial_delay_seconds=50, period_seconds=3600),
        )
        context = make_context(rundir, clock=SteppingClock(step=0.05), tables=JOIN)
        with slow, pytest.raises(RunEndedError, match="no answer within 1 s"):
            wait_for_server(context, server, PEER)
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n", "SSH-2.0-OpenSSH_9"),
        (b"HTTP/1.1 200\x1b[2J OK\r\n\r\n", "HTTP/1.1 200"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n", "more than 100 headers"),
        (b"HTTP/1.1 " + b"2" * 70_000 + b"\r\n\r\n", "more than 65536 bytes"),
        (b"", "closed connection without response"),
    ],
)
def test_a_probe_answer_that_is_not_http_is_quoted_in_printable_characters(
    rundir: RunDir, answer: bytes, words: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as odd:

        def give() -> None:
            peer, _ = odd.accept()
            with peer, suppress(OSError):
                peer.recv(65536)
                peer.sendall(answer)

        thread = threading.Thread(target=give)
        thread.start()
        with pytest.raises(RunEndedError) as ended:
            wait(rundir, odd.getsockname()[1], probe(initial_delay_seconds=59, period_seconds=3600))
        thread.join()

    message = ended.value.reason.message
    assert words in message
    assert message.isprintable()
    assert len(message) < 400


def test_the_wait_for_a_silent_server_ends_at_limits_join_despite_a_longer_probe_timeout(
    rundir: RunDir,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = Server(
            ports=(silent.getsockname()[1],),
            argv=("serve",),
            readiness_probe=probe(timeout_seconds=86_400, initial_delay_seconds=0),
        )
        clock = SteppingClock(step=10)
        with pytest.raises(RunEndedError, match=r"not ready within limits\.join \(1m\): .* no answer within"):
            wait_for_server(make_context(rundir, clock=clock, tables=JOIN), server, PEER)

    assert clock.passed < 180


def test_without_a_probe_a_server_is_ready_once_it_accepts_connections(rundir: RunDir) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        clock = wait(rundir, listening.getsockname()[1], None)

        assert clock.passed == 0
        port = listening.getsockname()[1]
    with pytest.raises(RunEndedError, match=f"a connection to 127.0.0.1:{port}: Connection refused"):
        wait(rundir, port, None)


def test_the_wait_for_a_server_ends_when_the_server_has_failed(rundir: RunDir) -> None:
    stop = ScriptedStopSource(StopReason(Outcome.PEER_FAILED, "Node 1: The server failed."), after=3)
    context = make_context(rundir, sources=[stop], tables=JOIN)

    with pytest.raises(RunEndedError, match="The server failed"):
        wait_for_server(context, Server(ports=(9,), argv=("serve",), readiness_probe=probe()), PEER)
