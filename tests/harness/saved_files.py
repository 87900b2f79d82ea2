"""Files of a folder of checkpoints, as a benchmark has saved them a while ago."""

from __future__ import annotations

import os
import time
from pathlib import Path


def save(path: Path, content: str, *, age_s: float = 10.0) -> None:
    """Write a file so many seconds ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    then = time.time() - age_s
    os.utime(path, (then, then))


def saved(folder: Path) -> dict[str, str]:
    """Return the contents of all files below a folder, by their paths there."""
    return {
        each.relative_to(folder).as_posix(): each.read_text() for each in folder.rglob("*") if each.is_file()
    }
