"""What goes on in a running machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox.fake_aws.machine.cgroups import MachineGroup

_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}


@dataclass(frozen=True, kw_only=True)
class MachineProcess:
    pid: int
    """As the machine knows it."""
    host_pid: int
    argv: tuple[str, ...]


class Inside:
    """Valid for one boot."""

    def __init__(self, first: int, group: MachineGroup) -> None:
        # A wrong pid would act on the host.
        if Path(f"/proc/{first}/ns/pid").readlink() == Path("/proc/self/ns/pid").readlink():
            raise OSError(f"process {first} is not a machine's first process")
        self._first, self._group = first, group

    def run(self, argv: Sequence[str], *, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a program in all of the machine's namespaces, as root; its exit code is not checked."""
        enter = ["nsenter", "-t", str(self._first), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--"]
        return subprocess.run(
            [*enter, *argv],
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )

    def processes(self, text: str = "") -> list[MachineProcess]:
        """Return the machine's processes in whose command line `text` stands."""
        found = []
        for host_pid in self._group.processes():
            try:
                argv = (
                    Path(f"/proc/{host_pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                )
                status = Path(f"/proc/{host_pid}/status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            inner = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]
            if text in " ".join(argv):
                found.append(MachineProcess(pid=int(inner), host_pid=host_pid, argv=tuple(argv)))
        return found

    def kill(self, pid: int, signal: int = 9) -> None:
        """Send a signal to the process that the machine knows as `pid`."""
        for process in self.processes():
            if process.pid == pid:
                os.kill(process.host_pid, signal)
                return
        raise ProcessLookupError(f"no process {pid} in the machine")
