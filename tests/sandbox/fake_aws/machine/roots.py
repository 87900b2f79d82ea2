"""Root file systems of machines: built once per recipe by mmdebstrap, kept in the user's cache, shared read-only."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

GUEST = Path(__file__).parent / "guest"
RECIPE = 1
"""To be raised when `_build` changes what it makes."""
BUILD_LIMIT = timedelta(minutes=10)
LOCK_LIMIT = timedelta(minutes=15)
"""All roots may be in the making when another process asks."""

_PACKAGES = (
    *("cloud-init", "python3", "systemd-sysv", "udev", "dbus", "locales"),
    *("iproute2", "ifupdown", "openssh-server", "ca-certificates", "procps", "sudo", "curl"),
)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A release of Debian."""

    cloud_init: str
    """Its version of it, as far as that stays."""
    packages: tuple[str, ...]


VARIANTS = {
    # systemd 247, Python 3.9
    "bullseye": Variant(cloud_init="20.4.1", packages=(*_PACKAGES, "isc-dhcp-client")),
    # systemd 252, Python 3.11
    "bookworm": Variant(cloud_init="22.4.2", packages=(*_PACKAGES, "isc-dhcp-client")),
    # systemd 257, Python 3.13
    "trixie": Variant(cloud_init="25.1", packages=(*_PACKAGES, "dhcpcd-base")),
}
EVERYDAY = ("bookworm", "trixie")
"""Those that nearly every test needs; `aws` has them."""
_LEFT = "does not have a Release file"
"""What apt says of a suite that is not on the mirror any more."""
CLOUD_INIT = "BAI_TEST_CLOUD_INIT"
"""Names a source tree of cloud-init: its package then takes the place of each root's own."""
_CLOUD_INIT_PLACE = "/usr/lib/python3/dist-packages/cloudinit"


class RootError(Exception):
    """A root could not be built, or not as wanted."""


def mounts() -> dict[str, Path]:
    """Return what the environment lays over every root: path in the machine → folder of this host."""
    tree = os.environ.get(CLOUD_INIT)
    if not tree:
        return {}
    package = Path(tree) / "cloudinit"
    if not (package / "version.py").is_file():
        raise RootError(
            f"{CLOUD_INIT}={tree} is not a source tree of cloud-init: it has no cloudinit/version.py"
        )
    return {_CLOUD_INIT_PLACE: package}


def cloud_init(variant: str) -> str:
    """Return which version of cloud-init machines of `variant` run."""
    for package in mounts().values():
        found = re.search(r'^__VERSION__ = "(.+)"', (package / "version.py").read_text(), re.MULTILINE)
        if found is not None:
            return found[1]
    return VARIANTS[variant].cloud_init


def root(variant: str) -> Path:
    """Return the unpacked root of `variant` (see `VARIANTS`), built on the first call on this machine (a minute)."""
    packages = VARIANTS[variant].packages
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
        command = ["mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}"]
        done = subprocess.run(
            [*command, variant, str(made)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_LIMIT.total_seconds(),
            check=False,
        )
        if _LEFT in done.stdout:
            raise RootError(
                f"Debian's mirror has {variant} no more, so its root cannot be built; take it out of {__name__} and its tests"
            )
        if done.returncode != 0:
            raise RootError(f"mmdebstrap could not build {variant}:\n{done.stdout[-2000:]}")
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
