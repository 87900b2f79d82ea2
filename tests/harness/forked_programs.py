"""Starts a program many times as a fork of a process that has loaded it, and kills it at a chosen call.

A fork behaves as the program does, because a single-threaded process is forked. The fork has its own session,
environment and outputs. Its child processes are ordinary processes.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

CALLS = ("write", "writev", "rename", "link", "unlink", "mkdir", "fsync", "ftruncate")
"""C library functions at which a fork can be killed."""

_SOURCE = Path(__file__).with_name("call_killer.c")
_LIBRARY = "call_killer.so"
_SECONDS = 120
"""Time limit of a run (seconds), far longer than any run of a test."""


@dataclass(frozen=True)
class ForkedProgram:
    """The process that has loaded the program and is forked for each run."""

    _asks: IO[str]
    _says: IO[str]

    def run(
        self,
        arguments: Sequence[str | Path],
        *,
        output: Path,
        env: Mapping[str, str],
        call: str | None = None,
        number: int = 0,
        after: Path | None = None,
        seconds: int = _SECONDS,
    ) -> int:
        """Run the program to its end and return its exit code, or the negative number of the signal that ended it.

        call, number: the process is killed just before the `number`th such call of one of its threads. after:
        a file; calls count once it exists. seconds: time limit of the run.
        """
        assert call is None or call in CALLS
        request = {
            "arguments": [str(each) for each in arguments],
            "output": str(output),
            "env": dict(env),
            "call": call or "",
            "number": number if call else 0,
            "after": str(after or ""),
            "seconds": seconds,
        }
        self._asks.write(json.dumps(request) + "\n")
        self._asks.flush()
        code: int | None = json.loads(self._says.readline())
        assert code is not None, f"it did not end within {seconds} s"
        return code


@contextmanager
def forked_program(folder: Path, main: str, *modules: str) -> Iterator[ForkedProgram]:
    """Load `main` ("module:function") and `modules` that it imports later. folder: for a compiled library."""
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-O2",
        "-Wall",
        "-Werror",
        "-o",
        str(folder / _LIBRARY),
        str(_SOURCE),
    ]
    subprocess.run(command, check=True, timeout=60)
    with subprocess.Popen(
        [sys.executable, __file__, main, *modules],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # The library is named without its path, because a path with a space would be two libraries.
        env={**os.environ, "LD_PRELOAD": _LIBRARY, "LD_LIBRARY_PATH": str(folder)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield ForkedProgram(process.stdin, process.stdout)
        finally:
            process.stdin.close()
            process.wait(_SECONDS)


def _serve(library: ctypes.CDLL) -> None:
    """Fork for each request, and answer how the fork ended. Returns in each fork, and at the end."""
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(request)
            call, number = request["call"].encode(), ctypes.c_long(request["number"])
            library.kill_at(call, number, request["after"].encode())
            return
        ended = select.poll()
        with open(os.pidfd_open(pid), closefd=True) as process:  # noqa: PTH123 - it has no path
            ended.register(process, select.POLLIN)
            in_time = ended.poll(request["seconds"] * 1000)
        if not in_time:
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps(code if in_time else None), flush=True)
    sys.exit()


def _become(request: Mapping[str, Any]) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number, file in enumerate((nothing, output, output)):
        os.dup2(file, number)
    os.close(nothing)
    os.close(output)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[1:] = request["arguments"]


if __name__ == "__main__":
    where, *more = sys.argv[1:]
    # As with `python -m`, its children find the same modules as the program itself, but not the tests'
    # modules.
    sys.path[0] = os.getcwd()  # noqa: PTH109
    for each in more:
        importlib.import_module(each)
    module, _, function = where.partition(":")
    program = getattr(importlib.import_module(module), function)
    assert len(os.listdir("/proc/self/task")) == 1, "what is loaded has started threads, which a fork has not"  # noqa: PTH208
    # Not by its path: a library that was not preloaded kills nothing, and must fail here.
    _serve(ctypes.CDLL(None))
    sys.exit(program())
