"""Makes virtual environments like /opt/pytorch of deep learning images, once on this host, in `bai`'s cache.

They belong to the Python at /usr/bin/python3 of whoever looks: this host, if its version is the same, or a machine of the
sandbox that has the folder mounted. So nothing in it knows where it lies.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from executor.owned_folders import cache_folder

BOOKWORMS = "3.11"
"""Version of /usr/bin/python3 in Debian 12."""
_TORCH = ("torch==2.15.0", "numpy==2.4.6", "pip==25.3")
_ADAPTDL = (
    "adaptdl==0.2.11",
    "async-timeout==5.0.1",
    "autograd==1.8.0",
    "numpy==2.4.6",
    "pandas==2.3.3",
    "portpicker==1.6.0",
    "redis==7.0.1",
    "requests==2.32.5",
    "scipy==1.17.1",
    "semver==3.0.4",
)
_TORCHRUN = """\
#!/usr/bin/env python3
import sys
from torch.distributed.run import main
sys.exit(main())
"""


def pytorch(version: str = BOOKWORMS) -> Path:
    """Return a virtual environment with PyTorch and torchrun, for a /usr/bin/python3 of that version.

    The first time takes minutes and 6 GB of disk: where the package index has no PyTorch for CPUs alone, it is the one with
    CUDA. The test fails with a sentence where it cannot be had.

    For a machine of the sandbox: `MachineShape(mounts={"/opt/pytorch": pytorch()})`; `bai` finds it there by itself. On this host, where
    `hosts_version()` is the version: `--set env.python=FOLDER/bin/python`.

    Horovod is no part of it: `scripts/horovod FOLDER/bin/python` prints the path of a wheel for it (built once, in about three
    minutes). `image_python("horovod", [WHEEL, "cloudpickle==…", …])` is a folder with that alone; a machine that mounts it
    finds it by `[env.vars] PYTHONPATH = "PLACE/lib/python3.11/site-packages"`.
    """
    return image_python("torch", _TORCH, version=version, programs={"torchrun": _TORCHRUN}, timeout_s=1800)


def adaptdl(version: str = BOOKWORMS) -> Path:
    """Return the folder of AdaptDL and its dependencies, for PYTHONPATH of the Python of `pytorch()`."""
    return image_python("adaptdl", _ADAPTDL, version=version) / "lib" / f"python{version}" / "site-packages"


def hosts_version() -> str:
    """Return the version of this host's /usr/bin/python3, such as "3.11"."""
    say = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run(
        ["/usr/bin/python3", "-c", say], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def image_python(
    name: str,
    packages: Sequence[str],
    *,
    version: str = BOOKWORMS,
    programs: dict[str, str] | None = None,
    timeout_s: float = 300,
) -> Path:
    """Return a virtual environment with `packages` (as pip takes them, of fixed versions) for a /usr/bin/python3 of `version`.

    programs: texts of further programs in its `bin`, by name.
    """
    which = "-".join(Path(each).name.removesuffix(".whl").replace("==", "-") for each in packages)
    folder = cache_folder({}) / "image-pythons" / f"{which}-python{version}-{platform.machine()}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as temporary:
                made = Path(temporary) / "made"
                _install(made, name, packages, version=version, timeout_s=timeout_s)
                _add_programs(made / "bin", programs or {})
                made.rename(folder)
    return folder


def _install(made: Path, name: str, packages: Sequence[str], *, version: str, timeout_s: float) -> None:
    target = made / "lib" / f"python{version}" / "site-packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--retries=2", "--no-compile", f"--target={target}"]
    command += [f"--python-version={version}", "--implementation=cp", "--only-binary=:all:"]
    # All platforms that Debian 12's C library supports, because pip does not add earlier platforms itself. A
    # wheel that was built here has the last tag.
    command += [f"--platform=manylinux_2_{minor}_{platform.machine()}" for minor in range(17, 37)]
    command += [f"--platform={other}_{platform.machine()}" for other in ("manylinux2014", "linux")]
    try:
        done = subprocess.run(
            [*command, *packages],
            # The packages have gigabytes, so they are unpacked beside their final folder: /tmp may be small.
            env={**os.environ, "TMPDIR": str(made.parent)},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.fail(
            f"{name} was not installed within {timeout_s:.0f} s: is the package index slow?", pytrace=False
        )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        pytest.fail(
            f"{name} could not be installed for tests: {said}; check the network, the proxy or PIP_INDEX_URL",
            pytrace=False,
        )
    shutil.rmtree(target / "bin", ignore_errors=True)  # programs that would start this process's Python
    # This makes it a virtual environment, as on real images.
    (made / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    if hosts_version() == version:
        # Compiled now, because machines see the folder read-only and would compile at each import.
        compile_all = [
            "-m",
            "compileall",
            "-q",
            "-j",
            "2",
            "-s",
            str(made),
            "-p",
            "/opt/pytorch",
            str(target),
        ]
        subprocess.run(
            ["/usr/bin/python3", *compile_all], capture_output=True, timeout=timeout_s, check=False
        )


def _add_programs(folder: Path, programs: dict[str, str]) -> None:
    folder.mkdir()
    for name in ("python", "python3"):
        (folder / name).symlink_to("/usr/bin/python3")
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
