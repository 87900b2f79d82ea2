"""Downloads the packages of the agent's bundle into a cache, as wheels for each CPython version and each CPU
architecture.

`wheels.sha256` lists the wheels with their checksums. After a change of versions, `scripts/lock-wheels`
writes `wheels.sha256` again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from bai_agent.job.run_directory import make_folder
from executor.errors import WheelError

ARCHITECTURES = ("x86_64", "aarch64")
PYTHONS = ("310", "311", "312", "313", "314")

PURE = ("kafka-python==3.0.12", "nvidia-ml-py==13.615.71", "tomli==2.5.0")
_NATIVE = ("ahocorasick_rs==1.0.3", "crc32c==2.9.post0", "psutil==7.2.2", "py-spy==0.4.3")
"""Versions are fixed, so that one version of `bai` builds the same bundle everywhere."""
_WATCHER = (
    "annotated-types==0.8.0",
    "boto3==1.44.8",
    "botocore==1.44.8",
    "jmespath==1.1.0",
    "pydantic==2.14.4",
    "python-dateutil==2.9.0.post0",
    "s3transfer==0.19.3",
    "six==1.17.0",
    "tomli==2.5.0",
    "tomli-w==1.2.0",
    "typing-extensions==4.16.0",
    "typing-inspection==0.4.5",
    "urllib3==2.8.0",
)
_WATCHER_NATIVE = ("pydantic-core==2.50.5",)
"""Packages with native code in the watcher's archive. Each version of pydantic needs exactly one version of
pydantic-core."""

_PLATFORMS = ("manylinux2014_{0}", "manylinux_2_17_{0}", "manylinux_2_24_{0}", "manylinux_2_28_{0}")
"""Every image that has Python 3.10, or can install Python 3.10, has glibc 2.28 or newer."""
_TIMEOUT_S = 180.0
"""Timeout of one call of pip (seconds)."""


def native(python: str) -> tuple[str, ...]:
    """Return the packages with native code for one CPython ("312")."""
    obstore = _obstore(python)
    # CPython 3.14 has zstd in its standard library.
    return (*_NATIVE, obstore) if python == "314" else (*_NATIVE, obstore, "backports.zstd==1.8.0")


def _obstore(python: str) -> str:
    # obstore 0.12 needs Python 3.11.
    return "obstore==0.11.1" if python == "310" else "obstore==0.12.1"


Sets = Mapping[str, tuple[tuple[str, ...], list[str]]]
"""Sets of wheels: folder in the cache → packages, and pip's options for them."""
_ANYWHERE = ["--implementation=py", "--abi=none", "--platform=any"]


def sets(architecture: str) -> Sets:
    """Return the bundle's sets of wheels."""
    natives = {f"{architecture}-cp{each}": (native(each), _compiled(architecture, each)) for each in PYTHONS}
    return {"pure": (PURE, _ANYWHERE), **natives}


def watcher_sets(architecture: str, python: str) -> Sets:
    """Return the sets of wheels of the watcher for one CPython ("313")."""
    packages = (*_WATCHER_NATIVE, _obstore(python))
    return {
        "watcher-pure": (_WATCHER, _ANYWHERE),
        f"watcher-{architecture}-cp{python}": (packages, _compiled(architecture, python)),
    }


def _compiled(architecture: str, python: str) -> list[str]:
    options = [f"--platform={each.format(architecture)}" for each in _PLATFORMS]
    options += [f"--python-version=3.{python[1:]}", "--implementation=cp"]
    return options + [f"--abi={each}" for each in (f"cp{python}", "abi3", "none")]


def find_wheels(architecture: str, *, cache: Path, download: bool = True) -> list[Path]:
    """Return all wheels of a bundle. `find_in_sets` describes the checks and the errors."""
    return find_in_sets(sets(architecture), cache=cache, download=download)


def locked_wheels(architecture: str) -> Mapping[str, str]:
    """Return the sha256 of each wheel that `find_wheels` returns for a bundle, by file name."""
    fixed = locked()
    return {
        wheel: sha256
        for folder, (packages, _) in sets(architecture).items()
        for package in packages
        for wheel, sha256 in _files(folder, package, fixed).items()
    }


def find_in_sets(wanted: Sets, *, cache: Path, download: bool = True) -> list[Path]:
    """Return all wheels of these sets, each file once. The sha256 of each wheel is checked against
    `wheels.sha256`. Raises WheelError.

    download: whether missing wheels may be fetched from the package index, with pip and its configuration.
    """
    fixed = locked()
    found: dict[str, Path] = {}
    for name, (packages, options) in wanted.items():
        folder = cache / name
        missing = [each for each in packages if _find(folder, each, fixed) is None]
        if missing and not download:
            raise WheelError(f"{', '.join(missing)} is not in {folder}")
        if missing:
            _download(folder, missing, options, fixed)
        for package in packages:
            wheel = _find(folder, package, fixed)
            if wheel is None:
                raise WheelError(f"pip brought no wheel for {package} into {folder}")
            found[wheel.name] = wheel
    return [found[name] for name in sorted(found)]


def locked() -> Mapping[str, str]:
    """Return the content of `wheels.sha256`: folder/name of a wheel → sha256."""
    file = resources.files("executor.backends.ec2.bundle") / "wheels.sha256"
    lines = file.read_text(encoding="ascii").splitlines()
    return {name: sha256 for sha256, name in map(str.split, lines)}


def download(folder: Path, requirements: str, options: Sequence[str]) -> None:
    """Download the wheels of a requirements file into `folder` with pip. Raises WheelError."""
    names = ", ".join(re.findall(r"^\S+==\S+", requirements, re.MULTILINE))
    file = folder / "requirements.txt"
    file.write_text(requirements)
    command = [*pip(), "download", "--quiet", "--no-input", "--no-deps", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", f"--dest={folder}", *options, f"--requirement={file}"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise WheelError(_unreachable(names, f"no answer within {_TIMEOUT_S:.0f} s")) from None
    if done.returncode != 0:
        output = done.stderr.decode(errors="replace")
        if "DO NOT MATCH THE HASHES" in output:
            raise WheelError(
                f"the package index has the wrong files for {names}: their checksums differ from those in wheels.sha256; "
                "use an index that mirrors the original files"
            )
        lines = [each for each in output.splitlines() if "ERROR" in each]
        raise WheelError(_unreachable(names, lines[-1].partition("ERROR: ")[2] if lines else "pip failed"))


def pip() -> list[str]:
    """Return a command that runs pip: this environment's pip, otherwise the pip bundled with Python,
    otherwise the pip on PATH. Raises WheelError."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    # Environments that uv creates have no pip, but a wheel of pip can run without installation.
    folders = [Path(sysconfig.get_path("stdlib")) / "ensurepip" / "_bundled"]
    if elsewhere := sysconfig.get_config_var("WHEEL_PKG_DIR"):
        folders.append(Path(elsewhere))
    for folder in folders:
        for wheel in sorted(folder.glob("pip-*.whl"), reverse=True):
            return [sys.executable, str(wheel / "pip")]
    program = shutil.which("pip") or shutil.which("pip3")
    if program is None:
        raise WheelError(
            f"the agent's bundle is made with pip, which {sys.executable} does not have; install pip "
            "(uv pip install pip, or python -m ensurepip)"
        )
    return [program]


def _find(folder: Path, package: str, fixed: Mapping[str, str]) -> Path | None:
    for name, sha256 in _files(folder.name, package, fixed).items():
        wheel = folder / name
        if wheel.is_file() and hashlib.sha256(wheel.read_bytes()).hexdigest() == sha256:
            return wheel
    return None


def _files(folder: str, package: str, fixed: Mapping[str, str]) -> dict[str, str]:
    """Return the wheel of a package that `wheels.sha256` lists for the set `folder`, as file name → sha256."""
    project, _, version = package.partition("==")
    start = f"{folder}/{re.sub(r'[-_.]+', '_', project)}-{version}-".lower()
    return {
        name.partition("/")[2]: sha256 for name, sha256 in fixed.items() if name.lower().startswith(start)
    }


def _download(folder: Path, packages: Sequence[str], options: list[str], fixed: Mapping[str, str]) -> None:
    # Wheels in the cache folder are executed, so no other user may have write access to the folder, whatever
    # the umask is.
    make_folder(folder, private=folder)
    lines = []
    for package in packages:
        hashes = _files(folder.name, package, fixed).values()
        if not hashes:
            raise WheelError(f"no sha256 is fixed for {package} in {folder.name}; run scripts/lock-wheels")
        lines.append(" ".join([package, *(f"--hash=sha256:{each}" for each in hashes)]))
    with tempfile.TemporaryDirectory(prefix=".pip-", dir=folder) as fresh:
        download(Path(fresh), "\n".join(lines) + "\n", ["--require-hashes", *options])
        for wheel in Path(fresh).glob("*.whl"):
            wheel.replace(folder / wheel.name)


def _unreachable(names: str, why: str) -> str:
    return (
        f"the agent's bundle needs {names}, which pip could not download: {why.rstrip('.')}. "
        "Check the network, the proxy or PIP_INDEX_URL; or run `bai bundle` once on a machine that reaches the package index"
    )
