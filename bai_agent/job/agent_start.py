"""Starts an agent that outlives the starting process, and waits until the agent reports that it runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bai_agent.errors import BaiError
from bai_agent.files.pipes import read_to_end
from bai_agent.job.outcome import ExitCode
from bai_agent.job.run_directory import RunDir

_START_LIMIT_S = 60.0
"""Time limit for a new agent to report that it runs (seconds)."""

_KILL_LIMIT_S = 5.0
"""Time limit for a killed agent to disappear (seconds)."""
_READY = b"ready"

# The agent is started neither with -m nor with PYTHONPATH, because -m searches the current folder first, and
# PYTHONPATH would leak into the benchmark. Python's option -c adds entries to the path, such as the current
# folder. These entries are replaced.
_PROGRAM = "import sys; sys.path[:] = [sys.argv.pop(1), *filter(None, sys.path)]; from bai_agent.cli import main; main()"


class AgentStartError(BaiError):
    """The agent could not be started. `code`: its exit code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.OURS) -> None:
        super().__init__(message)
        self.code = code


def start_agent(descriptor: Path, rundir: RunDir, options: Sequence[str] = ()) -> None:
    """Start `bai-agent run` in a session of its own; return when the agent runs. Raises AgentStartError.

    If the starting process is killed during the start, the agent either runs or has not started the job.
    `rundir` must exist.
    """
    reader, writer = os.pipe()
    try:
        try:
            agent = _spawn(descriptor.absolute(), rundir, [*options, f"--ready-fd={writer}"], writer)
        except OSError as error:
            raise AgentStartError(
                f"the agent cannot be started with {sys.executable} in {rundir.path}: {error.strerror}"
            ) from error
        finally:
            os.close(writer)
        # A thread reaps the agent, because nothing else waits for the agent's exit.
        threading.Thread(target=agent.wait, name="agent", daemon=True).start()
        try:
            answer = read_to_end(reader, timeout_s=_START_LIMIT_S)
        except TimeoutError:
            # The agent has started nothing yet. The agent is killed, because it must not start anything after
            # the user was told that it does not run.
            agent.kill()
            with suppress(subprocess.TimeoutExpired):
                agent.wait(_KILL_LIMIT_S)  # until the agent is dead, its lock reports that it runs
            raise AgentStartError(
                f"the agent did not say within {_START_LIMIT_S:g} s that it runs, and was ended; see {rundir.agent_log}"
            ) from None
    finally:
        os.close(reader)
    if answer == _READY:
        return
    code, _, message = answer.decode(errors="replace").partition(" ")
    if not message:
        raise AgentStartError(f"the agent ended right after its start; {rundir.agent_log} may say why")
    raise AgentStartError(message, ExitCode(int(code)))


def agent_command(*arguments: str) -> list[str]:
    """Return the command that starts this very `bai-agent`."""
    return [*(sys.executable, "-X", "utf8", "-c", _PROGRAM, str(Path(__file__).parents[2])), *arguments]


def _spawn(descriptor: Path, rundir: RunDir, options: Sequence[str], passed: int) -> subprocess.Popen[bytes]:
    rundir.agent_log.touch(mode=0o600)
    with rundir.agent_log.open("ab") as output:
        return subprocess.Popen(
            agent_command("run", str(descriptor), "--dir", str(rundir.path), "--quiet", *options),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(passed,),
            # The agent has a session of its own, so that a Ctrl-C for the starting process does not reach the
            # agent.
            start_new_session=True,
            cwd=rundir.path,
        )


def say_ready(descriptor: int) -> None:
    """Report to the starting process that the agent runs. If the starting process has ended, do nothing."""
    _say(descriptor, _READY)
    # The file descriptor is redirected instead of closed. If another file got its number, later errors of the
    # agent would be written into that file.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def say_refused(descriptor: int, code: ExitCode, message: str) -> None:
    """Report to the starting process why the agent does not run."""
    _say(descriptor, f"{int(code)} {message}".encode(errors="replace"))


def _say(descriptor: int, word: bytes) -> None:
    with suppress(BrokenPipeError):
        os.write(descriptor, word)
