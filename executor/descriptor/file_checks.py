"""Checks that look at this machine's disk."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from bai_agent.job.source_schemes import file_path
from executor.descriptor.raw_table import ERROR, Raw, RawFinding, at, items, text_of


def files(table: Raw, folder: Path) -> Iterator[RawFinding]:
    for where, source in items(table, "data", "sources"):
        source_path = local_path(text_of(source, "src"), folder)
        if source_path is not None and mode_of(source_path) is None:
            yield (
                (*where, "src"),
                f"{source_path} does not exist",
                "correct the path; a relative one starts at this file's folder",
                ERROR,
            )
    script = at(table, "ml", "script")
    path, archive, requirements = (text_of(script, key) for key in ("path", "script", "requirements"))
    scripts = folder / path
    place = ("ml", "script")
    if path and not path.startswith("~") and not stat.S_ISDIR(mode_of(scripts) or 0):
        what = "is not a folder" if mode_of(scripts) is not None else "does not exist"
        yield (
            (*place, "path"),
            f"{scripts} {what}",
            "name the folder with the scripts, relative to this file",
            ERROR,
        )
    elif requirements and path and not stat.S_ISREG(mode_of(scripts / requirements) or 0):
        yield (
            (*place, "requirements"),
            f"{scripts / requirements} is not a file",
            "name it relative to the folder in path",
            ERROR,
        )
    if path and archive:
        yield (*place, "script"), "stands beside path", "keep one of the two", ERROR
    elif archive and not stat.S_ISREG(mode_of(folder / archive) or 0):
        yield (
            (*place, "script"),
            f"{folder / archive} is not a file",
            "name an archive, or a folder with path",
            ERROR,
        )
    elif requirements and not path and not archive:
        yield (
            (*place, "path"),
            "is missing: requirements lies in the folder that it names",
            'add path = "."',
            ERROR,
        )


def local_path(src: str, folder: Path) -> Path | None:
    """Return the place on this disk that the source `src` means, or None where it means something else."""
    if not src.strip() or src.startswith("~"):
        return None
    return file_path(src) or (None if "://" in src else folder / src)


def mode_of(path: Path) -> int | None:
    """Return what stands at `path`; None where nothing does, or can: a path may be longer than any."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return None
