"""The packages that go into the agent's bundle, as wheels for each CPython and each CPU, kept in a cache."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bai_agent.errors import BaiError

ARCHITECTURES = ("x86_64", "aarch64")
PYTHONS = ("310", "311", "312", "313", "314")

PURE = ("kafka-python==3.0.12", "nvidia-ml-py==13.615.71", "tomli==2.5.0")
_NATIVE = ("ahocorasick_rs==1.0.3", "crc32c==2.9.post0", "psutil==7.2.2", "py-spy==0.4.3")
"""Versions are fixed, so that the same `bai` makes the same bundle everywhere."""

_PLATFORMS = ("manylinux2014_{0}", "manylinux_2_17_{0}", "manylinux_2_24_{0}", "manylinux_2_28_{0}")
"""glibc 2.28 is in every image that has Python 3.10 or can install it."""
_TIMEOUT = 180.0
"""Seconds for one call of pip."""


class WheelError(BaiError):
    """A wheel can neither be found in the cache nor be downloaded."""


def native(python: str) -> tuple[str, ...]:
    """Return the packages with native code for one CPython ("312")."""
    # obstore 0.12 needs Python 3.11; 3.14 brings zstd itself.
    obstore = "obstore==0.11.1" if python == "310" else "obstore==0.12.1"
    return (*_NATIVE, obstore) if python == "314" else (*_NATIVE, obstore, "zstandard==0.25.0")


def find_wheels(architecture: str, *, cache: Path, download: bool = True) -> list[Path]:
    """Return all wheels of a bundle, each file once. Raises WheelError.

    download: whether what the cache lacks may be fetched from the package index, with pip and its configuration.
    """
    found = _wheels(
        cache / "pure", PURE, ["--implementation=py", "--abi=none", "--platform=any"], download=download
    )
    for python in PYTHONS:
        options = [f"--platform={each.format(architecture)}" for each in _PLATFORMS]
        options += [f"--python-version=3.{python[1:]}", "--implementation=cp"]
        options += [f"--abi={each}" for each in (f"cp{python}", "abi3", "none")]
        found += _wheels(cache / f"{architecture}-cp{python}", native(python), options, download=download)
    return sorted({each.name: each for each in found}.values(), key=lambda each: each.name)


def _wheels(folder: Path, packages: Sequence[str], options: list[str], *, download: bool) -> list[Path]:
    missing = [each for each in packages if _find(folder, each) is None]
    if missing:
        if not download:
            raise WheelError(f"{', '.join(missing)} is not in {folder}")
        _download(folder, missing, options)
    wheels = [_find(folder, each) for each in packages]
    if None in wheels:
        raise WheelError(f"pip brought no wheel for {packages[wheels.index(None)]} into {folder}")
    return [each for each in wheels if each is not None]


def _find(folder: Path, package: str) -> Path | None:
    name, _, version = package.partition("==")
    start = f"{re.sub(r'[-_.]+', '_', name)}-{version}-"
    return next((each for each in sorted(folder.glob("*.whl")) if each.name.lower().startswith(start)), None)


def _download(folder: Path, packages: Sequence[str], options: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pip-", dir=folder) as fresh:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
        command += [
            "--disable-pip-version-check",
            "--only-binary=:all:",
            f"--dest={fresh}",
            *options,
            *packages,
        ]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            raise WheelError(_unreachable(packages, f"no answer within {_TIMEOUT:.0f} s")) from None
        if done.returncode != 0:
            lines = [each for each in done.stderr.decode(errors="replace").splitlines() if "ERROR" in each]
            raise WheelError(
                _unreachable(packages, lines[-1].partition("ERROR: ")[2] if lines else "pip failed")
            )
        for wheel in Path(fresh).glob("*.whl"):
            wheel.replace(folder / wheel.name)


def _unreachable(packages: Sequence[str], why: str) -> str:
    return (
        f"the agent's bundle needs {', '.join(packages)}, which pip could not download: {why.rstrip('.')}. "
        "Check the network, the proxy or PIP_INDEX_URL; or run `bai bundle` once where the package index is reachable"
    )
