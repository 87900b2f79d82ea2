"""The benchmark's first moments: from the shim's fork to the benchmark's own first instruction."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import struct
import time
from collections.abc import Mapping

_PR_SET_PTRACER = 0x59616D61
_NEVER_RAN = 127
USAGE = struct.Struct("=B5d")
"""What the process of a command says right before it becomes that: a zero, user and system seconds, voluntary and involuntary context switches,
and when that was (monotonic seconds). Why it could not become it may follow, as JSON."""


class CannotRunError(Exception):
    """The command could not be executed. `not_found`: there is no such command at all."""

    def __init__(self, number: int, message: str, *, not_found: bool = False) -> None:
        super().__init__(message)
        self.number = number
        self.not_found = not_found


class Spawned:
    """A forked benchmark that waits for `go`; it ends without having run when the shim dies before."""

    def __init__(
        self,
        argv: list[str],
        env: Mapping[str, str],
        *,
        cwd: str,
        user: Mapping[str, object] | None,
        umask: int,
        output: int,
        discard_stdout: bool = False,
    ) -> None:
        gate, self._gate = os.pipe()
        self.errors, errors = os.pipe()
        shim = os.getpid()
        self.pid = os.fork()
        if self.pid:
            os.close(gate)
            os.close(errors)
            return
        try:
            os.close(self._gate)
            os.setsid()
            forget_signals()
            if os.read(gate, 1):
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(os.open(os.devnull, os.O_WRONLY) if discard_stdout else output, 1)
                os.dup2(output, 2)
                os.umask(umask)
                _become(user, shim)
                _enter(cwd)
                _execute(argv, env, errors)
        except CannotRunError as error:
            _report(errors, error.number, str(error), not_found=error.not_found)
        except OSError as error:
            _report(errors, error.errno or errno.EIO, f"The benchmark could not be started: {error}.")
        except ValueError as error:
            _report(
                errors,
                errno.EINVAL,
                f"The benchmark's command or environment is not text that can be passed: {error}.",
            )
        finally:
            os._exit(_NEVER_RAN)

    def raise_oom_score(self, by: int) -> None:
        """Make the out-of-memory killer prefer the benchmark to what watches it. Raising needs no privilege. Raises OSError."""
        with open(f"/proc/{self.pid}/oom_score_adj", "r+", encoding="ascii") as file:
            score = int(file.read())
            file.seek(0)
            file.write(str(min(1000, score + by)))

    def go(self) -> None:
        """Let it run."""
        os.write(self._gate, b"!")
        os.close(self._gate)


def forget_signals() -> None:
    """Give the benchmark the signals as a fresh process has them; Python ignores SIGPIPE, the shim handles others."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        # The C library keeps a few real-time signals for itself.
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _become(user: Mapping[str, object] | None, shim: int) -> None:
    if user is not None:
        uid, gid, groups = user["uid"], user["gid"], user["groups"]
        assert isinstance(uid, int)
        assert isinstance(gid, int)
        assert isinstance(groups, list)
        _lift_memory_lock()
        try:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
        except OSError as error:
            raise CannotRunError(
                error.errno or errno.EPERM,
                f'The benchmark cannot be run as the user "{user["name"]}": {error.strerror}; that needs root.',
            ) from error
    # Where Yama restricts ptrace to ancestors (ptrace_scope 1, Ubuntu's default), this lets the py-spy that the shim
    # starts read the benchmark's stacks. Without Yama it fails, and is not needed.
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(shim), 0, 0, 0)


def _lift_memory_lock() -> None:
    """Let the benchmark's user lock as much memory as root may: EFA and NCCL register their buffers so."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    # A container may forbid to go over the hard limit (CAP_SYS_RESOURCE); then that one is the most.
    for most in (resource.RLIM_INFINITY, hard):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (most, most))
            return


def _enter(cwd: str) -> None:
    try:
        os.chdir(cwd)
    except OSError as error:
        raise CannotRunError(
            error.errno or errno.ENOENT, f"The benchmark's folder {cwd} cannot be entered: {error.strerror}."
        ) from error


def _execute(argv: list[str], env: Mapping[str, str], errors: int) -> None:
    """Replace this process by the command. Raises CannotRunError."""
    command = argv[0]
    if "/" in command:
        candidates = [command]
    else:
        candidates = [
            os.path.join(folder or ".", command) for folder in env.get("PATH", os.defpath).split(":")
        ]
    # All that can be done before is: from here to the command's own first instruction counts as its time.
    likely = next((each for each in candidates if os.path.isfile(each) and os.access(each, os.X_OK)), None)
    encoded = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
    words = [os.fsencode(word) for word in argv]
    _report_usage(errors)
    if likely is not None:
        try:
            os.execve(likely, words, encoded)
        except OSError:
            pass  # what is wrong with it is found below
    failed = CannotRunError(errno.ENOENT, _not_found(command, env), not_found=True)
    for candidate in candidates:
        try:
            _exec_patiently(candidate, argv, env)
        except (FileNotFoundError, NotADirectoryError) as error:
            if os.path.exists(candidate):
                raise CannotRunError(error.errno or errno.ENOENT, _bad_interpreter(candidate)) from error
        except PermissionError as error:
            # As a shell does: remember it, but look further along PATH.
            if os.path.exists(candidate) and (failed.not_found or not os.path.isdir(candidate)):
                failed = CannotRunError(error.errno or errno.EACCES, _not_executable(candidate))
        except OSError as error:
            raise CannotRunError(error.errno or errno.ENOEXEC, _other(candidate, error)) from error
    raise failed


def _exec_patiently(path: str, argv: list[str], env: Mapping[str, str]) -> None:
    for _ in range(20):
        try:
            os.execve(path, argv, env)
        except OSError as error:
            # Another process may have been forked while the script was being written, and not have got to its exec.
            if error.errno != errno.ETXTBSY:
                raise
            time.sleep(0.05)
    os.execve(path, argv, env)


def _not_found(command: str, env: Mapping[str, str]) -> str:
    if "/" in command:
        return f"The benchmark's command {command} does not exist (in the folder {os.getcwd()})."
    return f'The benchmark\'s command "{command}" was not found on PATH ({env.get("PATH", os.defpath)}).'


def _bad_interpreter(path: str) -> str:
    with open(path, "rb") as file:
        first = file.readline(4096)
    if not first.startswith(b"#!"):
        return f"{path} exists, but not the loader that it needs: it was built for another system or architecture."
    interpreter = first[2:].strip(b" \t\n").split(b" ")[0].decode(errors="replace")
    if interpreter.endswith("\r"):
        return (
            f"{path} has Windows line endings, so its first line names no interpreter; convert it (dos2unix)."
        )
    return f'The interpreter "{interpreter}", which the first line of {path} names, does not exist.'


def _not_executable(path: str) -> str:
    if os.path.isdir(path):
        return f"The benchmark's command {path} is a folder."
    return (
        f"The benchmark's command {path} may not be executed: "
        "set its executable bit (chmod +x), and see that its interpreter and its file system allow it."
    )


def _other(path: str, error: OSError) -> str:
    if error.errno == errno.E2BIG:
        return "The benchmark's arguments and environment are longer than the kernel passes on; put them into a file."
    if error.errno == errno.ENOEXEC:
        return (
            f"The benchmark's command {path} is not a program of this machine: a script needs a first line such as "
            "#!/bin/sh, a binary must be built for this CPU."
        )
    return f"The benchmark's command {path} cannot be executed: {error.strerror}."


def _report_usage(descriptor: int) -> None:
    """Tell the shim when the command's own first instruction comes, and what this process has used before: none of it is the command's."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = used.ru_utime, used.ru_stime, used.ru_nvcsw, used.ru_nivcsw
    os.write(descriptor, USAGE.pack(0, *figures, time.monotonic()))


def _report(descriptor: int, number: int, message: str, *, not_found: bool = False) -> None:
    content = json.dumps({"errno": number, "message": message[:4000], "not_found": not_found}).encode()
    os.write(descriptor, content)
