"""Builds the agent's bundle, one archive per CPU architecture. An instance downloads the bundle, verifies its
sha256, and runs the agent in it.

    bai_agent/…  start_agent.py  pure/…  native/cp310/ … native/cp311-abi3/ …  bin/py-spy

The same sources and wheels produce the same bytes.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import resources
from pathlib import Path

import bai_agent
from bai_agent.light_dataclass import dataclass
from executor.backends.ec2.bundle.wheels import ARCHITECTURES, find_wheels, locked_wheels
from executor.backends.ec2.shared import once
from executor.errors import WheelError
from executor.owned_folders import in_cache, keep_in_cache

_FORMAT = 1
"""Version of the bundle's format. Increase the version when the code is changed so that the same inputs produce a
different archive."""
_DATE = 315_532_800
"""Modification time of all files: 1980-01-01, the earliest time that every archive format supports."""
_LEFT_OUT = re.compile(
    r"backports/zstd/(_cffi|zipfile)/.*|backports/zstd/tarfile\.py|.*\.pyi|psutil/tests/.*|.*/py\.typed"
)
"""Files that are in wheels but not in the bundle: what backports.zstd has for PyPy and for other modules of the
standard library, and files for type checkers and tests."""


@dataclass(frozen=True, kw_only=True)
class BuiltBundle:
    """A bundle on this machine."""

    path: Path
    architecture: str
    sha256: str
    size: int

    @property
    def key(self) -> str:
        """Return the bundle's key in the staging bucket."""
        return f"agent/{self.sha256}.tar.gz"


def build(architecture: str, *, cache: Path, download: bool = True) -> BuiltBundle:
    """Return the bundle for a CPU architecture (Linux's name). Builds the bundle only if the folder `cache`
    does not contain that bundle. Raises WheelError.

    download: whether missing wheels may be downloaded from the package index.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(f"there is no bundle for {architecture}")
    try:
        make = partial(_built, architecture, cache=cache, download=download)
        built = once(("bundle", architecture, cache, download), make)
        return built if in_cache(built.path) else make()
    except OSError as error:
        # The error is "file exists" if a regular file is where the cache folder should be.
        why = os.strerror(errno.ENOTDIR) if error.errno == errno.EEXIST else error.strerror
        raise WheelError(
            f"the agent's bundle cannot be kept in {cache}: {why}; free some space, or name another folder "
            "with XDG_CACHE_HOME"
        ) from error


def linux_architecture(name: str) -> str:
    """Return Linux's name of a CPU architecture. name: EC2's name of the architecture, such as "arm64"."""
    return "aarch64" if name == "arm64" else name


def agent_files() -> dict[str, bytes]:
    """Return the agent's own files: name in the bundle → content."""
    root = Path(bai_agent.__file__).parent
    found = {
        f"bai_agent/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found["start_agent.py"] = resources.files("cloud_init").joinpath("start_agent.py").read_bytes()
    return found


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return `files` as a .tar.gz. The same files produce the same bytes. Files in bin/ are executable."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=packed, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), _DATE
            member.mode = 0o755 if name.startswith("bin/") else 0o644
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def _built(architecture: str, *, cache: Path, download: bool) -> BuiltBundle:
    agent = agent_files()
    path = cache / "bundles" / f"{_fingerprint(architecture, agent)}.tar.gz"
    if not in_cache(path):
        # The wheels are read only here, because reading and hashing all wheels takes a third of a second.
        wheels = find_wheels(architecture, cache=cache / "wheels", download=download)
        packages = {name: content for wheel in wheels for name, content in _unpacked(wheel)}
        keep_in_cache(path, pack({**agent, **packages}))
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return BuiltBundle(path=path, architecture=architecture, sha256=digest, size=len(content))


def _fingerprint(architecture: str, agent: Mapping[str, bytes]) -> str:
    lines = [f"{_FORMAT} {architecture}\n"]
    lines += (f"{name} {hashlib.sha256(content).hexdigest()}\n" for name, content in sorted(agent.items()))
    lines += (f"{wheel} {sha256}\n" for wheel, sha256 in sorted(locked_wheels(architecture).items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _unpacked(wheel: Path) -> Iterator[tuple[str, bytes]]:
    folder = _folder(wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith("/") or _LEFT_OUT.fullmatch(name):
                continue
            if name == "backports/zstd/__init__.py":
                # Without this file, a machine's own package `backports` would hide the bundle's.
                yield f"{folder}/backports/__init__.py", b""
            script = re.fullmatch(r"[^/]+\.data/scripts/(.+)", name)
            yield (f"bin/{script[1]}" if script else f"{folder}/{name}"), archive.read(name)


def _folder(wheel: str) -> str:
    """Return the folder for a wheel, by the tags in its name: `name-version-python-abi-platform.whl`."""
    python, abi = wheel.removesuffix(".whl").split("-")[-3:-1]
    if abi == "abi3":
        return f"native/{python}-abi3"
    return f"native/{python}" if python.startswith("cp") else "pure"
