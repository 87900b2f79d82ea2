"""Direct questions between the agents of two nodes, on a port of their own. An agent asks whether the other
agent is alive and reaches the job store.

An agent also wakes another agent through this port. A woken agent checks the job store at once instead of
some seconds later. Nothing depends on a wake.

A connection alone proves nothing, because the kernel also accepts connections for an agent that hangs.
Therefore, an answer authenticates the asker's nonce with a key that only this job's nodes have. The
coordinator generates the key, and `control/peers.json` contains it. A client without the key gets no answer.
The server allows few connections, for a short time, and reads only short lines.
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
"""Seconds for a whole question, from the connection to the last byte of the answer."""
_CONNECTIONS = 32
"""Most connections at a time. A new connection replaces the oldest connection, so that silent clients do not
block other clients."""
_REQUEST_BYTES = 256
_ANSWER_BYTES = 4096
_TAKE_SECONDS = 0.003
"""Seconds between two accepted connections, so that any number of connections hardly slows down the
benchmark."""
_FULL_SECONDS = 0.1
"""Seconds until the next accept if this process has no descriptor left."""
_ASKED_AT_ONCE = 32
_VERSION = b"bai-question-1"
_WAKE = b"bai-wake-1"
_NONCES = 1024
"""Number of recent lines that are remembered, so that a replayed line does not wake the agent."""


@dataclass(frozen=True, kw_only=True)
class PeerAnswer:
    """The answer of a living agent. Earlier versions ignore keys of later versions."""

    rank: Count
    store_s: Seconds
    """Seconds since the agent last reached the job store."""
    alone_s: Seconds
    """Seconds since the agent last reached the store, or last learned that the other nodes do not reach it
    either."""


def new_key() -> bytes:
    """Return a key for the nodes of one job."""
    return secrets.token_bytes(32)


def ask(peer: Peer, key: bytes, *, timeout_s: float = ANSWER_SECONDS) -> PeerAnswer | None:
    """Return the answer of a node's agent. None if no agent with the key answers within `timeout_s` seconds."""
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
    """Make a node's agent check the job store at once, if the agent can be reached within `timeout_s`
    seconds."""
    nonce = secrets.token_hex(16).encode()
    line = b"%s %s %s\n" % (_WAKE, nonce, _proof(key, b"wake", peer.node, nonce))
    with (
        suppress(OSError),
        socket.create_connection((peer.address, peer.agent_port), timeout=timeout_s) as connection,
    ):
        connection.sendall(line)


def wake_all(peers: Iterable[Peer], key: bytes) -> None:
    """Wake all of these nodes, on threads of their own, so that nothing waits for a machine that does not
    answer."""
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
    """Return the answers of these nodes, by number. All nodes are asked at the same time."""
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
    """Answers the other nodes' questions on a bound socket, as long as the agent lives."""

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
        """Nonces of the lines that have woken this agent."""
        self._open: dict[int, _Connection] = {}
        """Open connections by descriptor, the oldest first."""
        self._over = threading.Event()

    def start(self) -> None:
        """Listen and answer. A failure is logged. Without answers, the other nodes only have this node's
        heartbeats."""
        try:
            self._held.setblocking(False)
            self._held.listen(_CONNECTIONS)
            self._selector = selectors.DefaultSelector()
        except OSError:
            log.exception("the other nodes' questions are not answered")
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
            log.exception("the other nodes' questions are not answered")
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
            # There are too many open files, or the peer is already gone. The pause keeps the thread from using
            # a whole CPU.
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
        """Return the answer to one line. The answer is empty if the sender does not have the key."""
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
    """Return the authentication code that proves that the writer of a line has the key, for this purpose and
    this node."""
    text = b" ".join((_VERSION, purpose, str(rank).encode(), *parts))
    return hmac.new(key, text, hashlib.sha256).hexdigest().encode()
