"""`scripts/setup` on machines that lack something: one sentence, and nothing that passes for a finished setup."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    clone = tmp_path / "a clone"
    clone.mkdir()
    shutil.copytree(ROOT / "scripts", clone / "scripts")
    for name in ("setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, clone)
    return clone


def run_setup(clone: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [clone / "scripts" / "setup", "executor"],
        env=env,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_without_the_package_index_setup_says_so_and_is_incomplete(clone: Path) -> None:
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        index = f"http://127.0.0.1:{nobody_listens.getsockname()[1]}/simple"
        env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        done = run_setup(clone, env | {"PIP_INDEX_URL": index, "PIP_NO_CACHE_DIR": "1"})

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith(
        "setup: the Python package index cannot be reached; check the network"
    )
    assert "Traceback" not in done.stderr
    assert not list((clone / ".venv").glob(".installed-*"))


def test_without_python_or_package_manager_setup_says_what_to_install(clone: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "env", "cat", "cksum", "dirname", "mktemp", "rm", "id"):
        (tools / name).symlink_to(shutil.which(name) or name)
    too_old = tools / "python3"
    too_old.write_text("#!/bin/sh\nexit 1\n")
    too_old.chmod(0o755)

    done = run_setup(clone, {"PATH": str(tools)})

    assert done.returncode == 1
    assert "no Python of version 3.10 or later" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("setup: needs python3-venv; install it with")
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize(
    ("has_sudo", "remedy"),
    [
        (False, "run once as root: apt-get update && apt-get install --yes strace"),
        (True, "run once: sudo apt-get update && sudo apt-get install --yes strace"),
    ],
)
def test_the_suggested_install_command_works_without_apt_package_lists(
    tmp_path: Path, has_sudo: bool, remedy: str
) -> None:
    tools = {"id": "echo 1000", "apt-get": "exit 0"} | ({"sudo": "exit 1"} if has_sudo else {})
    for name in ("bash", "env", "mktemp", "rm", "sh"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    for name, does in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)

    done = subprocess.run(
        [ROOT / "scripts" / "debian-packages", "strace"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (1, f"setup: needs strace; {remedy}\n")
