"""Finds the benchmark's files that match the globs in a descriptor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def matching_files(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the files in `folder` that `pattern` matches. Raises OSError.

    Files outside `folder` are left out, even if a link in `folder` leads to them.
    """
    root = folder.resolve()
    # In pathlib, a final "**" matches only folders, but users expect "**" to match all files.
    for path in folder.glob(f"{pattern}/*" if pattern.endswith("**") else pattern):
        if path.is_file() and path.resolve().is_relative_to(root):
            yield path
