"""A question that one node's agent asks another's directly, on a port of its own: whether it is there, and reaches the job store.

A connection proves nothing, as the kernel takes it for an agent that hangs, and refuses it for one that is dead. So an answer
carries the asker's nonce under a key that only this job's nodes have (the coordinator draws it, `control/peers.json` holds it).
A stranger without the key gets no answer. The server keeps few connections for a short time, and no longer lines than it needs.
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
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from bai_agent.job.peers import Peer
from bai_agent.job.record_checks import checked
from bai_agent.job.record_types import Count, Seconds
from bai_agent.job.store import RecordError

log = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0
"""For the whole of a question, from the connection to the last byte of the answer."""
_CONNECTIONS = 32
"""At the same time; a new one takes the place of the oldest, so that silent ones keep nobody out."""
_REQUEST_BYTES = 256
_ANSWER_BYTES = 4096
_TAKE_SECONDS = 0.003
"""Between two connections that are taken: however many come, they cost the benchmark next to nothing."""
_FULL_SECONDS = 0.1
"""Before the next is taken where this process has no descriptor left."""
_ASKED_AT_ONCE = 32
_VERSION = b"bai-question-1"


@dataclass(frozen=True, kw_only=True)
class PeerAnswer:
    """What a living agent says of itself. Keys that it adds later are passed over by those that do not know them."""

    rank: Count
    store_s: Seconds
    """How long ago it reached the job store."""
    alone_s: Seconds
    """How long ago it reached the store, or was last told that others do not reach it either."""


def new_key() -> bytes:
    """Return a key for the nodes of one job."""
    return secrets.token_bytes(32)


def ask(peer: Peer, key: bytes, *, timeout_s: float = ANSWER_SECONDS) -> PeerAnswer | None:
    """Return what a node's agent answers within `timeout_s` seconds; None if nothing does that has the key."""
    if not peer.agent_port:
        return None
    deadline = time.monotonic() + timeout_s
    nonce = secrets.token_hex(16).encode()
    content = b""
    try:
        with socket.create_connection((peer.address, peer.agent_port), timeout=timeout_s) as connection:
            connection.sendall(b"%s %s %s\n" % (_VERSION, nonce, _proof(key, b"ask", peer.rank, nonce)))
            while b"\n" not in content and len(content) < _ANSWER_BYTES:
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                if not (piece := connection.recv(_ANSWER_BYTES)):
                    return None
                content += piece
    except OSError:
        return None
    proof, _, body = content.partition(b"\n")[0].partition(b" ")
    if not hmac.compare_digest(proof, _proof(key, b"answer", peer.rank, nonce, body)):
        return None
    try:
        answer = checked(PeerAnswer, json.loads(body), where=peer.mention)
    except (ValueError, RecursionError, RecordError):
        return None
    return answer if answer.rank == peer.rank else None


def ask_all(
    peers: Iterable[Peer], ask_one: Callable[[Peer], PeerAnswer | None]
) -> dict[int, PeerAnswer | None]:
    """Return what each of these nodes answers, by rank; they are asked at the same time."""
    asked = list(peers)
    if not asked:
        return {}
    with ThreadPoolExecutor(min(_ASKED_AT_ONCE, len(asked))) as pool:
        return {peer.rank: answer for peer, answer in zip(asked, pool.map(ask_one, asked), strict=True)}


@dataclass
class _Connection:
    socket: socket.socket
    until: float
    content: bytes = field(default=b"")


class AnswerPort(threading.Thread):
    """Answers the other nodes' questions on a socket that is bound, as long as the agent lives."""

    def __init__(
        self, held: socket.socket, *, rank: int, key: bytes, answer: Callable[[], PeerAnswer]
    ) -> None:
        super().__init__(name="answers", daemon=True)
        self._held, self._rank, self._key = held, rank, key
        self._answer = answer
        self._open: dict[int, _Connection] = {}
        """By descriptor, the oldest first."""
        self._over = threading.Event()

    def start(self) -> None:
        """Listen and answer. Where that cannot be, which is logged, this node is known by its signs of life alone."""
        try:
            self._held.setblocking(False)
            self._held.listen(_CONNECTIONS)
            self._selector = selectors.DefaultSelector()
        except OSError:
            log.exception("the other nodes' questions are not answered")
            return
        super().start()

    def end(self) -> None:
        """PeerAnswer no more."""
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
            # Too many open files, or a peer that is gone again: the rest of the agent is not to suffer from a busy loop.
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
                return  # the rest may come
        except BlockingIOError:
            return
        except OSError as error:
            log.info("a question was not answered: %s", error)
        self._close(state, selector)

    def _respond(self, line: bytes) -> bytes:
        """Return the answer to one line; nothing for a stranger."""
        version, _, rest = line.partition(b" ")
        nonce, _, proof = rest.partition(b" ")
        if version != _VERSION or not hmac.compare_digest(
            proof, _proof(self._key, b"ask", self._rank, nonce)
        ):
            return b""
        body = json.dumps(asdict(self._answer())).encode()
        return b"%s %s\n" % (_proof(self._key, b"answer", self._rank, nonce, body), body)

    def _close(self, state: _Connection, selector: selectors.BaseSelector) -> None:
        del self._open[state.socket.fileno()]
        with suppress(KeyError, ValueError):
            selector.unregister(state.socket)
        state.socket.close()


def _proof(key: bytes, purpose: bytes, rank: int, *parts: bytes) -> bytes:
    """Return the proof that a line was written by one who has the key, for this purpose and this node asked."""
    text = b" ".join((_VERSION, purpose, str(rank).encode(), *parts))
    return hmac.new(key, text, hashlib.sha256).hexdigest().encode()
