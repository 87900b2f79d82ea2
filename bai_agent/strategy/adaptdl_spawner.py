"""Starts the replicas of one node of an AdaptDL job: `python -I -S adaptdl_spawner.py FIRST COUNT GRACE -- COMMAND …`.

FIRST: rank of the first replica. COUNT: number of replicas on this node. GRACE: seconds in which all other
replicas must end after the first replica has ended. The spawner passes SIGTERM on to the replicas. The
spawner's exit code is that of the first replica that failed. If no replica failed, the exit code is 143 if a
replica exited with 143, and 0 otherwise. AdaptDL exits with 143 if a replica has saved its state and wants to
be restarted. A replica that SIGTERM kills before AdaptDL can handle the signal is treated as if it had exited
with 143.

Each node runs this file as a program. The spawner stays in memory as long as the replicas run, so it imports
only the standard library.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SAVED = 143
"""Exit code of a replica that has saved its state and wants to be restarted."""
FAILURE_FILE = "BAI_ADAPTDL_FAILURE"
"""Environment variable with the path to which the spawner writes a note about the first replica that
failed."""
STARTUP = Path(__file__).resolve().parent.parent / "benchmark" / "startup"
"""Folder whose sitecustomize.py lets AdaptDL work with current versions of its dependencies."""

_BROKEN_S = 5.0
"""Time from the failure of a replica until the other replicas are killed (seconds). The other replicas cannot
save their state without the failed replica."""
_TICK_S = 0.05


class Replicas:
    """The replicas of this node, from their start until all replicas have ended."""

    def __init__(self, command: list[str], *, first: int, count: int, grace_s: float) -> None:
        """Start the replicas. Raises OSError if the command cannot be started."""
        self._first, self._grace_s = first, grace_s
        self._running: dict[int, int] = {}
        """Rank of each running replica, by its process id."""
        self._failed: int | None = None
        """Exit code of the first replica that failed; negative for a signal."""
        self._has_saved = False
        self._kill_at: float | None = None
        """Time at which the remaining replicas are killed (monotonic clock). None until a replica has failed
        or has exited to be restarted."""
        self._is_killing = False
        for local in range(count):
            child = subprocess.Popen(command, env=_environment(first, local, count))
            self._running[child.pid] = first + local
            # `run` reaps this child together with the other replicas.
            child.returncode = 0

    def terminate(self) -> None:
        """Ask all running replicas to save their state and exit."""
        self._send(signal.SIGTERM)

    def run(self) -> int:
        """Wait until all replicas have ended. Return the spawner's exit code; for a signal, it is 128 plus
        the signal's number, as in shells."""
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in self._running:
                self._ended(self._running.pop(pid), status)
            elif not pid:
                if self._kill_at is not None and time.monotonic() > self._kill_at:
                    self._is_killing = True
                    self._send(signal.SIGKILL)
                time.sleep(_TICK_S)
        if self._failed is not None:
            return self._failed if self._failed > 0 else 128 - self._failed
        return SAVED if self._has_saved else 0

    def _ended(self, rank: int, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return
        if code in (SAVED, -signal.SIGTERM):
            if self._kill_at is None:
                self._end_others(self._grace_s)
            self._has_saved = True
        elif self._failed is None and not self._is_killing:
            self._failed = code
            _tell(rank, rank - self._first, code)
            self._end_others(_BROKEN_S)

    def _end_others(self, limit_s: float) -> None:
        self._kill_at = time.monotonic() + limit_s
        self.terminate()

    def _send(self, number: int) -> None:
        for pid in tuple(self._running):
            os.kill(pid, number)


def main() -> int:
    """Run the replicas that the command-line arguments describe."""
    first, count, grace_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    command = sys.argv[5:]
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        replicas = Replicas(command, first=first, count=count, grace_s=grace_s)
    except OSError as error:
        sys.stderr.write(f'[bai] "{command[0]}" cannot be started: {error.strerror}\n')
        return 127 if isinstance(error, FileNotFoundError) else 126
    signal.signal(signal.SIGTERM, lambda *_: replicas.terminate())
    if asked:
        replicas.terminate()
    return replicas.run()


def _environment(first: int, local: int, count: int) -> dict[str, str]:
    """Return the environment of a replica."""
    env = dict(os.environ)
    env["ADAPTDL_REPLICA_RANK"] = str(first + local)
    env.setdefault("ADAPTDL_SHARE_PATH", str(Path.cwd()))
    folders = [each for each in env.get("PYTHONPATH", "").split(":") if each]
    if str(STARTUP) not in folders and os.access(STARTUP, os.R_OK | os.X_OK):
        env["PYTHONPATH"] = ":".join([str(STARTUP), *folders])
    for name in ("NO_PROXY", "no_proxy"):
        # The supervisor is on this node, so the replicas must not use the benchmark's proxy to reach it.
        env[name] = ",".join(filter(None, [env.get(name), "127.0.0.1"]))
    devices = _devices()
    if 1 < count <= len(devices):
        env["CUDA_VISIBLE_DEVICES"] = devices[local]
    return env


def _devices() -> list[str]:
    """Return the names of the usable GPUs. Each replica gets exactly one GPU, because AdaptDL uses the first
    GPU that it sees."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [each for each in listed.split(",") if each.strip()]
    names = (each.name.removeprefix("nvidia") for each in Path("/dev").glob("nvidia[0-9]*"))
    return sorted((each for each in names if each.isdecimal()), key=int)


def _tell(rank: int, local: int, code: int) -> None:
    """Write a note about the first replica that failed."""
    path = os.environ.get(FAILURE_FILE)
    if not path:
        return
    ended = {"code": code, "signal": None} if code > 0 else {"code": None, "signal": -code}
    note = {"rank": rank, "local": local, **ended, "time": time.time_ns() // 1_000_000}
    try:
        Path(path).write_text(json.dumps(note))
    except OSError as error:
        sys.stderr.write(f"[bai] {path} cannot be written: {error.strerror}\n")


if __name__ == "__main__":
    sys.exit(main())
