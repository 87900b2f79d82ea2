"""Requests that one node's agent sends directly to another node's agent, to a port that only serves these
requests. A request asks whether the other agent is alive and reaches the job store.

An agent can also wake another agent through this port. A woken agent checks the job store at once instead of
some seconds later. If a wake-up is lost, the agent notices the change in the job store at its next regular
check.

A connection alone proves nothing, because the kernel also accepts connections for an agent that hangs.
Therefore, an answer signs the nonce of its request with a secret key that only this job's nodes have. The
coordinator generates the secret key and publishes it to the nodes in `control/peers.json`. A client without
the key gets no answer. The server accepts few connections, for a short time, and reads only short lines.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from bai_agent.decode import decode
from bai_agent.errors import RecordError
from bai_agent.job.peers import Peer
from bai_agent.job.record_types import Count, Seconds
from bai_agent.light_dataclass import asdict, dataclass, field

log = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0
"""Time limit of a whole request, from the connection to the last byte of the answer (seconds)."""
_CONNECTIONS = 32
"""Largest number of open connections. If the limit is reached, a new connection replaces the oldest
connection, so that silent clients do not block other clients."""
_REQUEST_BYTES = 256
_ANSWER_BYTES = 4096
_TAKE_SECONDS = 0.003
"""Pause between two accepted connections (seconds). The pause prevents that very many connections slow down
the benchmark."""
_FULL_SECONDS = 0.1
"""Pause before the next `accept` after an `accept` failed, for example because too many files are open
(seconds)."""
_ASKED_AT_ONCE = 32
_VERSION = b"bai-question-1"
_WAKE = b"bai-wake-1"
_NONCES = 1024
"""Number of recent wake-ups that are remembered, so that a replayed wake-up has no effect."""


@dataclass(frozen=True, kw_only=True)
class PeerAnswer:
    """An agent's answer to a direct request. Agents ignore keys that their version does not know."""

    rank: Count
    store_s: Seconds
    """Seconds since the agent last reached the job store."""
    alone_s: Seconds
    """Seconds since the agent last reached the store, or last learned that the other nodes do not reach the
    store either."""


def new_key() -> bytes:
    """Return a new random key with which the nodes of one job sign their requests to each other."""
    return secrets.token_bytes(32)


def ask(peer: Peer, key: bytes, *, timeout_s: float = ANSWER_SECONDS) -> PeerAnswer | None:
    """Send a request to a node's agent and return its answer. None if no agent with the key answers within
    `timeout_s` seconds."""
    if not peer.agent_port:
        return None
    deadline = time.monotonic() + timeout_s
    nonce = secrets.token_hex(16).encode()
    content = b""
    try:
        with socket.create_connection((peer.address, peer.agent_port), timeout=timeout_s) as connection:
            connection.sendall(b"%s %s %s\n" % (_VERSION, nonce, _proof(key, b"ask", peer.node, nonce)))
            while b"\n" not in content and len(content) < _ANSWER_BYTES:
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                if not (piece := connection.recv(_ANSWER_BYTES)):
                    return None
                content += piece
    except OSError:
        return None
    proof, _, body = content.partition(b"\n")[0].partition(b" ")
    if not hmac.compare_digest(proof, _proof(key, b"answer", peer.node, nonce, body)):
        return None
    try:
        answer = decode(PeerAnswer, body, where=peer.mention)
    except RecordError:
        return None
    return answer if answer.rank == peer.node else None


def wake(peer: Peer, key: bytes, *, timeout_s: float = ANSWER_SECONDS) -> None:
    """Ask a node's agent to check the job store at once. Gives up without an error if the agent cannot be
    reached within `timeout_s` seconds."""
    nonce = secrets.token_hex(16).encode()
    line = b"%s %s %s\n" % (_WAKE, nonce, _proof(key, b"wake", peer.node, nonce))
    with (
        suppress(OSError),
        socket.create_connection((peer.address, peer.agent_port), timeout=timeout_s) as connection,
    ):
        connection.sendall(line)


def wake_all(peers: Iterable[Peer], key: bytes) -> None:
    """Wake the agents of these nodes. The wake-ups are sent on other threads, so that the caller does not
    wait for a machine that does not answer."""
    woken = [each for each in peers if each.agent_port]

    def wake_them() -> None:
        with ThreadPoolExecutor(min(_ASKED_AT_ONCE, len(woken))) as pool:
            for each in woken:
                pool.submit(wake, each, key)

    if woken:
        threading.Thread(target=wake_them, name="wake", daemon=True).start()


def ask_all(
    peers: Iterable[Peer], ask_one: Callable[[Peer], PeerAnswer | None]
) -> dict[int, PeerAnswer | None]:
    """Send a request to each of these nodes, all at the same time. Return the answers by node number."""
    asked = list(peers)
    if not asked:
        return {}
    with ThreadPoolExecutor(min(_ASKED_AT_ONCE, len(asked))) as pool:
        return {peer.node: answer for peer, answer in zip(asked, pool.map(ask_one, asked), strict=True)}


@dataclass
class _Connection:
    socket: socket.socket
    until: float
    content: bytes = field(default=b"")


class AnswerPort(threading.Thread):
    """Server thread that answers the requests of other agents on a bound socket, as long as this agent
    lives."""

    def __init__(
        self,
        held: socket.socket,
        *,
        rank: int,
        key: bytes,
        answer: Callable[[], PeerAnswer],
        woken: Callable[[], object] = lambda: None,
    ) -> None:
        """woken: function that is called when another node's agent wakes this agent."""
        super().__init__(name="answers", daemon=True)
        self._held, self._rank, self._key = held, rank, key
        self._answer, self._woken = answer, woken
        self._nonces: deque[bytes] = deque(maxlen=_NONCES)
        """Nonces of the requests that have woken this agent."""
        self._open: dict[int, _Connection] = {}
        """Open connections by file descriptor, the oldest first."""
        self._over = threading.Event()

    def start(self) -> None:
        """Start to listen for other agents' requests and to answer them. A failure is logged. After a
        failure, the other nodes only see this node's heartbeats."""
        try:
            self._held.setblocking(False)
            self._held.listen(_CONNECTIONS)
            self._selector = selectors.DefaultSelector()
        except OSError:
            log.exception("requests of other nodes are not answered")
            return
        super().start()

    def end(self) -> None:
        """Stop answering."""
        self._over.set()

    def run(self) -> None:
        try:
            with self._selector as selector:
                selector.register(self._held, selectors.EVENT_READ)
                while not self._over.is_set():
                    self._serve(selector)
        except OSError:
            log.exception("requests of other nodes are not answered")
        finally:
            for each in self._open.values():
                each.socket.close()
            self._held.close()

    def _serve(self, selector: selectors.BaseSelector) -> None:
        ready = [key.fileobj for key, _ in selector.select(timeout=1.0)]
        for connection in ready:
            if connection is not self._held and isinstance(connection, socket.socket):
                self._read(connection, selector)
        now = time.monotonic()
        for each in [each for each in self._open.values() if each.until < now]:
            self._close(each, selector)
        if self._held in ready:
            self._accept(selector)
            self._over.wait(_TAKE_SECONDS)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = self._held.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # The agent has too many open files, or the client has already closed its connection. The pause
            # keeps the thread from using a whole CPU.
            log.info("a question was not taken: %s", error)
            self._over.wait(_FULL_SECONDS)
            return
        connection.setblocking(False)
        if len(self._open) >= _CONNECTIONS:
            self._close(next(iter(self._open.values())), selector)
        self._open[connection.fileno()] = _Connection(connection, time.monotonic() + ANSWER_SECONDS)
        selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket, selector: selectors.BaseSelector) -> None:
        state = self._open.get(connection.fileno())
        if state is None:
            return
        try:
            piece = connection.recv(_REQUEST_BYTES)
            state.content += piece
            if b"\n" in state.content:
                connection.send(self._respond(state.content.partition(b"\n")[0]))
            elif piece and len(state.content) < _REQUEST_BYTES:
                return  # the rest of the line may still arrive
        except BlockingIOError:
            return
        except OSError as error:
            log.info("a question was not answered: %s", error)
        self._close(state, selector)

    def _respond(self, line: bytes) -> bytes:
        """Return the answer to the line of one request. The answer is empty if the request is a wake-up or if
        the sender does not have the key."""
        version, _, rest = line.partition(b" ")
        nonce, _, proof = rest.partition(b" ")
        purpose = {_VERSION: b"ask", _WAKE: b"wake"}.get(version)
        if purpose is None or not hmac.compare_digest(proof, _proof(self._key, purpose, self._rank, nonce)):
            return b""
        if version == _WAKE:
            if nonce not in self._nonces:
                self._nonces.append(nonce)
                self._woken()
            return b""
        body = json.dumps(asdict(self._answer())).encode()
        return b"%s %s\n" % (_proof(self._key, b"answer", self._rank, nonce, body), body)

    def _close(self, state: _Connection, selector: selectors.BaseSelector) -> None:
        del self._open[state.socket.fileno()]
        with suppress(KeyError, ValueError):
            selector.unregister(state.socket)
        state.socket.close()


def _proof(key: bytes, purpose: bytes, rank: int, *parts: bytes) -> bytes:
    """Return an HMAC which proves that the sender of a line has the key. The HMAC covers the purpose of the
    line, the node number and `parts`."""
    text = b" ".join((_VERSION, purpose, str(rank).encode(), *parts))
    return hmac.new(key, text, hashlib.sha256).hexdigest().encode()
