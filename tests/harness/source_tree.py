"""Copies the source, so that a test may change the copy and run programs from it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2]
TEST_FOLDERS = os.pathsep.join(
    str(SOURCE / "tests" / name) for name in ("", "harness", "servers", "records", "programs")
)
"""PYTHONPATH of a program that imports the tests' own modules. setup.cfg has the same path for pytest."""
_PARTS = ("bai_agent", "executor", "cloud_init", "setup.cfg", "pyproject.toml")


@dataclass(frozen=True)
class SourceTree:
    """A copy of the source."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Environment in which Python imports our packages from the copy."""
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        return {**inherited, "PYTHONPATH": str(self.folder)}

    def program(self, module: str) -> tuple[str, ...]:
        """Return the command that calls `main` of the copy's `module`."""
        here = f"assert {module}.__file__.startswith({str(self.folder)!r})"
        return (sys.executable, "-c", f"import {module}; {here}; {module}.main()")

    def write(self, path: str, text: str) -> None:
        """Add a file."""
        file = self.folder / path
        assert not file.exists()
        file.write_text(text)

    def insert(self, path: str, text: str, *, before: str) -> None:
        """Insert `text` before the only line of a file that begins with `before`."""
        file = self.folder / path
        lines = file.read_text().splitlines(keepends=True)
        (index,) = (number for number, line in enumerate(lines) if line.startswith(before))
        lines[index:index] = [text]
        file.write_text("".join(lines))

    def replace(self, path: str, old: str, new: str) -> None:
        """Replace `old`, which a file must contain once, by `new`."""
        file = self.folder / path
        text = file.read_text()
        assert text.count(old) == 1
        file.write_text(text.replace(old, new))

    def changed(self) -> set[str]:
        """Return the files that differ from the original."""
        ours, theirs = _contents(self.folder), _contents(SOURCE)
        return {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}


def copied_tree(folder: Path) -> SourceTree:
    """Copy the source into the new folder `folder`."""
    folder.mkdir()
    for part in _PARTS:
        if (SOURCE / part).is_dir():
            # Compiled files are copied too, because they are valid as long as a source's size and time do not
            # change.
            shutil.copytree(SOURCE / part, folder / part)
        else:
            shutil.copy2(SOURCE / part, folder)
    return SourceTree(folder)


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in _files(folder)}


def _files(folder: Path) -> Iterator[Path]:
    for part in _PARTS:
        for file in (folder / part, *(folder / part).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file
