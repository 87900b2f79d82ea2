"""The tests find the programs of scripts/test-packages, and no others."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import listed_programs
import pytest
from listed_programs import link_listed_programs


def test_an_installed_program_that_is_not_listed_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = tmp_path / "test-packages"
    listing.write_text("shellcheck  # shell scripts\n")
    monkeypatch.setattr(listed_programs, "_LIST", listing)

    folder = tmp_path / "bin"
    folder.mkdir()
    link_listed_programs(folder)
    monkeypatch.setenv("PATH", str(folder))

    assert shutil.which("sh")
    assert shutil.which("shellcheck")
    with pytest.raises(FileNotFoundError, match="strace"):
        subprocess.run(["strace", "--version"], check=True)


def test_every_listed_package_has_a_purpose() -> None:
    lines = listed_programs._LIST.read_text().splitlines()

    assert all("#" in line for line in lines if line and line != "root:")
