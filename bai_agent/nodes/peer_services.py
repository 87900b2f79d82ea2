"""Waits until services of other nodes are ready: their SSH servers, and the job's server under test. A launch
would fail if the services were not ready."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

from bai_agent.benchmark.programs import ask
from bai_agent.benchmark.start import Order
from bai_agent.errors import NoAnswerError
from bai_agent.job.descriptor.strategy_tables import ReadinessProbe, Server
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Peer
from bai_agent.job.schema.durations import format_duration
from bai_agent.run.run_context import RunContext
from bai_agent.runtime.clock import call_with_deadline
from bai_agent.runtime.stop import RunEndedError

_LOGIN_S = 60.0
"""Seconds within which all nodes must accept an SSH login of this node."""
_LOGIN_TRY_S = 20.0
_LOGINS_AT_ONCE = 32
_LOGIN_PAUSE_S = 0.2
_CONNECTION_TIMEOUT_S = 5.0
"""Timeout of a test connection to a server without a readiness probe (seconds)."""
_CONNECTION_PERIOD_S = 1.0
"""Time between two test connections to a server without a readiness probe (seconds)."""
_TICK_S = 0.1
_READY = range(200, 400)
"""HTTP statuses with which a server reports that it is ready. Kubernetes uses the same statuses:
https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/"""


def wait_for_hosts(ctx: RunContext, order: Order) -> None:
    """Return after this node has run a command by `ssh` on each host of the order. Raises RunEndedError."""
    deadline = ctx.clock.monotonic() + _LOGIN_S
    over = threading.Event()

    def late() -> bool:
        return over.is_set() or ctx.clock.monotonic() > deadline

    def reach(peer: Peer) -> str | None:
        """Return why the node could not be reached; None if the node was reached."""
        while (words := _log_in(order, peer)) is not None and not late():
            over.wait(_LOGIN_PAUSE_S)
        return words

    with ThreadPoolExecutor(max_workers=_LOGINS_AT_ONCE, thread_name_prefix="ssh") as pool:
        tries = {peer.rank: pool.submit(reach, peer) for peer in order.hosts}
        try:
            while wait(tries.values(), timeout=_LOGIN_PAUSE_S).not_done:
                ctx.watch.raise_reason()
        finally:
            over.set()
    for peer in order.hosts:
        if (words := tries[peer.rank].result()) is not None:
            raise RunEndedError.of(
                Outcome.JOIN_FAILED,
                f"{peer.title} accepted no SSH login of node {ctx.node.rank} at port {peer.port} within {_LOGIN_S:.0f} s: "
                f"{words}. Nodes must reach each other on all ports.",
            )


def _log_in(order: Order, peer: Peer) -> str | None:
    """Return why no command could be run by `ssh` on a node; None if a command was run."""
    try:
        answer = ask(
            ["ssh", peer.address, "true"],
            env=order.env,
            user=order.user,
            timeout_s=_LOGIN_TRY_S,
            with_stderr=True,
        )
    except NoAnswerError as error:
        return str(error)
    if not answer.code:
        return None
    said = answer.lines[-1] if answer.lines else ""
    return said.rstrip(".")[:300] or f"ssh exited with code {answer.code}"


def wait_for_server(ctx: RunContext, server: Server, peer: Peer) -> None:
    """Wait until the server of the node `peer` is ready. Raises RunEndedError after `limits.join`, or if the
    run must end."""
    probe = server.readiness_probe
    limit = ctx.job.limits.join
    deadline = ctx.clock.monotonic() + limit.total_seconds()
    look, what = _look(server, peer)
    timeout_s = _CONNECTION_TIMEOUT_S if probe is None else float(probe.timeout_seconds)
    period_s = _CONNECTION_PERIOD_S if probe is None else float(probe.period_seconds)
    successes, wanted = 0, 1 if probe is None else probe.success_threshold
    words = "it was not asked"
    _pause(ctx, 0.0 if probe is None else probe.initial_delay_seconds, deadline)
    while ctx.clock.monotonic() <= deadline:
        problem = _ask(ctx, look, timeout_s, deadline)
        successes = 0 if problem else successes + 1
        if successes >= wanted:
            return
        words = problem or f"only {successes} of {wanted} probes in a row succeeded"
        _pause(ctx, period_s, deadline)
    raise RunEndedError.of(
        Outcome.JOIN_FAILED,
        f"The server of node {peer.node} was not ready within limits.join ({format_duration(limit)}): {what}: {words}.",
    )


def _pause(ctx: RunContext, seconds: float, deadline: float) -> None:
    """Wait for this number of seconds, but at most until shortly after the deadline. Raises RunEndedError."""
    until = min(ctx.clock.monotonic() + seconds, deadline + _TICK_S)
    while True:
        ctx.watch.raise_reason()
        left = until - ctx.clock.monotonic()
        if left <= 0:
            return
        ctx.clock.sleep(min(left, _TICK_S))


def _ask(ctx: RunContext, look: Callable[[float], str], timeout_s: float, deadline: float) -> str:
    """Return why the server is not ready, or "" if the server is ready. The wait ends shortly after the
    deadline at the latest."""
    begun = ctx.clock.monotonic()
    allowed = min(timeout_s, deadline + _TICK_S - begun)
    end = begun + allowed

    def over() -> bool:
        return ctx.clock.monotonic() > end or ctx.watch.reason() is not None

    # The request runs on a thread, because a socket's timeout applies to each piece of an answer. A server
    # that sends small pieces slowly could exceed any total time.
    found = call_with_deadline(partial(look, timeout_s), over=over, name="server probe")
    return f"no answer within {round(allowed, 1):g} s" if found is None else found


def _look(server: Server, peer: Peer) -> tuple[Callable[[float], str], str]:
    """Return a function that sends one readiness request with a timeout in seconds, and a description of the
    request for messages."""
    probe, port = server.readiness_probe, server.ports[0]
    if probe is None:
        return partial(_connect, peer.address, port), f"a connection to {peer.address}:{port}"
    port = probe.port or port
    path = f"/{probe.path.lstrip('/')}"
    return partial(_get, probe, peer.address, port, path), (
        f"GET {probe.scheme.lower()}://{peer.address}:{port}{path}"
    )


def _connect(address: str, port: int, timeout_s: float) -> str:
    try:
        socket.create_connection((address, port), timeout=timeout_s).close()
    except OSError as error:
        return _said(error)
    return ""


def _get(probe: ReadinessProbe, address: str, port: int, path: str, timeout_s: float) -> str:
    # Imported here, because most jobs have no server.
    import http.client
    import ssl

    connection: http.client.HTTPConnection
    if probe.scheme.lower() == "https":
        # The certificate is not verified, because a server under test usually has a self-signed certificate.
        # Kubernetes does the same.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(address, port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(address, port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers={"User-Agent": "bai-agent"})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _said(error)
    finally:
        connection.close()
    return "" if status in _READY else f"it answered with status {status}"


def _said(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return "".join(each if each.isprintable() else " " for each in text)[:200].rstrip(".")
