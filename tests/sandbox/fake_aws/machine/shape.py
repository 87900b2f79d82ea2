"""What is unusual about a machine: its image's files, its disk, its clock, its network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

HIDE_PYTHON = """
mkdir -p /usr/libexec
for python in /usr/bin/python3.[0-9] /usr/bin/python3.[0-9][0-9]; do
    [ ! -x "$python" ] || mv "$python" /usr/libexec/platform-python
done
rm -f /usr/bin/python3*
sed -i '1s|^#! */usr/bin/python3|#!/usr/libexec/platform-python|' /usr/bin/cloud-init /usr/bin/cloud-id
"""


@dataclass(frozen=True, kw_only=True)
class MachineShape:
    """How the machines look that are launched from now on. The default: a plain image on a healthy host."""

    variant: str | None = None
    """The root's name (see `roots`); None: the one of the AMI."""
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """Path in the machine → content. What begins with `#!` is executable. A symbolic link there is replaced."""
    remove: Sequence[str] = ()
    """Glob patterns of paths in the machine that are not there."""
    mounts: Mapping[str, Path] = field(default_factory=dict)
    """Path in the machine → folder of this host, seen there read-only."""
    prepare: str = ""
    """A shell script that is run in the machine's root before the first boot: no network, no service."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Set for every service, cloud-init among them; beside AWS_ENDPOINT_URL, which the sandbox sets."""
    disk: str = "768m"
    """Room for what the machine writes: a size as tmpfs takes it."""
    tmp_read_only: bool = False
    clock: datetime | None = None
    """What every service takes for the time when the machine boots (it runs on from there); None: the host's."""
    network_after: timedelta = timedelta(0)
    """From boot until the cable is plugged in: DHCP and IMDS are not there before."""


def hide_python(shape: MachineShape) -> MachineShape:
    """The same, but no Python is found by name: cloud-init has one of its own at /usr/libexec/platform-python."""
    return replace(shape, prepare=shape.prepare + HIDE_PYTHON)
