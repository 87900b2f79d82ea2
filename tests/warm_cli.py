"""`bai` as processes that have its modules already: forks of one that has imported them, which is most of what a command costs.

For tests in which commands are a means and not what is shown. Each command is a process of its own with the arguments, folder,
environment and streams that it would have otherwise, and ends as it would. How `bai` really starts is shown by the tests of commands.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

_MOST = 1 << 17
"""Bytes of a request: arguments and environment."""
_USED_BY_ALL = ("boto3", "botocore.httpsession", "botocore.handlers", "botocore.auth", "s3transfer.manager")


class WarmCli:
    """The process that forks. It ends with the one that made this."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[1])},
            )

    def run(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        stdin: str,
        limit_s: float,
    ) -> tuple[int, str, str]:
        """Run `bai` to its end; return its exit code as subprocess has it, and what it wrote. Raises TimeoutError."""
        order = json.dumps([str(folder), dict(environment), list(arguments)]).encode()
        ours, theirs = socket.socketpair()
        with (
            ours,
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as errors,
        ):
            given.write(stdin.encode())
            given.seek(0)
            with theirs:
                streams = [given.fileno(), out.fileno(), errors.fileno(), theirs.fileno()]
                socket.send_fds(self._control, [order], streams)
            ours.settimeout(limit_s)
            with ours.makefile("r") as answer:
                pid = int(answer.readline())
                try:
                    code = int(answer.readline())
                except TimeoutError:
                    os.kill(pid, signal.SIGKILL)
                    raise
            out.seek(0)
            errors.seek(0)
            return code, out.read().decode(), errors.read().decode()


@cache
def warm_cli() -> WarmCli:
    """Return the one of this process, made where it is needed first."""
    return WarmCli()


def _serve(control: socket.socket) -> None:
    """Fork for each request: returns in the forks, and never otherwise."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd != control.fileno():
                    selector.unregister(key.fd)
                    pid, answer = running.pop(key.fd)
                    os.close(key.fd)
                    _tell(answer, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    answer.close()
                    continue
                order, fds, _, _ = socket.recv_fds(control, _MOST, 4)
                if not order:
                    os._exit(0)
                answer = socket.socket(fileno=fds.pop())
                pid = os.fork()
                if pid == 0:
                    control.close()
                    answer.close()
                    for other, (_, answer_of_other) in running.items():
                        os.close(other)
                        answer_of_other.close()
                    _become(order, fds)
                    return
                for fd in fds:
                    os.close(fd)
                _tell(answer, pid)
                process = os.pidfd_open(pid)
                running[process] = pid, answer
                selector.register(process, selectors.EVENT_READ)


def _tell(answer: socket.socket, number: int) -> None:
    try:
        answer.sendall(f"{number}\n".encode())
    except BrokenPipeError:
        """Who asked has waited for too long."""


def _become(order: bytes, streams: Sequence[int]) -> None:
    folder, environment, arguments = json.loads(order)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]


def _main(control: socket.socket) -> None:
    import executor  # the tests' process has no need of what follows

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for each in pkgutil.walk_packages(executor.__path__, "executor."):
        importlib.import_module(each.name)
    for name in _USED_BY_ALL:
        importlib.import_module(name)
    # What is here stays: neither is it looked through in each fork, nor are its pages copied for that.
    gc.set_threshold(50_000, 10, 10)
    gc.collect()
    gc.freeze()
    _serve(control)
    importlib.import_module("executor.cli").main()


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
