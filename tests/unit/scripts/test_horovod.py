"""scripts/horovod before it builds anything: what it finds kept, and what it misses."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "horovod"


def horovod(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the script with a cache and a PyTorch 2.4.0 below `folder`; the latter is nothing but its version."""
    return subprocess.run(
        [SCRIPT, *arguments],
        env={**os.environ, "XDG_CACHE_HOME": str(folder), "PYTHONPATH": str(folder / "modules")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def with_torch(folder: Path) -> None:
    torch = folder / "modules" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text('__version__ = "2.4.0+cpu"\n')


def test_a_cached_wheel_of_the_same_torch_is_used(tmp_path: Path) -> None:
    with_torch(tmp_path)
    key = f"torch-2.4.0+cpu-{sys.implementation.cache_tag}-{platform.machine()}"
    wheel = tmp_path / "bai" / "horovod-0.28.1" / key / "horovod-0.28.1-py3.whl"
    wheel.parent.mkdir(parents=True)
    wheel.touch()

    done = horovod(tmp_path, sys.executable)

    assert (done.returncode, done.stdout, done.stderr) == (0, f"{wheel}\n", "")


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("/nowhere/python", "horovod: /nowhere/python: no such program; give the path of a Python\n"),
        (
            sys.executable,
            f"horovod: {sys.executable} has no PyTorch that can be imported; install it first: "
            f"{sys.executable} -m pip install torch\n",
        ),
    ],
)
def test_missing_programs_are_named_in_a_sentence(tmp_path: Path, python: str, said: str) -> None:
    # Given a Python whose PyTorch is broken, where it has one
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "torch.py").write_text("raise ImportError\n")

    done = horovod(tmp_path, python)

    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
