"""Starts Ray on a node, and the benchmark's command on the first node: `python -I -S ray_node.py --role=head … -- COMMAND …`.

On the first node, this program starts Ray's head, waits until Ray has all nodes, and runs the command. When
the command ends, this program stops Ray. On every node except the first, this program runs `ray start
--address=…` as soon as Ray's head answers. On these nodes, this program stops Ray when this program receives
SIGTERM, because Ray would continue to run after its head has ended. Ray itself retries forever, so this
program has its own time limits.

This program reads Ray's token for the run from an environment variable, and writes the token to a file of the
benchmark's user. A file is used because programs print environment variables more often than files. Ray runs
in a session of its own, so that SIGTERM to the benchmark's process group reaches the command while Ray still
works. This program runs as a plain file, so it uses only the standard library.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

TOKEN = "BAI_RAY_TOKEN"  # noqa: S105 - a name
"""Environment variable with Ray's token for the run. If the variable BAI_RAY_TOKEN is not set, as on a single
node, a new token is generated."""
FAILURE_FILE = "BAI_RAY_FAILURE"
"""Environment variable with the path of the note in which this program explains why Ray does not work."""
_TEMP_PREFIX = "bai-ray-"
_LONGEST_FOLDER = 24
"""Longest path of the folder for temporary files (bytes). Ray creates sockets in a subfolder of the folder
for temporary files, and a socket's path can have at most 107 bytes (unix(7))."""
_NEW_S = 60.0
"""Age up to which a temporary folder is not removed (seconds), because the program that created the folder
has possibly not locked it yet."""
_TICK_S = 0.1
_CONNECT_S = 2.0
_END_S = 10.0
"""Time limit for Ray to end after SIGTERM (seconds). Ray usually ends in one or two seconds."""
_LAST_LINES = 5
_LEAST_STORE = 80_000_000
"""Size of the object store (bytes), slightly larger than the smallest store with which Ray starts."""
_STORE_SHARE = 0.3
"""Share of the free memory for Ray's object stores, which is Ray's own default."""
_LOOK = """
import json, sys, time
import ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error", namespace="bai")
while True:
    print(json.dumps([each["NodeManagerAddress"] for each in ray.nodes() if each["Alive"]]), flush=True)
    time.sleep(0.5)
"""
"""Source of a Python program that repeatedly prints the addresses of Ray's nodes. The program runs in a
Python that has Ray, because no other program can query Ray."""


class RayError(Exception):
    """Raised if Ray does not work on this node. The exception's message is shown to the user."""


class RayNode:
    """Ray on this node, with its folder, its environment, and the process `ray start` that runs it."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options, self._folder = options, folder
        self.head = f"{options.nodes[0]}:{options.port}"
        token = folder / "token"
        token.touch(0o600)
        token.write_text(os.environ.pop(TOKEN, "") or secrets.token_hex(32))
        own = {
            "RAY_ADDRESS": self.head,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        others = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_TOKEN"}
        self.env = {**others, **own}
        self._log = folder / "ray.log"
        self._ray: subprocess.Popen[bytes] | None = None
        self._look: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start Ray. Raises RayError."""
        words = ["ray", "start", f"--node-ip-address={self._options.address}", f"--temp-dir={self._folder}"]
        if self._options.role == "head":
            words += ["--head", f"--port={self._options.port}", "--include-dashboard=false"]
        else:
            words.append(f"--address={self.head}")
        # Ray's default ports assume that Ray has the machine to itself. Another node or job on this machine
        # possibly uses these ports already.
        words += ["--node-manager-port=0", "--object-manager-port=0", "--dashboard-agent-listen-port=0"]
        words += ["--disable-usage-stats", "--block", *self._share()]
        # RAY_ADDRESS is meant for the benchmark's command. RAY_ADDRESS is removed here, because `ray start
        # --head` would connect to that address.
        env = {name: value for name, value in self.env.items() if name != "RAY_ADDRESS"}
        try:
            with self._log.open("wb") as log:
                self._ray = subprocess.Popen(
                    words,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise RayError(f"ray cannot be started: {error.strerror}") from error

    def require_running(self) -> None:
        """Raise RayError if Ray has ended by itself."""
        if self._ray is not None and (code := self._ray.poll()) is not None:
            how = f"exited with code {code}" if code >= 0 else f"was ended by signal {-code}"
            raise RayError(f"Ray on this node {how}{self._last_lines()}")

    def missing(self) -> list[str]:
        """Return the addresses of the nodes that Ray's last answer did not list. Raises RayError."""
        if self._look is None:
            words = [_ray_python(self.env), "-c", _LOOK, self.head]
            answers = (self._folder / "nodes").open("wb")
            with answers, self._log.open("ab") as log:
                self._look = subprocess.Popen(
                    words,
                    env=self.env,
                    stdin=subprocess.DEVNULL,
                    stdout=answers,
                    stderr=log,
                    start_new_session=True,
                )
        elif self._look.poll() is not None:
            raise RayError(f"Ray's head at {self.head} does not report its nodes{self._last_lines()}")
        found: list[str] = []
        lines = (self._folder / "nodes").read_text(errors="replace").split("\n")
        with suppress(IndexError, ValueError):
            found = json.loads(lines[-2])
        return [each for each in self._options.nodes if each not in found]

    def end_look(self) -> None:
        """Stop the process that queries Ray's nodes."""
        if self._look is not None:
            self._look.kill()
            self._look.wait()

    def end(self) -> None:
        """Stop Ray on this node. `ray start` stops all of Ray's processes on this node when it receives
        SIGTERM."""
        self.end_look()
        if self._ray is None:
            return
        self._ray.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._ray.wait(_END_S)
        with suppress(ProcessLookupError):
            os.killpg(self._ray.pid, signal.SIGKILL)

    def _share(self) -> list[str]:
        """Return the options of `ray start` that limit a node to its share of the machine. Without the
        options, several nodes on one machine would each use the whole machine."""
        many = self._options.share
        if many == 1:
            return []
        memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _STORE_SHARE
        words = [
            f"--num-cpus={max(1, len(os.sched_getaffinity(0)) // many)}",
            f"--object-store-memory={max(_LEAST_STORE, int(memory) // many)}",
        ]
        return words if self._options.role == "head" else [*words, "--num-gpus=0"]

    def _last_lines(self) -> str:
        lines = [each.strip() for each in self._log.read_text(errors="replace").splitlines()]
        last = [each for each in lines if each][-_LAST_LINES:]
        return f": {' | '.join(last)}" if last else ""


class Runner:
    """Waits for Ray and for the command. SIGTERM ends the wait."""

    def __init__(
        self,
        options: argparse.Namespace,
        node: RayNode,
        command: list[str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._node, self._command, self._clock = options, node, command, clock
        self._until = clock() + options.join
        self._is_asked = False

    def ask(self, *_: object) -> None:
        """Signal handler that tells this program to end."""
        self._is_asked = True

    def head(self) -> int:
        """Run the command after all nodes have joined Ray. Return the command's exit code, which is negative
        for a signal. Raises RayError."""
        _require_free(self._options.nodes[0], self._options.port)
        self._node.start()
        self._wait_for_nodes()
        if self._is_asked:
            return -signal.SIGTERM
        try:
            child = subprocess.Popen(self._command, env=self._node.env)
        except OSError as error:
            _say(f'"{self._command[0]}" cannot be started: {error.strerror}')
            return 127 if isinstance(error, FileNotFoundError) else 126
        # The command is in this program's process group and also got SIGTERM. The command decides itself when
        # to end.
        if self._is_asked:  # the command may have started just after that signal
            child.terminate()
        return child.wait()

    def worker(self) -> int:
        """Keep this node in Ray until SIGTERM. Raises RayError."""
        while not self._is_asked and not _answers(*self._node.head.rsplit(":", 1)):
            if self._clock() > self._until:
                raise RayError(f"Ray's head at {self._node.head} did not answer within {self._limit}")
            time.sleep(_TICK_S)
        if not self._is_asked:
            self._node.start()
        while not self._is_asked:
            self._node.require_running()
            time.sleep(_TICK_S)
        return 0

    @property
    def _limit(self) -> str:
        return f"limits.join ({self._options.join:g} s)"

    def _wait_for_nodes(self) -> None:
        """Wait until all nodes have joined Ray. If the time limit is reached, the function returns if at
        least the smallest allowed number of nodes has joined. Raises RayError."""
        address, port = self._node.head.rsplit(":", 1)
        while not (self._is_asked or _answers(address, port)):
            self._node.require_running()
            if self._clock() > self._until:
                raise RayError(f"Ray's head did not listen at {self._node.head} within {self._limit}")
            time.sleep(_TICK_S)
        while not self._is_asked and (missing := self._node.missing()):
            self._node.require_running()
            if self._clock() > self._until:
                self._require_enough(missing)
                break
            time.sleep(_TICK_S)
        self._node.end_look()

    def _require_enough(self, missing: list[str]) -> None:
        nodes = self._options.nodes
        if len(missing) == len(nodes):
            raise RayError(f"Ray's head at {self._node.head} did not report its nodes within {self._limit}")
        said = f"Ray has {len(nodes) - len(missing)} of {len(nodes)} nodes after {self._limit}: {', '.join(missing)} did not join"
        if len(nodes) - len(missing) < self._options.least:
            raise RayError(said)
        _say(f"{said}; the command starts without these nodes")


def main() -> int:
    """Run Ray's head and the command, or only Ray, according to the command-line arguments."""
    at = sys.argv.index("--")
    options = _options(sys.argv[1:at])
    parent = _temporary_parent()
    try:
        folder = _make_folder(parent)
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        node = RayNode(options, folder)
    except OSError as error:
        return _failed(f"Ray cannot have a folder for temporary files in {parent}: {error.strerror}")
    runner = Runner(options, node, sys.argv[at + 1 :])
    signal.signal(signal.SIGTERM, runner.ask)
    try:
        code = runner.head() if options.role == "head" else runner.worker()
    except (RayError, OSError) as error:
        code = _failed(str(error))
    finally:
        node.end()
        shutil.rmtree(folder, ignore_errors=True)
    if code < 0:
        # If a signal terminated the command, this program terminates itself by the same signal.
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=("head", "worker"))
    parser.add_argument("--address")
    parser.add_argument("--port", type=int)
    parser.add_argument("--nodes", type=lambda text: text.split(","))
    parser.add_argument("--least", type=int)
    parser.add_argument("--join", type=float)
    parser.add_argument("--share", type=int)
    return parser.parse_args(words)


def _temporary_parent() -> Path:
    """Return the folder for temporary files, as an absolute path, because Ray accepts only absolute paths."""
    wanted = os.environ.get("TMPDIR", "")
    is_usable = wanted.startswith("/") and len(os.fsencode(wanted)) <= _LONGEST_FOLDER
    return Path(wanted if is_usable else "/tmp")  # noqa: S108


def _make_folder(parent: Path) -> Path:
    """Create a folder that only this user can access, and return its path. Folders that killed instances of
    this program have left are removed. Raises OSError."""
    for each in parent.glob(f"{_TEMP_PREFIX}*"):
        with suppress(OSError):
            _remove_abandoned(each)
    return Path(tempfile.mkdtemp(prefix=_TEMP_PREFIX, dir=parent))


def _remove_abandoned(folder: Path) -> None:
    """Remove a folder of this user, unless a program holds its lock. Raises OSError."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(lock)
        if found.st_uid == os.getuid() and time.time() - found.st_mtime > _NEW_S:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    finally:
        os.close(lock)


def _require_free(address: str, port: int) -> None:
    """Raise RayError if another program listens on the port of Ray's head. Without this check, Ray would wait
    for the other program, or would join the other program's cluster."""
    if _answers(address, str(port)):
        raise RayError(
            f"the port {port} of {address}, at which Ray's head is to listen, is taken by another program"
        )


def _answers(address: str, port: str) -> bool:
    try:
        with socket.create_connection((address, int(port)), timeout=_CONNECT_S):
            return True
    except OSError:
        return False


def _ray_python(env: dict[str, str]) -> str:
    """Return the Python that runs the program `ray`, according to the program's first line. If the first line
    names no Python, return the Python in the folder of the program `ray`."""
    program = shutil.which("ray", path=env.get("PATH"))
    if program is None:
        raise RayError("ray is not on PATH any more")
    with Path(program).open("rb") as file:
        first = os.fsdecode(file.readline(512)).removeprefix("#!").split()
    if first and Path(first[0]).name.startswith("python") and os.access(first[0], os.X_OK):
        return first[0]
    beside = Path(program).resolve().parent / "python3"
    return str(beside) if beside.exists() else "python3"


def _failed(problem: str) -> int:
    """Print and record why Ray does not work. Return the exit code of this program."""
    _say(problem)
    _tell(problem)
    return 1


def _tell(problem: str) -> None:
    """Write a note about why Ray does not work."""
    path = os.environ.get(FAILURE_FILE)
    if path:
        with suppress(OSError):
            Path(path).write_text(json.dumps({"message": problem, "time": time.time_ns() // 1_000_000}))


def _say(text: str) -> None:
    sys.stderr.write(f"[bai] {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
