"""Root file systems of machines: built once per recipe by mmdebstrap, kept in the user's cache, shared read-only."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

GUEST = Path(__file__).parent / "guest"
RECIPE = 1
"""To be raised when `_build` changes what it makes."""
BUILD_LIMIT = timedelta(minutes=10)
LOCK_LIMIT = timedelta(minutes=15)
"""Both roots may be in the making when a third process asks."""

_PACKAGES = (
    *("cloud-init", "python3", "systemd-sysv", "udev", "dbus", "locales", "libfaketime"),
    *("iproute2", "ifupdown", "openssh-server", "ca-certificates", "procps", "sudo", "curl"),
)
VARIANTS = {
    # cloud-init 22.4.2, systemd 252, Python 3.11
    "bookworm": (*_PACKAGES, "isc-dhcp-client"),
    # cloud-init 25.1, systemd 257, Python 3.13
    "trixie": (*_PACKAGES, "dhcpcd-base"),
}


class RootError(Exception):
    """A root could not be built."""


def root(variant: str) -> Path:
    """Return the unpacked root of `variant` (bookworm, trixie), built on the first call on this machine (a minute)."""
    packages = VARIANTS[variant]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bai" / "roots"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{variant}-{_fingerprint(variant, packages)}"
    if folder.is_dir():
        return folder
    with _locked(cache / f"{variant}.lock"):
        if not folder.is_dir():
            _build(variant, packages, folder)
    return folder


def _build(variant: str, packages: tuple[str, ...], folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{variant}-") as temporary:
        made = Path(temporary) / "root"
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}"]
        done = subprocess.run(
            [*command, variant, str(made)],
            capture_output=True,
            text=True,
            timeout=BUILD_LIMIT.total_seconds(),
            check=False,
        )
        if done.returncode != 0:
            raise RootError(f"mmdebstrap could not build {variant}:\n{done.stderr[-2000:]}")
        shutil.copytree(GUEST, made, symlinks=True, dirs_exist_ok=True)
        (made / "etc/machine-id").write_text("")
        (made / "etc/hostname").unlink(missing_ok=True)  # mmdebstrap's is this host's
        (made / "etc/fstab").write_text("")
        (made / "etc/hosts").write_text("127.0.0.1 localhost\n")
        # A name server that cannot be reached costs 30 s at each look-up; one that refuses costs nothing.
        (made / "etc/resolv.conf").unlink(missing_ok=True)
        (made / "etc/resolv.conf").write_text("nameserver 127.0.0.1\n")
        for key in (made / "etc/ssh").glob("ssh_host_*"):
            key.unlink()
        made.rename(folder)


def _fingerprint(variant: str, packages: tuple[str, ...]) -> str:
    digest = hashlib.sha256(repr((RECIPE, variant, packages)).encode())
    for path in sorted(GUEST.rglob("*")):
        digest.update(str(path.relative_to(GUEST)).encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        deadline = time.monotonic() + LOCK_LIMIT.total_seconds()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RootError(f"another process has held {path} for {LOCK_LIMIT}") from None
            time.sleep(0.2)
        yield
