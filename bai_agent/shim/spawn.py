"""Starts the benchmark's process. This module covers the time from the shim's fork to the first instruction
of the command."""

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

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
_NEVER_RAN = 127
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""Numbers of the system call sched_setattr(2), which the C library does not wrap."""
SHORT_SLICE_NS = 100_000
"""Shortest time slice (ns) that the kernel accepts."""
USAGE = struct.Struct("=B5d")
"""Format of the report that the forked process sends to the shim right before its exec. The report contains a
zero byte, user and system seconds, voluntary and involuntary context switches, and the time (monotonic
seconds). If the exec fails, the process also sends the error as JSON.
"""


REPORT = "BAI_REPORT"
"""Environment variable with the descriptor to which `container_run.py` reports a failed container start."""


class CannotRunError(Exception):
    """The command could not be executed. `not_found`: whether the reason is that the command does not
    exist."""

    def __init__(self, number: int, message: str, *, not_found: bool = False) -> None:
        super().__init__(message)
        self.number = number
        self.not_found = not_found


class Spawned:
    """A forked process that becomes the benchmark when the shim calls `go`. The command never runs if the
    shim dies before the call of `go`."""

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
        members: int = -1,
        contained: bool = False,
    ) -> None:
        """members: descriptor of the file `cgroup.procs` of the cgroup that the process enters; -1 to stay in
        the shim's cgroup.

        contained: whether the command is `container_run.py`. For a container, the container engine changes
        the user, not this process.
        """
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
            set_time_slice(0)
            if os.read(gate, 1):
                if members >= 0:
                    with contextlib.suppress(OSError):  # a missing measurement is not a reason to fail
                        os.write(members, b"0")
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(os.open(os.devnull, os.O_WRONLY) if discard_stdout else output, 1)
                os.dup2(output, 2)
                os.umask(umask)
                _become(None if contained else user, shim)
                _enter(cwd)
                if contained:
                    os.set_inheritable(errors, True)
                    env = {**env, REPORT: str(errors)}
                _execute(argv, env, errors)
        except CannotRunError as error:
            report(errors, error.number, str(error), not_found=error.not_found)
        except OSError as error:
            report(errors, error.errno or errno.EIO, f"The benchmark could not be started: {error}.")
        except ValueError as error:
            report(
                errors,
                errno.EINVAL,
                f"The benchmark's command or environment cannot be passed to a program: {error}.",
            )
        finally:
            os._exit(_NEVER_RAN)

    def raise_oom_score(self, by: int) -> None:
        """Make the out-of-memory killer prefer the benchmark to the shim. A process may raise its OOM score
        without privileges. Raises OSError."""
        with open(f"/proc/{self.pid}/oom_score_adj", "r+", encoding="ascii") as file:
            score = int(file.read())
            file.seek(0)
            file.write(str(min(1000, score + by)))

    def go(self) -> None:
        """Let the waiting process execute the command."""
        os.write(self._gate, b"!")
        os.close(self._gate)


def adopt_orphans() -> None:
    """Make this process the parent of all orphaned descendants, even after a double fork. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def set_time_slice(nanoseconds: int) -> None:
    """Set the time slice of this process (ns; 0: the default), if it has the ordinary scheduling policy.

    With a shorter time slice, a woken process runs sooner on a busy machine. Linux kernels before 6.12 ignore
    the time slice.
    """
    number = _SCHED_SETATTR.get(os.uname().machine)
    # musl has no function for this system call, and a container can forbid the call.
    with contextlib.suppress(OSError):
        if number is not None and os.sched_getscheduler(0) == os.SCHED_OTHER:
            nice = os.getpriority(os.PRIO_PROCESS, 0)
            attributes = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, 0, nice, 0, nanoseconds, 0, 0)
            ctypes.CDLL(None).syscall(number, 0, attributes, 0)


def forget_signals() -> None:
    """Restore the default signal handlers for the benchmark. This is needed because Python ignores SIGPIPE
    and because the shim has handlers for other signals."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        # The C library reserves a few real-time signals.
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
                f'The benchmark cannot be run as the user "{user["name"]}": {error.strerror}; only root can do that.',
            ) from error
    # With this call, the shim's py-spy can read the benchmark's stacks even if Yama restricts ptrace to
    # ancestors (ptrace_scope 1, Ubuntu's default). On a kernel without Yama the call fails, but is not
    # needed.
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(shim), 0, 0, 0)


def _lift_memory_lock() -> None:
    """Let the benchmark's user lock as much memory as root, because EFA and NCCL lock their buffers."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    # If a container does not allow raising the hard limit (CAP_SYS_RESOURCE), the existing hard limit is
    # used.
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
    candidates = [command]
    if "/" not in command:
        folders = env.get("PATH", os.defpath).split(":")
        candidates = [os.path.join(folder or ".", command) for folder in folders]
    # The report is the last step before the exec, because the time after the report counts as the command's.
    likely = [each for each in candidates if os.path.isfile(each) and os.access(each, os.X_OK)]
    encoded = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
    words = [os.fsencode(word) for word in argv]
    failed = CannotRunError(errno.ENOENT, _not_found(command, env), not_found=True)
    _report_usage(errors)
    for path in (*likely[:1], *candidates):
        try:
            _exec_patiently(path, words, encoded)
        except PermissionError as error:
            # As a shell does, remember this error and search the rest of PATH.
            if os.path.exists(path) and (failed.not_found or not os.path.isdir(path)):
                failed = CannotRunError(error.errno or errno.EACCES, _not_executable(path))
        except OSError as error:
            if os.path.exists(path) or error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise CannotRunError(error.errno or errno.ENOEXEC, _other(path, error)) from error
    raise failed


def _exec_patiently(path: str, argv: list[bytes], env: Mapping[bytes, bytes]) -> None:
    for _ in range(20):
        try:
            os.execve(path, argv, env)
        except OSError as error:
            # The script is still open for writing in a process that was forked while the script was being
            # written. The error disappears when that process executes its own program.
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
        return f"{path} exists, but its loader does not: the program was built for another system or architecture."
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
        "set its executable bit (chmod +x), and check that its interpreter and its file system allow it."
    )


def _other(path: str, error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return _bad_interpreter(path)
    if error.errno == errno.E2BIG:
        return "The benchmark's arguments and environment are longer than the kernel allows; put them into a file."
    if error.errno == errno.ENOEXEC:
        return (
            f"The benchmark's command {path} cannot run on this machine: a script needs a first line such as "
            "#!/bin/sh, a binary must be built for this CPU."
        )
    return f"The benchmark's command {path} cannot be executed: {error.strerror}."


def _report_usage(descriptor: int) -> None:
    """Report to the shim the time at which the command starts, and the resources that this process has used
    before.

    The resources that the process used before the command are not added to the command's resources.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = used.ru_utime, used.ru_stime, used.ru_nvcsw, used.ru_nivcsw
    os.write(descriptor, USAGE.pack(0, *figures, time.monotonic()))


def report(descriptor: int, number: int, message: str, *, not_found: bool = False) -> None:
    """Tell the shim why the command was not executed."""
    content = json.dumps({"errno": number, "message": message[:4000], "not_found": not_found}).encode()
    os.write(descriptor, content)
