"""Finds and opens the files of results. They are the benchmark's, whose user may put anything there."""

from __future__ import annotations

import io
import os
import stat
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from bai_agent.job.descriptor import Results
from bai_agent.job.globs import matching_files
from bai_agent.metrics.results.documents import size_limit

MOST_FILES = 1000
"""Of one table of results; what is beyond is counted."""
_OLDER_MS = 20
"""What a file system's clock may be behind."""


class UnfitFileError(Exception):
    """A file is not read; the text is the rest of a sentence about it."""


@dataclass(frozen=True)
class Matches:
    """The files of one table, in the order of their names."""

    paths: list[Path]
    more: bool
    """Whether there are others."""


def find_files(folder: Path, table: Results) -> Matches:
    """Return what the table's path matches. Raises OSError."""
    found = list(islice(matching_files(folder, table.path), MOST_FILES + 1))
    return Matches(sorted(set(found[:MOST_FILES])), len(found) > MOST_FILES)


def open_result(path: Path, *, folder: Path, table: Results, since_ms: int) -> io.BufferedReader:
    """Open a file of results.

    Raises UnfitFileError for what is no file, is not below `folder`, is too large, or was there at `since_ms` already; OSError.
    """
    # Without O_PATH the mere opening of a pipe or a device may wait, or do something.
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    opened = Path(f"/proc/self/fd/{place}")
    try:
        seen = os.fstat(place)
        if not stat.S_ISREG(seen.st_mode):
            raise UnfitFileError("is not a file")
        # Looked at only now: between the search and this, a link may have been put in its place.
        if not opened.readlink().is_relative_to(folder.resolve()):
            raise UnfitFileError("leads out of the benchmark's folder")
        if seen.st_size > (limit := size_limit(table)):
            raise UnfitFileError(f"has {seen.st_size:,} bytes; at most {limit:,} are read")
        if seen.st_ctime_ns < (since_ms - _OLDER_MS) * 1_000_000:
            raise UnfitFileError("was there before the benchmark began, and has not changed since")
        return opened.open("rb")
    finally:
        os.close(place)
