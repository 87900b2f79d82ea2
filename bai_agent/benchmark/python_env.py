"""Installs what the scripts require: a venv of the job that also sees the packages of the benchmark's own Python."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bai_agent.benchmark.environment import benchmark_python, prepare_environment
from bai_agent.benchmark.proc import RUN_MARKER
from bai_agent.benchmark.remains import kill_marked
from bai_agent.children import reap
from bai_agent.errors import PullError
from bai_agent.job import Job
from bai_agent.rundir import RunDir, read_json, write_json

log = logging.getLogger(__name__)

_TICK = 0.05
_GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL for a pip that takes too long."""
_LAST_LINES = 5
_LAST_BYTES = 16384

_MARK = "bai: this Python is "
_DESCRIBE = (
    f"import json, platform, site, sys; print({_MARK!r} + "
    "json.dumps({'version': platform.python_version(), "
    "'venv': sys.prefix != sys.base_prefix, 'packages': site.getsitepackages()}))"
)


class Stopped(Exception):  # noqa: N818 - it is no error
    """The installation was ended because the run is to end."""


def install_requirements(
    job: Job,
    rundir: RunDir,
    *,
    deadline: float,
    stopping: Callable[[], bool],
    base: Mapping[str, str] = os.environ,
) -> None:
    """Install the job's requirements file into `rundir.venv`, unless that is done already.

    `deadline` is on the monotonic clock. What pip says goes to requirements.log. Returns early where `stopping()`.
    Raises PullError with pip's last lines.
    """
    assert job.benchmark.requirements is not None
    requirements = rundir.scripts / job.benchmark.requirements
    try:
        digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    except OSError as error:
        raise PullError(f"[benchmark] requirements: {requirements}: {error.strerror}") from error
    env = prepare_environment(job, rundir, scripts=rundir.scripts, secrets={}, base=base)
    # Its own folder on PATH comes to be only now: what Python is first behind it?
    env["PATH"] = env["PATH"].removeprefix(f"{rundir.venv / 'bin'}:")
    env.pop("VIRTUAL_ENV", None)
    env[RUN_MARKER] = str(rundir.venv)
    named = benchmark_python(job.benchmark)
    python = str(named) if named else shutil.which("python3", path=env["PATH"])
    if python is None:
        raise PullError(
            f"{requirements} cannot be installed: there is no python3 on the benchmark's PATH ({env['PATH']}); "
            "install one or set [benchmark] python"
        )
    whole = {"requirements": digest, "python": python}
    done = rundir.venv / "complete.json"
    if read_json(done) == whole:
        return
    kill_marked(str(rundir.venv))  # the pip of an agent that was killed would go on writing
    with suppress(Stopped):
        _build(python, requirements, rundir=rundir, run=_Runner(rundir, env, deadline, stopping))
        write_json(done, whole)


def discard_requirements(rundir: RunDir) -> None:
    """Delete what `install_requirements` made, once nothing of the run needs it: it may be hundreds of MB.

    requirements.log says what it was. What cannot be deleted stays, with a line in the log.
    """
    try:
        shutil.rmtree(rundir.venv)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s could not be deleted: %s", rundir.venv, error)


def _build(python: str, requirements: Path, *, rundir: RunDir, run: _Runner) -> None:
    venv = rundir.venv
    if venv.exists():
        shutil.rmtree(venv)
    about = _description(run.output([python, "-c", _DESCRIBE], f"{python} does not run"), python)
    run(
        [python, "-m", "venv", "--without-pip", "--system-site-packages", str(venv)],
        f"{python} cannot make a venv",
    )
    inside = str(venv / "bin" / "python")
    if about["venv"]:
        # --system-site-packages shows the packages of the Python behind that venv, not the venv's own.
        (packages,) = venv.glob("lib/python*/site-packages")
        lines = [f"import site; site.addsitedir({folder!r})\n" for folder in about["packages"]]
        (packages / "parent_venv.pth").write_text("".join(lines))
    if not run.succeeds([inside, "-m", "pip", "--version"]):
        minor = about["version"].rpartition(".")[0]
        run(
            [inside, "-m", "ensurepip"],
            f"{python} has no pip; install it (Debian, Ubuntu: apt-get install python3-pip, or python{minor}-venv)",
        )
    install = ["install", "--no-input", "--disable-pip-version-check", "--timeout", "30", "--retries", "5"]
    run([inside, "-m", "pip", *install, "-r", str(requirements)], f"{requirements} could not be installed")


def _description(said: str, python: str) -> dict[str, Any]:
    """Return what the Python says of itself; its loader and its start-up files may have put lines of their own around it."""
    for line in said.splitlines():
        _, mark, rest = line.partition(_MARK)
        if mark:
            about: dict[str, Any] = json.loads(rest)
            return about
    raise PullError(f"{python} is no Python that describes itself: it said {said[:200]!r}")


class _Runner:
    """Runs one command after the other, within the deadline, into one log."""

    def __init__(
        self, rundir: RunDir, env: Mapping[str, str], deadline: float, stopping: Callable[[], bool]
    ) -> None:
        self._log = rundir.path / "requirements.log"
        self._cwd = rundir.scripts
        self._env = env
        self._deadline = deadline
        self._stopping = stopping
        self._log.write_bytes(b"")

    def __call__(self, argv: list[str], failure: str) -> None:
        """Run a command that has to succeed. Raises PullError("<failure>: <its last lines>") or Stopped."""
        if not self.succeeds(argv):
            raise PullError(f"{failure}: {self._last_lines()} (all of it: {self._log})")

    def output(self, argv: list[str], failure: str) -> str:
        """Return what a command prints."""
        start = self._log.stat().st_size
        self(argv, failure)
        return self._log.read_bytes()[start:].decode(errors="replace")

    def succeeds(self, argv: list[str]) -> bool:
        with self._log.open("ab") as log:
            try:
                child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._cwd,
                    env=self._env,
                    start_new_session=True,
                )
            except OSError as error:
                log.write(f"{argv[0]}: {error.strerror}\n".encode())
                return False
        while child.poll() is None:
            late = time.monotonic() >= self._deadline
            if late or self._stopping():
                _end(child)
                if late:
                    raise PullError(
                        f"the requirements were not installed within limits.pull_timeout: {self._last_lines()} "
                        f"(all of it: {self._log})"
                    )
                raise Stopped
            time.sleep(_TICK)
        return child.returncode == 0

    def _last_lines(self) -> str:
        text = self._log.read_bytes()[-_LAST_BYTES:].decode(errors="replace")
        return " / ".join([line.strip() for line in text.splitlines() if line.strip()][-_LAST_LINES:])


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a command and what it started: its session is its own, and the child not yet reaped."""
    os.killpg(child.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    reap(child)
