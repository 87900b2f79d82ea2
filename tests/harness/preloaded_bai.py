"""Forks `bai`, its agents and the watcher from a process with all imports, which take most of a start.

A forked program is as real as a started one: it is a process with its own arguments, folder, environment,
streams, signals, exit code and end of the interpreter. Only its command line and its parent are those of the
process from which it was forked. A forked `bai` also has its agents forked.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path
from select import select
from types import SimpleNamespace
from typing import Any, AnyStr

_LARGEST = 100_000
"""Maximum size (bytes) of a message with arguments and environment."""
_SECONDS = 120
"""Time limit (seconds), far longer than the imports and a fork take."""
_LOCALE = ("LC_", "LANG")
_READ_AT_START = ("PYTHON", "TZ", "LD_", "MALLOC_", "OPENSSL_", *_LOCALE)
"""Prefixes of variables that Python and C libraries read before a program's first line, or only once."""
_USUAL_LOCALE = "C.UTF-8"
_WAY = 1000
"""File descriptor by which a forked program requests another fork, far above those that a program opens."""
_STREAMS = 3


class Preloaded(subprocess.Popen[AnyStr]):
    """A forked program. Its parent is the process from which it was forked, which reports its pid and end."""

    program: str
    command: tuple[str, ...] = (__file__,)
    """Arguments of the Python that is forked. The last argument is the number of the socket for requests."""
    _ended: int
    _reading: Any

    def _execute_child(self, *given: Any) -> None:
        passed: Sequence[int] = given[4]
        arguments, cwd, env, new_session = given[0], given[5], given[6], given[21]
        child_in, our_in, our_out, child_out, our_err, child_err = given[10:16]
        ended, says_end = os.pipe()
        self._ended, self._reading = ended, threading.Lock()
        weakref.finalize(self, os.close, ended).atexit = False
        try:
            streams: list[int] = [
                own if own != -1 else usual for usual, own in enumerate((child_in, child_out, child_err))
            ]
            message = _message(arguments, cwd or Path.cwd(), env, self.program, passed, new_session)
            _ask(self.command, message, [*streams, says_end, *passed])
        finally:
            os.close(says_end)
            for ours, childs in ((our_in, child_in), (our_out, child_out), (our_err, child_err)):
                if ours != -1:
                    os.close(childs)
            if (null := getattr(self, "_devnull", None)) is not None:
                os.close(null)
            self._closed_child_pipe_fds = True
        self.pid = self._told(_SECONDS)
        self._child_created = True

    # All other waiting methods use these two, even while an exception or Ctrl-C leaves a `with`.
    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        try:
            return self._wait(timeout=0)
        except subprocess.TimeoutExpired:
            return None

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not wait([self._ended], timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            # Several threads may wait for the program.
            with self._reading:
                if self.returncode is None:
                    self.returncode = os.waitstatus_to_exitcode(self._told(None))
        return self.returncode

    def _told(self, timeout: float | None) -> int:
        """Return the next number (this program's pid, or its end) from the process it was forked from."""
        assert wait([self._ended], timeout), "the process to fork from does not answer"
        said = os.read(self._ended, 4)
        assert said, "the process to fork from has ended; its stderr tells why"
        number: int = struct.unpack("i", said)[0]
        return number


class PreloadedBai(Preloaded[str]):
    """A `bai`."""

    program = "bai"


class PreloadedAgent(Preloaded[bytes]):
    """A `bai-agent`."""

    program = "bai-agent"


def can_be_preloaded(
    arguments: Sequence[str | Path], cwd: Path, env: Mapping[str, str], options: Mapping[str, Any]
) -> bool:
    """Return whether a fork can replace a start with these arguments, environment and options."""
    special = [name for name in env if name.startswith(_READ_AT_START)]
    return (
        options.keys() <= {"stdin", "stdout", "stderr", "start_new_session", "env", "cwd", "pass_fds"}
        and all(name.startswith(_LOCALE) and env[name] == _USUAL_LOCALE for name in special)
        and len(_message(arguments, cwd, env)) < _LARGEST - 1000
    )


def _message(
    arguments: Sequence[str | Path],
    cwd: str | Path,
    env: Mapping[str, str],
    program: str = "",
    passed: Sequence[int] = (),
    new_session: bool = False,
) -> bytes:
    words = [str(each) for each in arguments]
    return json.dumps([program, words, str(cwd), dict(env), _umask(), list(passed), new_session]).encode()


def _umask() -> int:
    """Return this process's umask. `os.umask` would have to change it, for all threads."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [umask] = (line.split()[1] for line in lines if line.startswith("Umask:"))
    return int(umask, 8)


class _Starter:
    """The process with all imports. Its environment and folder do not depend on the test that starts it."""

    def __init__(self, command: Sequence[str]) -> None:
        self.way, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                (sys.executable, *command, str(its.fileno())),
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={"HOME": "/nonexistent"},
            )
        atexit.register(self.close)

    def close(self) -> None:
        self.way.close()
        self._process.wait(timeout=_SECONDS)


@cache
def _starter(command: tuple[str, ...]) -> _Starter:
    return _Starter(command)


_is_forked = False


def _ask(command: tuple[str, ...], message: bytes, files: Sequence[int]) -> None:
    if not _is_forked:
        socket.send_fds(_starter(command).way, [message], files)
        return
    with socket.socket(fileno=os.dup(_WAY)) as way:
        socket.send_fds(way, [message], files)


def _start_agent(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start an agent as a forked `bai` does."""
    arguments = command[command.index("run") :]
    if can_be_preloaded(arguments, options["cwd"], os.environ, options):
        return PreloadedAgent(arguments, env=dict(os.environ), **options)
    return subprocess.Popen(command, **options)


def _preload() -> None:
    """Import all that commands need, build the descriptors' schemas, and read AWS's service descriptions."""
    for package in (bai_agent, executor):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            # These two do their work when they are imported.
            if not module.name.endswith(("__main__", "sitecustomize")):
                importlib.import_module(module.name)
    for table in _subclasses(DescriptorTable):
        table.model_rebuild()
    share_service_models()
    session: Any = boto3.Session("key", "secret", region_name="eu-central-1")
    for service in ("cloudformation", "ec2", "iam", "pricing", "s3", "service-quotas", "sqs", "ssm", "sts"):
        session.client(service)
    tempfile.tempdir = None


def _subclasses(table: Any) -> list[Any]:
    """Return a class with all classes that are derived from it."""
    return [table, *(each for derived in table.__subclasses__() for each in _subclasses(derived))]


def _reopened(stream: Any) -> Any:
    """Return a standard stream, opened again because its descriptor is now another file."""
    buffering = 1 if stream.line_buffering else -1
    return os.fdopen(stream.fileno(), stream.mode, buffering, stream.encoding, stream.errors, closefd=False)


def fork_when_asked(asked: socket.socket) -> str:
    """Fork for each request. Returns the name of the program in each fork.

    The first process ends when the socket for requests is closed.
    """
    # Ctrl-C is meant for the forks, whose ends are still reported. SIGINT is blocked and not ignored, so that
    # the forks do not miss it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    more_asked, way = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ends: dict[int, tuple[int, int]] = {}
    while True:
        waiting: list[Any] = [asked, more_asked, *ends]
        for ready in select(waiting, [], [])[0]:
            if ready in ends:
                pid, says_end = ends.pop(ready)
                _say(says_end, os.waitpid(pid, 0)[1])
                os.close(says_end)
                os.close(ready)
                continue
            message, given, _, _ = socket.recv_fds(ready, _LARGEST, 8)
            if not message:
                os._exit(0)
            if not (pid := os.fork()):
                # Their numbers may belong to other files later, so Python must not close them.
                asked.detach()
                more_asked.detach()
                return _become(json.loads(message), given, way, mask)
            for file in (*given[:_STREAMS], *given[_STREAMS + 1 :]):
                os.close(file)
            ends[os.pidfd_open(pid)] = (pid, given[_STREAMS])
            _say(given[_STREAMS], pid)


def _say(file: int, number: int) -> None:
    with suppress(BrokenPipeError):
        os.write(file, struct.pack("i", number))


def _become(request: Sequence[Any], given: Sequence[int], way: socket.socket, mask: Any) -> str:
    """Make this process the requested program; return the program's name."""
    global _is_forked
    program, arguments, cwd, env, umask, passed, new_session = request
    _is_forked = True
    if new_session:
        os.setsid()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(given[number], number)
        setattr(sys, name, _reopened(getattr(sys, name)))
    # They are moved away from the numbers that they will get.
    kept = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _WAY + 1) for each in given[_STREAMS + 1 :]]
    os.dup2(way.detach(), _WAY, inheritable=False)
    os.closerange(_STREAMS, _WAY)
    for file, number in zip(kept, passed, strict=True):
        os.dup2(file, number)
    os.closerange(_WAY + 1, 4096)
    os.umask(umask)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if not any(name in env for name in ("LC_ALL", "LC_CTYPE", "LANG")):
        # As Python itself does (PEP 538).
        os.environ["LC_CTYPE"] = _USUAL_LOCALE
    sys.argv[1:] = arguments
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return str(program)


if __name__ == "__main__":
    import gc
    import importlib
    import pkgutil
    import tempfile

    import boto3
    from service_models import share_service_models

    import bai_agent
    import executor
    from bai_agent.cli import main as run_agent
    from bai_agent.job import agent_start
    from executor.cli import main as run_bai
    from executor.descriptor.values import DescriptorTable

    asked = socket.socket(fileno=int(sys.argv.pop()))
    # As with BAI.
    sys.argv[0], sys.path[0] = "-c", ""
    _preload()
    of_agents = {**vars(subprocess), "Popen": _start_agent}
    vars(agent_start)["subprocess"] = SimpleNamespace(**of_agents)
    assert len(os.listdir("/proc/self/task")) == 1, "what is loaded has started threads, which a fork has not"  # noqa: PTH208
    gc.collect()
    gc.freeze()
    {PreloadedBai.program: run_bai, PreloadedAgent.program: run_agent}[fork_when_asked(asked)]()
