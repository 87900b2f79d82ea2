"""The agent's bundle without the packages that no machine of a test imports.

With all of them it has 28 MB. Each submission hashes them, each new account is sent them, and each machine fetches and unpacks them.
"""

from __future__ import annotations

import os
import platform
import re
import tarfile
from functools import cache
from pathlib import Path

from executor.backends.ec2.bundle.bundle import build, pack
from executor.owned_folders import cache_folder

_CACHE = cache_folder(os.environ)
"""As it is before any test changes the environment."""
_NATIVE = re.compile(r"native/cp3(\d+)(-abi3)?/")


@cache
def light_cache(*pythons: int) -> str:
    """Return a value of XDG_CACHE_HOME with which `bai` delivers a light bundle, which is made once on this host.

    pythons: 11 is for 3.11; the versions whose native packages it has. Without any, it has the agent's own files alone: for machines
    that never boot.
    """
    home = _CACHE / "light-bundles" / ("-".join(map(str, pythons)) or "none")
    folder = home / "bai"
    bundle = folder / "bundles" / build(platform.machine(), cache=_CACHE).path.name
    bundle.parent.mkdir(parents=True, exist_ok=True)
    for shared in ("watchers", "wheels"):
        (_CACHE / shared).mkdir(exist_ok=True)
        if not (folder / shared).exists():
            _link(folder / shared, _CACHE / shared)
    if not bundle.exists():
        partial = bundle.with_name(f".{bundle.name}.{os.getpid()}.tmp")
        partial.write_bytes(pack(_light(_CACHE / "bundles" / bundle.name, pythons)))
        partial.replace(bundle)
    return str(home)


def _link(path: Path, to: Path) -> None:
    """Make a link; fine where another process has just made it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    partial.symlink_to(to)
    partial.replace(path)


def _light(bundle: Path, pythons: tuple[int, ...]) -> dict[str, bytes]:
    """Return the files of a bundle that these versions of Python need."""

    def is_needed(name: str) -> bool:
        native = _NATIVE.match(name)
        if native is None:
            return bool(pythons) or not name.startswith(("bin/", "pure/"))
        made_for = int(native[1])
        return made_for in pythons or bool(native[2] and any(made_for <= each for each in pythons))

    with tarfile.open(bundle) as archive:
        members = {each.name: archive.extractfile(each) for each in archive if is_needed(each.name)}
        return {name: content.read() for name, content in members.items() if content is not None}
