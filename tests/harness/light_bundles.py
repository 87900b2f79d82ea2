"""Makes the agent's bundle without the packages that no machine of a test imports.

With these packages the bundle has 19 MB. Each submission hashes it, each new account receives it, and each
machine fetches and unpacks it.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path

from bai_agent.job.run_directory import locked
from executor.backends.ec2.bundle.bundle import build, pack
from executor.owned_folders import cache_folder, in_cache, keep_in_cache

_CACHE = cache_folder(os.environ)
"""Cache folder before any test changes the environment."""
_SECONDS = 600
_NATIVE = re.compile(r"native/cp3(\d+)(-abi3)?/")


@cache
def light_cache(*pythons: int) -> str:
    """Return a value of XDG_CACHE_HOME with which `bai` delivers a light bundle, which is made once on this host.

    pythons: 11 is for 3.11; the versions whose native packages it has. Without any, it has the agent's own files alone: for machines
    that never boot.
    """
    home = _CACHE / "light-bundles" / ("-".join(map(str, pythons)) or "none")
    folder = home / "bai"
    bundles = folder / "bundles"
    bundles.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock", wait_s=_SECONDS):
        whole = build(platform.machine(), cache=_CACHE).path
        for shared in ("watchers", "wheels"):
            if not (folder / shared).exists():
                (_CACHE / shared).mkdir(exist_ok=True)
                (folder / shared).symlink_to(_CACHE / shared)
        if not in_cache(bundles / whole.name):
            keep_in_cache(bundles / whole.name, pack(_light(whole, pythons)))
    return str(home)


def _light(bundle: Path, pythons: tuple[int, ...]) -> dict[str, bytes]:
    """Return the files of a bundle that these Pythons need, compiled if this Python is among them."""

    def is_needed(name: str) -> bool:
        native = _NATIVE.match(name)
        if native is None:
            return bool(pythons) or not name.startswith(("bin/", "pure/"))
        made_for = int(native[1])
        return made_for in pythons or bool(native[2] and any(made_for <= each for each in pythons))

    with tempfile.TemporaryDirectory() as name, tarfile.open(bundle) as archive:
        folder = Path(name)
        # Unpacked by hand, because Pythons up to 3.11.3 have no extraction filters.
        for each in archive:
            if each.isfile() and is_needed(each.name) and (content := archive.extractfile(each)):
                path = folder / each.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
        if sys.version_info.minor in pythons:
            # Compiled files are valid by hash and not by time, because the times of files in a bundle mean
            # nothing.
            options = ["-q", "--invalidation-mode", "unchecked-hash", "-s", name]
            subprocess.run([sys.executable, "-m", "compileall", *options, name], check=True, timeout=120)
        files = [each for each in folder.rglob("*") if each.is_file()]
        return {each.relative_to(folder).as_posix(): each.read_bytes() for each in files}
