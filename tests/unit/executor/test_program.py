"""By which name a hint calls this program."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.program import called


@pytest.fixture
def bai(tmp_path: Path) -> Path:
    """A program called bai, in a virtual environment."""
    return executable(tmp_path / "my project" / ".venv" / "bin" / "bai")


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_program_on_path_is_called_by_its_name(bai: Path, tmp_path: Path) -> None:
    link = tmp_path / "links" / "bai"
    link.parent.mkdir()
    link.symlink_to(bai)

    for path in (bai.parent, link.parent):
        assert called(str(bai), path=f"/nowhere:{path}", folder=tmp_path) == "bai"


def test_a_program_not_on_path_is_called_by_the_shorter_path(bai: Path, tmp_path: Path) -> None:
    project = tmp_path / "my project"

    assert called(".venv/bin/bai", path="/nowhere", folder=project) == ".venv/bin/bai"
    assert called(str(bai), path="/nowhere", folder=project) == ".venv/bin/bai"
    assert called(str(bai), path="/nowhere", folder=bai.parent) == "./bai"
    # From a folder that is far away, and with what a shell would take apart
    assert called(str(bai), path="", folder=Path("/proc/self/task")) == f"'{bai}'"


def test_a_different_program_named_bai_on_path_is_not_suggested(bai: Path, tmp_path: Path) -> None:
    other = executable(tmp_path / "other" / "bai")

    assert called(str(bai), path=str(other.parent), folder=bai.parent) == "./bai"


def test_a_module_is_called_by_the_programs_name(tmp_path: Path) -> None:
    for started in ("-c", "", "/usr/bin/pytest", "/gone/bai"):
        assert called(started, path=None, folder=tmp_path) == "bai"
