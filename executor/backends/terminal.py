"""Finds whether a user at a terminal can answer a prompt, and runs interactive programs in the terminal."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_MOST_CHARACTERS = 2000
_UNATTENDED = ContextVar("unattended", default=False)
"""Whether no user can answer a prompt, because a program calls the API."""


@contextmanager
def unattended() -> Iterator[None]:
    """Prevent prompts in this `with` block."""
    before = _UNATTENDED.set(True)
    try:
        yield
    finally:
        _UNATTENDED.reset(before)


def is_unattended() -> bool:
    return _UNATTENDED.get()


def run_in_terminal(command: Sequence[str], *, capture_stderr: bool = False) -> tuple[int, str]:
    """Run a program to its end and return its exit code. With `capture_stderr`, also return the end of the
    program's standard error, which is still printed. Ctrl-C goes to the program, not to `bai`. Raises OSError if
    the program cannot be started.
    """
    # While the program runs, a handler ignores Ctrl-C for `bai`. The program does not inherit this signal
    # handler.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with subprocess.Popen(command, stderr=subprocess.PIPE if capture_stderr else None) as child:
            said = ""
            for line in child.stderr or ():
                text = line.decode(errors="replace")
                sys.stderr.write(text)
                sys.stderr.flush()
                said = (said + text)[-_MOST_CHARACTERS:]
    finally:
        signal.signal(signal.SIGINT, before)
    code = child.returncode
    return (code if code >= 0 else 128 - code), said
