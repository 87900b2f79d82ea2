"""Runs a benchmark's container for the shim: `python -I -S container_run.py FOLDER PODMAN ARGUMENT...`.

podman is a child process of this program. podman's monitor becomes a child process of this program as well,
so this program can signal all processes of the container and wait for their end. For the shim, this program
behaves like a command without a container. The container's processes are in the cgroup that counts this
program's memory, and SIGTERM reaches each of these processes. This program exits with the container's exit
code, or by the signal that terminated the container.

This program uses only the standard library, as the shim does.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from bai_agent.shim.memory_group import own_memory_group
from bai_agent.shim.proc import Process, all_processes, descendants, send_signal
from bai_agent.shim.spawn import REPORT, adopt_orphans, report

PIDFILE, CIDFILE = "container.pid", "container.id"
"""Files in FOLDER to which podman writes the pid of the container's first process and the container's id."""
_ENGINE_FAILED = (125, 126, 127)
"""Exit codes of podman if the container did not start. A program in the container can exit with one of these
codes as well."""
_SIGNAL = 128
"""Number that podman adds to the number of the signal that terminated the process. The sum is podman's exit
code."""
_TICK_S = 0.02
_CALM_S = 0.5
"""Longest wait for a signal while this program has nothing to do for the container (seconds)."""
_SETTLE_S = 2.0
"""Time after the container's start in which podman possibly moves the container's processes into podman's own
cgroup (seconds)."""
_REMOVAL_S = 15.0
"""Time limit for the engine's monitor to remove the container and to exit (seconds)."""
_HEEDED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


class ContainerRun:
    """One container, from its start until its monitor has ended."""

    def __init__(self, folder: str, argv: list[str]) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED)
        self._pidfile = f"{folder}/{PIDFILE}"
        for earlier in (self._pidfile, f"{folder}/{CIDFILE}"):
            if os.path.exists(earlier):
                os.unlink(earlier)
        self._engine = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            # In a session of its own, the engine gets no signals. The engine would pass a signal only to the
            # container's first process, and would not wait for the others.
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ()),
        )
        self._begun = 0.0
        """Time at which this program first saw the container's first process (monotonic clock). 0 as long as
        the process has not been seen."""
        self._monitors: set[int] = set()
        """Pids of this process's children except podman, when the container began. The only such child is
        podman's monitor."""
        self._is_told = False
        self._to_tell = False

    @property
    def started(self) -> bool:
        """Whether the container's first process was started."""
        return os.path.exists(self._pidfile)

    def wait(self) -> int:
        """Wait until the container ends. Return the engine's exit code, or minus the number of the signal
        that terminated the engine."""
        status: int | None = None
        while status is None:
            self._look()
            arrived = signal.sigtimedwait(_HEEDED, _CALM_S if self._is_calm else _TICK_S)
            if arrived is not None and arrived.si_signo != signal.SIGCHLD:
                self._to_tell = True
            status = self._reap()
        limit = time.monotonic() + (_REMOVAL_S if status >= 0 else 0.0)
        # Processes that the container has left behind are not awaited here, because the shim ends them.
        monitors = self._monitors or self._children(all_processes())
        while self._reap() != _CHILDLESS and time.monotonic() < limit:
            if not monitors & self._children(all_processes()):
                break
            signal.sigtimedwait([signal.SIGCHLD], _TICK_S)
        return status

    @property
    def _is_calm(self) -> bool:
        """Whether the container's processes do not have to be checked: podman moves no processes any more,
        and no signal must be passed on."""
        has_settled = self._begun > 0 and time.monotonic() > self._begun + _SETTLE_S
        return has_settled and self._to_tell == self._is_told

    def _look(self) -> None:
        """Move new processes of the container into this program's cgroup. Pass on a signal to end as soon as
        the container has processes."""
        if self._is_calm:
            return
        contained = self._contained()
        if contained and not self._begun and self.started:
            self._begun = time.monotonic()
        _take_into_own_group(contained)
        if self._to_tell and not self._is_told and self._begun and contained:
            self._is_told = True
            for number in (signal.SIGTERM, signal.SIGCONT):
                for process in contained:
                    send_signal(process, number)

    def _contained(self) -> list[Process]:
        """Return the processes of the container, which are the descendants of the engine's monitor."""
        processes = all_processes()
        if not self._begun:
            self._monitors = self._children(processes)
        return descendants(self._monitors, processes) if self._monitors else []

    def _children(self, processes: list[Process]) -> set[int]:
        """Return the pids of this process's children except the engine."""
        return {each.pid for each in processes if each.parent == os.getpid() and each.pid != self._engine.pid}

    def _reap(self) -> int | None:
        """Reap the children that have ended. Return podman's exit code if podman has ended, `_CHILDLESS` if
        no children are left, and None otherwise."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return _CHILDLESS
            if pid == 0:
                return None
            if pid == self._engine.pid:
                self._engine.returncode = code = os.waitstatus_to_exitcode(status)
                return code


_CHILDLESS = -1000
"""Return value of `_reap` if no children are left. The value differs from each exit code and each signal."""


def _take_into_own_group(contained: list[Process]) -> None:
    """Move the container's processes into this program's cgroup, so that the cgroup's limits and counters
    cover these processes."""
    found = own_memory_group()
    if found is None:
        return
    for process in contained:
        if own_memory_group(f"/proc/{process.pid}") == found:
            continue
        try:
            with open(f"{found[0]}/cgroup.procs", "w", encoding="ascii") as file:
                file.write(str(process.pid))
        except OSError:  # the process has ended, or only root may move it
            continue


def main() -> None:
    """Run the container that the command line names. Exit with the container's exit code, or by the signal
    that terminated the container."""
    to_shim = int(os.environ.pop(REPORT, "-1"))
    if to_shim >= 0:
        os.set_inheritable(to_shim, False)
    adopt_orphans()
    run = ContainerRun(sys.argv[1], sys.argv[2:])
    status = run.wait()
    if status in _ENGINE_FAILED and not run.started and to_shim >= 0:
        message = f"The container was not started: podman ended with code {status}; its message is the end of the output."
        report(to_shim, errno.ENOEXEC, message, not_found=status == _ENGINE_FAILED[-1])
    number = -status if status < 0 else status - _SIGNAL
    if number in set(map(int, signal.valid_signals())):
        # A core dump of this process would hide the benchmark's core dump.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), number)
    os._exit(status if status >= 0 else 1)


if __name__ == "__main__":
    main()
