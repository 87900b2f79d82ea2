"""The supervisor for AdaptDL's replicas on this node. The replicas get the addresses of all replicas from the
supervisor, and send their hints to it.

The supervisor is a server on 127.0.0.1 with two paths. `<job>` is `ADAPTDL_JOB_ID`, which contains a random
token, because every user of this machine can connect to the port:

| request | answer |
|---|---|
| `GET /discover/<job>/<restart>` | a list of the replicas' addresses, in the order of their ranks, after the generation `<restart>` has begun on this node; status 408 after a time limit, which means "ask again" |
| `PUT /hints/<job>` | the supervisor stores the hints, a JSON object of at most 64 KiB |
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import threading
from collections.abc import Sequence

from bai_agent.decode import parse_json
from bai_agent.errors import RecordError
from bai_agent.job.bounded_server import Answers, BoundedServer
from bai_agent.job.generation_records import Hints
from bai_agent.job.peers import Peer
from bai_agent.job.run_directory import RunDir, now_ms, read_json, write_json

log = logging.getLogger(__name__)

MOST_HINT_BYTES = 64 * 1024
_HERE = "127.0.0.1"
_HOLD_S = 10.0
"""Longest time for which a `discover` request waits until its generation begins (seconds)."""
_JSON = "application/json"
_TOKEN_BYTES = 16


class AdaptdlSupervisor:
    """HTTP server for the AdaptDL replicas of one node. The server runs on threads of its own."""

    def __init__(self, *, node: int, job_key: str, port: int = 0, hold_s: float = _HOLD_S) -> None:
        """job_key: value of `ADAPTDL_JOB_ID`. port: port of the server; 0 for any free port. Raises
        OSError."""
        self._node, self._job_key, self._hold_s = node, job_key, hold_s
        self._changed = threading.Condition()
        self._generation = -1
        self._addresses: Sequence[str] = ()
        self._hints: Hints | None = None
        self._warnings: list[str] = []
        self._warned: set[str] = set()
        self._server = BoundedServer((_HERE, port), _handler(self))
        # All replicas of a node can connect at the same moment, and a replica fails if the server closes its
        # connection.
        self._server.most_connections = 1024
        threading.Thread(target=self._server.serve_forever, name="adaptdl-supervisor", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that tell replicas the supervisor's address."""
        return {
            "ADAPTDL_JOB_ID": self._job_key,
            "ADAPTDL_SUPERVISOR_URL": f"http://{_HERE}:{self.port}",
        }

    def begin(self, generation: int, peers: Sequence[Peer]) -> None:
        """Set the newest generation and its members, in the order of their ranks. After the call, the
        supervisor answers the waiting `discover` requests."""
        with self._changed:
            self._generation = generation
            self._addresses = [peer.address for peer in peers for _ in range(peer.slots)]
            self._changed.notify_all()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def hints(self) -> Hints | None:
        """The hints that a replica sent last. None if no replica has sent hints."""
        return self._hints

    def take_warnings(self) -> list[str]:
        """Return the warnings about invalid requests since the last call. Each kind of warning is returned
        once."""
        with self._changed:
            taken, self._warnings = self._warnings, []
        return taken

    def is_for(self, job_key: str) -> bool:
        """Return whether the job key of a request is the key of this job."""
        return hmac.compare_digest(job_key.encode(errors="replace"), self._job_key.encode())

    def discover(self, restart: int) -> Sequence[str] | None:
        """Return the addresses of a generation's replicas; None if the generation does not begin in time.
        Raises LookupError if the generation is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._generation >= restart, timeout=self._hold_s)
            if self._generation > restart:
                raise LookupError
            return self._addresses if self._generation == restart else None

    def give_hints(self, content: bytes) -> bool:
        """Store a replica's hints. Return False if the hints are not a JSON object."""
        try:
            values = parse_json(content, where="hints")
            if not isinstance(values, dict):
                raise RecordError("hints are not a JSON object")
            text = json.dumps(values)
        except (RecordError, ValueError, RecursionError):
            self.warn("AdaptDL's hints were not a JSON object, and are ignored.")
            return False
        with self._changed:
            self._hints = Hints(
                node=self._node, generation=max(0, self._generation), time=now_ms(), text=text
            )
        return True

    def warn(self, sentence: str) -> None:
        """Add a warning, unless the same warning was reported before."""
        with self._changed:
            if sentence not in self._warned:
                self._warned.add(sentence)
                self._warnings.append(sentence)


def start_supervisor(rundir: RunDir, *, node: int, job_id: str) -> AdaptdlSupervisor:
    """Start the supervisor on the port that an earlier agent of this node used, because running replicas send
    their requests to that port. Raises OSError."""
    table = read_json(rundir.supervisor) or {}
    token, port = table.get("token"), table.get("port")
    if not (isinstance(token, str) and token.isalnum() and type(port) is int and 0 < port < 2**16):
        token, port = secrets.token_hex(_TOKEN_BYTES), 0
    job_key = f"{token}/{job_id}"
    try:
        supervisor = AdaptdlSupervisor(node=node, job_key=job_key, port=port)
    except OSError as error:
        if not port:
            raise
        log.warning("the supervisor's port %d is taken: %s; running replicas cannot send hints", port, error)
        supervisor = AdaptdlSupervisor(node=node, job_key=job_key)
    write_json(rundir.supervisor, {"token": token, "port": supervisor.port})
    return supervisor


def _handler(supervisor: AdaptdlSupervisor) -> type[Answers]:
    class Handler(Answers):
        def do_GET(self) -> None:  # noqa: N802 - the library's name
            job_key, _, restart = self._place("/discover/").rpartition("/")
            if not supervisor.is_for(job_key) or not (restart.isdecimal() and len(restart) < 7):
                self.send_error(404, explain="no such job")
                return
            try:
                addresses = supervisor.discover(int(restart))
            except LookupError:
                self.send_error(410, explain="that generation is over")
                return
            if addresses is None:
                self.send_error(408, explain="that generation has not begun; ask again")
                return
            self.answer(json.dumps(addresses).encode(), _JSON)

        def do_PUT(self) -> None:  # noqa: N802 - the library's name
            if not supervisor.is_for(self._place("/hints/")):
                self.send_error(404, explain="no such job")
                return
            length = self.headers.get("Content-Length") or ""
            if not length.isdecimal() or len(length) > 20 or int(length) > MOST_HINT_BYTES:
                supervisor.warn(
                    f"AdaptDL's hints were larger than {MOST_HINT_BYTES} bytes, or of unknown size, and are ignored."
                )
                self.send_error(413, explain="too large")
                return
            content = self.rfile.read(int(length))
            if len(content) < int(length) or not supervisor.give_hints(content):
                self.send_error(400, explain="the hints are not a JSON object")
                return
            self.answer(b"{}", _JSON)

        def _place(self, prefix: str) -> str:
            """Return the part of the path after `prefix`; "" if the path does not begin with `prefix`."""
            path = self.path.partition("?")[0]
            return path[len(prefix) :] if path.startswith(prefix) else ""

    return Handler
