"""What a launch needs is found on the machine, or named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bai_agent.benchmark.launch_needs import meet_needs, unknown_versions
from bai_agent.errors import SetupError
from bai_agent.strategy.launch import Launch, Needs


def program(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def met(launch: Launch, *, path: Path, cwd: Path, command: tuple[str, ...] = ("train",)) -> tuple[str, ...]:
    return meet_needs(launch, command=command, env={"PATH": str(path)}, cwd=cwd, user=None)


def test_path_is_searched_before_the_folders_of_images(tmp_path: Path) -> None:
    kept = program(tmp_path / "kept", "mpirun")
    launch = Launch(
        argv=("mpirun", "train"), needs=Needs(folders=(str(kept.parent),), program="install Open MPI")
    )

    found = met(launch, path=tmp_path / "bin", cwd=tmp_path)
    program(tmp_path / "bin", "mpirun")
    again = met(launch, path=tmp_path / "bin", cwd=tmp_path)

    assert (found, again) == ((str(kept), "train"), ("mpirun", "train"))


def test_a_missing_program_names_what_to_install(tmp_path: Path) -> None:
    launch = Launch(argv=("mpirun",), needs=Needs(folders=("/nowhere",), program="install Open MPI"))

    with pytest.raises(SetupError, match=r"mpirun .* \(looked at: PATH, /nowhere\); install Open MPI"):
        met(launch, path=tmp_path, cwd=tmp_path)


@pytest.mark.parametrize("needs", [Needs(cpus=100_000), Needs(cores=100_000)])
def test_more_cpus_than_the_node_has_are_refused(tmp_path: Path, needs: Needs) -> None:
    with pytest.raises(
        SetupError, match=r"need 100000 (CPUs|cores) on this node, which has \d+; lower .*cpus_per_process"
    ):
        met(Launch(argv=("train",), needs=needs), path=tmp_path, cwd=tmp_path)


def test_as_many_cpus_as_the_node_has_are_enough(tmp_path: Path) -> None:
    launch = Launch(argv=("train",), needs=Needs(cpus=len(os.sched_getaffinity(0)), cores=1))

    assert met(launch, path=tmp_path, cwd=tmp_path) == ("train",)


def test_only_a_python_is_checked_for_missing_modules(tmp_path: Path) -> None:
    launch = Launch(argv=("train",), needs=Needs(modules={"no_such": "install it", "json": "install json"}))
    python = Path(sys.executable)

    with pytest.raises(SetupError, match=f'{python}, has no module "no_such"; install it'):
        met(launch, path=python.parent, cwd=tmp_path, command=(sys.executable, "train.py"))
    assert met(launch, path=python.parent, cwd=tmp_path, command=("train",)) == ("train",)


def installed(folder: Path, version: str) -> dict[str, str]:
    """Put a package of that version into `folder`; return the environment of a Python that finds it."""
    metadata = folder / "engine-1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: engine\nVersion: {version}\n")
    return {"PATH": str(Path(sys.executable).parent), "PYTHONPATH": str(folder)}


@pytest.mark.parametrize(
    ("version", "command", "warnings"),
    [
        ("1.2", "python3", []),
        (
            "1.3",
            "python3",
            ["The benchmark's Python has engine '1.3', which was never tested; 1.2, 1.1 works."],
        ),
        ("1.3", "train.sh", []),
    ],
)
def test_a_version_that_is_not_known_to_work_is_warned_of(
    tmp_path: Path, version: str, command: str, warnings: list[str]
) -> None:
    env = installed(tmp_path, version)

    found = unknown_versions(
        {"engine": ("1.2", "1.1"), "not-there": ("1",)}, command=[command], env=env, cwd=tmp_path, user=None
    )

    assert found == warnings
