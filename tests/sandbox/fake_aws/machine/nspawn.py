"""One boot of a machine: systemd-nspawn on a pseudo-terminal of its own."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path

from sandbox.fake_aws.machine.cgroups import MachineGroup
from sandbox.fake_aws.machine.disk import Disk
from sandbox.fake_aws.machine.namespaces import bound_to_caller

REBOOT = 133
"""nspawn's exit code where the machine asked for a reboot."""

_ENVIRONMENT = {
    "TERM": "dumb",
    "LANG": "C.UTF-8",
    # /proc/sys/net is the machine's own, and dhcpcd has to write to it.
    "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network",
}


class MachineBoot:
    """A running machine, from its first process to its end."""

    def __init__(self, *, disk: Disk, name: str, group: MachineGroup, mounts: list[str]) -> None:
        terminal, inner = pty.openpty()
        self._terminal = terminal
        enter = ["nsenter", "-t", str(disk.holder.pid), "--net", "--mount"]
        # nspawn does not take the machine with it when it is killed; as the first process of a namespace it must.
        enter += ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        spawn = [
            "systemd-nspawn",
            "--quiet",
            "--register=no",
            "--keep-unit",
            f"--directory={disk.root}",
            f"--machine={name}",
            "--kill-signal=SIGRTMIN+3",
            "--capability=CAP_NET_ADMIN,CAP_NET_RAW",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            "--console=read-only",
            *(f"--bind-ro={mount}" for mount in mounts),
            "/usr/local/sbin/sandbox-init",
        ]
        # nspawn wants a controlling terminal; each of these programs replaces itself by the next.
        command = ["setsid", "--ctty", "sh", "-euc", f'{group.join}; exec "$@"', "sh", *enter, *spawn]
        try:
            self._process = subprocess.Popen(
                bound_to_caller(command),
                stdin=inner,
                stdout=inner,
                stderr=inner,
                env=_ENVIRONMENT | {"PATH": os.environ["PATH"]},
            )
        finally:
            os.close(inner)
        self._group = group

    def read(self) -> bytes:
        """Return what the console says next; nothing when the machine is off."""
        try:
            return os.read(self._terminal, 65_536)
        except OSError:  # EIO: the last one that had the other end open is gone
            return b""

    def wait(self) -> int:
        """Return nspawn's exit code; to be called after the console has ended."""
        try:
            return self._process.wait(60)
        finally:
            os.close(self._terminal)

    def first_process(self) -> int | None:
        """Return this host's pid of the machine's first process, None while there is none."""
        for pid in self._group.processes():
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            inner = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
            if inner[-1] == "1" and len(inner) > 2:
                return pid
        return None

    def signal_first(self, number: int) -> None:
        """Send a signal to the machine's first process, as a host's management would."""
        pid = self.first_process()
        if pid is not None:
            os.kill(pid, number)

    def kill(self) -> None:
        """Take the power away."""
        if self._process.poll() is None:
            self._process.kill()


POWER_OFF, RESTART = signal.SIGRTMIN + 4, signal.SIGRTMIN + 5
"""What systemd takes for "power off" and "reboot"."""
