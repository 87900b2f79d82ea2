"""Asks programs of this machine something: within a time limit, with a limited answer, and without a shell."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bai_agent.benchmark.children import reap
from bai_agent.errors import BaiError
from bai_agent.job.pipes import read_to_end
from bai_agent.job.user_rights import User, process_options

_MOST_BYTES = 1 << 20
"""Of an answer that are read."""
_TICK_S = 0.005


class NoAnswerError(BaiError):
    """A program did not run, or did not end in time; the message says why."""


@dataclass(frozen=True)
class Answer:
    """What a program printed, and its exit code (negative: the signal that ended it)."""

    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        """Those that say something, without the space around them."""
        return [line.strip() for line in self.text.split("\n") if line.strip()]


def ask(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_s: float,
    user: User | None = None,
    cwd: Path = Path("/"),
    with_stderr: bool = False,
) -> Answer:
    """Run a program to its end. Raises NoAnswerError. What it has started ends with it, in time or not.

    Not with subprocess.run: after its timeout it waits for whoever has the pipe open, without a limit.
    """
    deadline = time.monotonic() + timeout_s
    try:
        with process_options(user, cwd) as options:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if with_stderr else subprocess.DEVNULL,
                env=dict(env),
                start_new_session=True,
                **options,
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NoAnswerError(f"{argv[0]} does not run: {error}") from error
    assert child.stdout is not None
    try:
        with child.stdout:
            said = read_to_end(child.stdout.fileno(), timeout_s=timeout_s, most=_MOST_BYTES)
        # Not reaped before its session is killed: until then no other process can have its number.
        while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(_TICK_S)
    except TimeoutError:
        raise NoAnswerError(f"{argv[0]} did not answer within {timeout_s:g} s") from None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        reap(child)
    return Answer(child.returncode, said.decode(errors="replace"))
