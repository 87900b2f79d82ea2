"""Makes a podman with its own storage, and an image of this machine's busybox."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

IMAGE = "localhost/bai-test-busybox:1"

_APPLETS = ("cat", "dd", "env", "grep", "id", "ls", "sh", "sleep", "touch")
_TIMEOUT_S = 120


def own_podman(folder: Path) -> dict[str, str]:
    """Make the image in `folder`; return the variables with which podman stores all its files there."""
    storage, configuration = folder / "storage.conf", folder / "containers.conf"
    storage.write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/running"\n'
    )
    # crun refuses to run if cgroups of both versions are mounted.
    configuration.write_text(f'[engine]\nruntime = "runc"\ntmp_dir = "{folder}/tmp"\n')
    variables = {"CONTAINERS_STORAGE_CONF": str(storage), "CONTAINERS_CONF": str(configuration)}
    made = podman(
        variables, "import", "--change", "ENV IMAGE_SAYS=hello", "-", IMAGE, stdin=_root_file_system()
    )
    assert made.returncode == 0, made.stderr
    return variables


def podman(variables: dict[str, str], *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        ["podman", *words], input=stdin, capture_output=True, env=environment, timeout=_TIMEOUT_S, check=False
    )


def _root_file_system() -> bytes:
    """Return a tar with busybox, its libraries and the names of its applets."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    listed = subprocess.run(["ldd", busybox], capture_output=True, text=True, timeout=60, check=False).stdout
    with BytesIO() as packed:
        with tarfile.open(fileobj=packed, mode="w", dereference=True) as tar:
            for path in (busybox, *re.findall(r"(/\S+) \(0x", listed)):
                tar.add(path, "bin/busybox" if path == busybox else path)
            for name in _APPLETS:
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
            for name in ("tmp", "etc"):
                inside = tarfile.TarInfo(name)
                inside.type, inside.mode = tarfile.DIRTYPE, 0o777
                tar.addfile(inside)
        return packed.getvalue()
