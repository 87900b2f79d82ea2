"""The globs by which a descriptor names files that the benchmark writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def matching_files(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the files that `pattern` matches and that are in `folder`, even if links in it lead elsewhere.
    Raises OSError."""
    root = folder.resolve()
    # pathlib takes "**" alone for folders only, people for everything.
    for path in folder.glob(f"{pattern}/*" if pattern.endswith("**") else pattern):
        if path.is_file() and path.resolve().is_relative_to(root):
            yield path
