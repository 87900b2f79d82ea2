"""What a deep learning AMI brings along: a Python of its own at /opt/pytorch, with boto3 and numpy in it."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

from image_pythons import image_python

from sandbox.fake_aws import MachineShape
from sandbox.fake_aws.machine.roots import root

PLACE = "/opt/pytorch"
_PACKAGES = ("boto3==1.44.5", "numpy==2.3.5", "pip==25.3")
_BOOKWORM = "/opt/bookworm"
_BOOKWORMS_PYTHON = f"""\
#!/bin/sh
libraries={_BOOKWORM}/usr/lib/{platform.machine()}-linux-gnu
exec "$libraries"/ld-linux-*.so.* --argv0 "$0" --library-path "$libraries" {_BOOKWORM}/usr/bin/python3 "$@"
"""


def with_newer_python(shape: MachineShape) -> MachineShape:
    """The same, on an image whose distribution is older than Debian 12: with that one's Python at /opt/pytorch."""
    files = {
        f"{PLACE}/bin/python": _BOOKWORMS_PYTHON,
        f"{PLACE}/pyvenv.cfg": f"home = {_BOOKWORM}/usr/bin\ninclude-system-site-packages = false\n",
    }
    mounts = {**shape.mounts, _BOOKWORM: root("bookworm")}
    return replace(shape, files={**shape.files, **files}, mounts=mounts)


def pytorch() -> Path:
    """Return a folder to be seen at /opt/pytorch by machines of Debian 12; made once on this host."""
    return image_python("boto3 and numpy", _PACKAGES)
