"""AWS's APIs on 127.0.0.1: moto, and around it what it lacks and what a test lets go wrong."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

from sandbox.fake_aws.answers import Answer, error
from sandbox.fake_aws.calls import Call, read_call
from sandbox.fake_aws.control_plane.faults import Fault, Faults
from sandbox.fake_aws.control_plane.moto_accounts import prepare_moto
from sandbox.fake_aws.control_plane.signature import refusal
from sandbox.fake_aws.iam.identities import SETUP, Identities

prepare_moto()

Rule = Callable[[Call, Callable[[], Answer]], Answer]
"""Sees a call, and gets its answer from further in, or gives one of its own."""
Permit = Callable[[Call], Answer | None]
"""Returns the refusal of a call whose caller may not make it."""

_LONGEST_DELAY = 600.0
_MOTO: Any = DomainDispatcherApplication(create_backend_app)
"""Of all accounts: a request names its own."""


class ControlPlane:
    """Serves one account. `rules` stand around moto, the first one outermost."""

    def __init__(
        self,
        *,
        account: str,
        identities: Identities,
        faults: Faults,
        zone_of: Callable[[Call], str | None],
        rules: Iterable[Rule],
        permit: Permit = lambda call: None,
    ) -> None:
        self._account, self._identities, self._faults = account, identities, faults
        self._zone_of, self._rules, self._permit = zone_of, tuple(rules), permit
        self._calls: list[Call] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._server = make_server(
            "127.0.0.1", 0, self._serve, threaded=True, request_handler=_QuietRequestHandler
        )
        self.port: int = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=[0.1], name="control-plane", daemon=True
        )
        self._thread.start()

    @property
    def calls(self) -> list[Call]:
        """Return all calls so far but the fixture's own, in the order of their answers."""
        with self._lock:
            return list(self._calls)

    def forget_calls(self) -> None:
        with self._lock:
            self._calls.clear()

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    def _serve(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = _read_body(environ)
        call = read_call(environ, body, self._identities, time.time())
        refused = refusal(call, environ, body, self._identities, datetime.now(timezone.utc))
        refused = refused or self._permit(call)
        fault = None
        if refused is None and call.identity != SETUP:
            fault = self._faults.meet(call, lambda: self._zone_of(call))
        if fault is not None:
            self._closing.wait(min(fault.delay.total_seconds(), _LONGEST_DELAY))
        answer = refused or self._answer(call, fault, environ, body)
        call.status, call.error = answer.code, answer.error
        if fault is not None and fault.then == "drop":
            call.error = "dropped"
        if call.identity != SETUP:
            with self._lock:
                self._calls.append(call)
        if call.error == "dropped":
            connection: socket.socket = environ["werkzeug.socket"]
            connection.shutdown(socket.SHUT_RDWR)
        start_response(answer.status, answer.headers)
        return [answer.body]

    def _answer(self, call: Call, fault: Fault | None, environ: dict[str, Any], body: bytes) -> Answer:
        head = environ["REQUEST_METHOD"] == "HEAD"
        if fault is not None and fault.then == "refuse":
            return error(call.service, fault.status, fault.code, fault.message, head=head)

        def ask_moto() -> Answer:
            inner = {**environ, "wsgi.input": io.BytesIO(body), "HTTP_X_MOTO_ACCOUNT_ID": self._account}
            inner |= {"CONTENT_LENGTH": str(len(body)), "wsgi.input_terminated": True}
            inner.pop("HTTP_TRANSFER_ENCODING", None)
            return _call_application(_MOTO, inner)

        ask = ask_moto
        for rule in reversed(self._rules):
            ask = _bound(rule, call, ask)
        return ask()


class _QuietRequestHandler(MotoRequestHandler):
    timeout = 60

    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002 werkzeug's name of it
        """The calls are recorded; a line for each on stderr would hide the test's own."""


def _bound(rule: Rule, call: Call, ask: Callable[[], Answer]) -> Callable[[], Answer]:
    return lambda: rule(call, ask)


def _read_body(environ: dict[str, Any]) -> bytes:
    stream = environ["wsgi.input"]
    if environ.get("wsgi.input_terminated"):  # chunked
        return bytes(stream.read())
    return bytes(stream.read(int(environ.get("CONTENT_LENGTH") or 0)))


def _call_application(application: Any, environ: dict[str, Any]) -> Answer:
    head: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
        head[:] = [status, headers]

    chunks = application(environ, start_response)
    try:
        body = b"".join(chunks)
    finally:
        if hasattr(chunks, "close"):
            chunks.close()
    return Answer(status=head[0], headers=head[1], body=body)
