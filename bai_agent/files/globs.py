"""The globs by which a descriptor names files that the benchmark writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def matching_files(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the files that `pattern` matches and that lie in `folder`, wherever links in it lead. Raises OSError."""
    root = folder.resolve()
    # "**" alone means folders to pathlib and everything to people.
    for path in folder.glob(f"{pattern}/*" if pattern.endswith("**") else pattern):
        if path.is_file() and path.resolve().is_relative_to(root):
            yield path
