"""Namespaces without names: they live in a process of ours and are gone with it, however that ends."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

_CLONE_NEWNET = 0x40000000


def bound_to_caller(command: Sequence[str]) -> list[str]:
    """Return `command` such that the kernel kills it when the *thread* that starts it ends."""
    return ["setpriv", "--pdeathsig", "KILL", *command]


class Holder:
    """A process that holds a network and a mount namespace, and all mounts made in it.

    It dies with the thread that makes it, a killed one too; the kernel then takes down mounts, links and addresses.
    """

    def __init__(self, script: str, *arguments: str) -> None:
        """Run the shell script `script` in the new namespaces, then hold them; raises where the script fails."""
        command = ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-euc"]
        command += [f"{script}\necho held\nexec sleep infinity", "sh", *arguments]
        self._process = subprocess.Popen(
            bound_to_caller(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "held\n":
            raise OSError(
                f"the namespaces could not be set up: the script ended with {self._process.wait(60)}"
            )

    def path(self, path: Path | str) -> Path:
        """Return how this process sees `path` of the mount namespace."""
        return Path(f"/proc/{self.pid}/root") / str(path).lstrip("/")

    def run(self, *command: str) -> str:
        """Run a host's program in the namespaces; raises with its words where it fails."""
        return run("nsenter", "-t", str(self.pid), "--net", "--mount", *command)

    def listen(self, address: tuple[str, int]) -> socket.socket:
        """Return a listening TCP socket of this process that lies in the network namespace."""
        found: list[socket.socket | OSError] = []

        def make() -> None:
            # Only this thread changes over; what it opens stays where it was opened.
            libc = ctypes.CDLL(None, use_errno=True)
            descriptor = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if libc.setns(descriptor, _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
                found.append(socket.create_server(address, backlog=128))
            except OSError as error:
                found.append(error)
            finally:
                os.close(descriptor)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join(60)
        if isinstance(found[0], OSError):
            raise found[0]
        return found[0]

    def close(self) -> None:
        """Let the namespaces go. Sockets in them keep the network's alive until they are closed."""
        self._process.kill()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


def run(*command: str) -> str:
    """Run a program of this host and return its output; raises with its words where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout
