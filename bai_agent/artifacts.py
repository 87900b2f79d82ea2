"""Keeps the files that the benchmark made and the descriptor asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bai_agent.errors import StoreError
from bai_agent.store import JobStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kept:
    """How many files were kept, their bytes, and a sentence for each that was not."""

    files: int
    bytes: int
    warnings: tuple[str, ...]


def keep_artifacts(
    globs: Sequence[str], *, folder: Path, store: JobStore, prefix: str, stopping: Callable[[], bool]
) -> Kept:
    """Copy what `globs` match below `folder` into `store` under `prefix`, with their relative paths as names.

    Ends between two files when `stopping()`; a file that cannot be kept is a warning, not an error.
    """
    files, size, warnings = 0, 0, []
    found = dict.fromkeys(path for pattern in globs for path in _matches(folder, pattern))
    for index, path in enumerate(found):
        if stopping():
            warnings.append(f"{len(found) - index} artifacts were not kept: there was no time left.")
            break
        name = path.relative_to(folder).as_posix()
        try:
            store.put_file(f"{prefix}{name}", path)
            size += path.stat().st_size
        except (StoreError, OSError) as error:
            warnings.append(f"The artifact {name} was not kept: {error}")
            continue
        files += 1
    for pattern in globs:
        if next(_matches(folder, pattern), None) is None:
            warnings.append(f'No file matched output.artifacts "{pattern}" in {folder}.')
    return Kept(files, size, tuple(warnings))


def _matches(folder: Path, pattern: str) -> Iterator[Path]:
    root = folder.resolve()
    # "**" alone means folders to pathlib and everything to people.
    for path in folder.glob(f"{pattern}/*" if pattern.endswith("**") else pattern):
        if path.is_file() and path.resolve().is_relative_to(root):
            yield path
