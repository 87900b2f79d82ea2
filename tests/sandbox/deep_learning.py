"""What a deep learning AMI brings along: a Python of its own at /opt/pytorch, with boto3 and numpy in it."""

from __future__ import annotations

import fcntl
import platform
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from executor.backends.ec2.bundle.bundle import cache_folder
from sandbox.fake_aws import Shape
from sandbox.fake_aws.machine.roots import root

PLACE = "/opt/pytorch"
_PACKAGES = ("boto3==1.44.5", "numpy==2.3.5", "pip==25.3")
_PYTHON = "3.11"
"""Bookworm's, which runs it."""
_TIMEOUT = 300.0
_BOOKWORM = "/opt/bookworm"
_BOOKWORMS_PYTHON = f"""\
#!/bin/sh
libraries={_BOOKWORM}/usr/lib/{platform.machine()}-linux-gnu
exec "$libraries"/ld-linux-*.so.* --argv0 "$0" --library-path "$libraries" {_BOOKWORM}/usr/bin/python3 "$@"
"""


def with_newer_python(shape: Shape) -> Shape:
    """The same, on an image whose distribution is older than Debian 12: with that one's Python at /opt/pytorch."""
    files = {
        f"{PLACE}/bin/python": _BOOKWORMS_PYTHON,
        f"{PLACE}/pyvenv.cfg": f"home = {_BOOKWORM}/usr/bin\ninclude-system-site-packages = false\n",
    }
    mounts = {**shape.mounts, _BOOKWORM: root("bookworm")}
    return replace(shape, files={**shape.files, **files}, mounts=mounts)


def pytorch() -> Path:
    """Return a folder to be seen at /opt/pytorch by machines of Debian 12; made once on this host, with pip."""
    name = "-".join((*_PACKAGES, platform.machine())).replace("==", "-")
    folder = cache_folder({}) / "opt-pytorch" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _make(folder)
    return folder


def _make(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as temporary:
        made = Path(temporary) / "made"
        packages = made / "lib" / f"python{_PYTHON}" / "site-packages"
        command = [sys.executable, "-m", "pip", "install", "--quiet", f"--target={packages}"]
        command += [f"--python-version={_PYTHON}", "--only-binary=:all:", "--implementation=cp"]
        command += [f"--platform=manylinux_2_{minor}_{platform.machine()}" for minor in (17, 28)]
        subprocess.run([*command, *_PACKAGES], check=True, timeout=_TIMEOUT)
        # As on the real ones, it is a virtual environment.
        (made / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
        (made / "bin").mkdir()
        for name in ("python", "python3"):
            (made / "bin" / name).symlink_to("/usr/bin/python3")
        made.rename(folder)
