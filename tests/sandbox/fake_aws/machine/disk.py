"""A machine's disk: an overlay in memory over a shared root, in namespaces that the machine lives in."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from sandbox.fake_aws.machine import clock, guest_files
from sandbox.fake_aws.machine.namespaces import Holder
from sandbox.fake_aws.machine.roots import root
from sandbox.fake_aws.machine.shape import MachineShape

_MOUNTS = """
mkdir -p "$1" /run/systemd
mount -t tmpfs tmpfs /run/systemd
mount -t tmpfs -o "size=$3" tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$1/root"
ip link set lo up
"""
"""nspawn keeps its locks under /run/systemd: a place of its own, so that nothing is left on the host."""


class Disk:
    """Dies with the thread that makes it, as its mounts do."""

    def __init__(self, folder: Path, *, variant: str, shape: MachineShape) -> None:
        self.holder = Holder(_MOUNTS, str(folder), str(root(variant)), shape.disk)
        self.root = folder / "root"
        """In the holder's mount namespace."""
        self._seen = self.holder.path(self.root)

    def apply(self, shape: MachineShape, *, instance_type: str) -> None:
        """Make the files of a machine that has never run what its image and `shape` say."""
        self.write("/etc/sandbox-instance-type", f"{instance_type}\n")
        guest_files.apply(shape, self.holder, self.root)

    def read(self, path: str) -> bytes:
        return guest_files.read(self._seen, path)

    def write(self, path: str, content: str | bytes) -> None:
        guest_files.write(self._seen, path, content)

    def set_clock(self, time: datetime) -> None:
        clock.move(self._seen, time)

    def take_halt_mark(self) -> bool:
        """Return whether the machine was halted rather than switched off; says so once."""
        mark = self._seen / ".halted"
        halted = mark.exists()
        mark.unlink(missing_ok=True)
        return halted

    def close(self) -> None:
        self.holder.close()
