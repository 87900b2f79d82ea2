"""Maintains an index of the ended jobs in a folder, so that `bai list` reads the results of only those jobs
that it shows.

The index file is in this user's cache folder. An entry of the index is valid if the job's folder and the
job's `result.json` have not changed since the entry was made. Any change to a folder or a file changes its
`st_ctime`, which no program can set. A job without a valid entry is read from its folder. A missing or
damaged index, or an index of another version or folder, counts as empty.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from bai_agent.job.run_directory import make_folder, write_atomic
from executor.owned_folders import cache_folder
from executor.records.reading import read_each

_FORMAT = 1
"""Version of the index file, which is increased if the content of the file or the meaning of a field
changes."""
_WORTH = 64
"""An index file is written only if there are at least this many jobs, and at least this many changed
entries."""
_SETTLED_NS = 2_000_000_000
"""Minimum age of a file's last change (ns) at which the next change certainly changes the file's `st_ctime`.
An earlier change may leave `st_ctime` as it is, because clocks of file systems advance in steps."""
_DRAFT_AGE_S = 3600

_Files: TypeAlias = list[int]
"""Inode and change time of a job's folder, inode and change time of its result, and the result's size."""
_Entry: TypeAlias = tuple[_Files, "StartedJob"]


class StartedJob(NamedTuple):
    """A job, with the facts that are known without reading its descriptor."""

    job_id: str
    started: int
    """Start of the job (ms UTC); 0 if unknown."""
    status: str | None = None
    """Status and outcome of an ended job. None if the job still runs, or if its result lacks the status or
    the outcome."""
    outcome: str | None = None


def ended_jobs(
    folder: Path, job_ids: Sequence[str], read: Callable[[str], StartedJob | None]
) -> dict[str, StartedJob]:
    """Return the jobs with a result among all jobs of a store's folder.

    read: function that reads a job's result. `read` returns None if the result lacks a needed field, or if
    there is no such job.
    """
    file = _index_file(folder) if len(job_ids) >= _WORTH else None
    known = _load(file, folder) if file is not None else {}
    entries: dict[str, _Entry] = {}
    unknown: dict[str, _Files] = {}
    now = time.time_ns()
    for job_id in job_ids:
        if (files := _files(folder, job_id)) is None:
            continue
        entry = known.get(job_id)
        if entry is not None and entry[0] == files:
            entries[job_id] = entry
        else:
            unknown[job_id] = files
    outdated = len(known) - len(entries)
    found = {job_id: job for job_id, (_, job) in entries.items()}
    added = 0
    all_ended = read_each(read, list(unknown), folder=folder)
    for (job_id, files), ended in zip(unknown.items(), all_ended, strict=True):
        if ended is None:
            continue
        found[job_id] = ended
        if max(files[1], files[3]) < now - _SETTLED_NS:
            entries[job_id] = (files, ended)
            added += 1
    if file is not None and added + outdated >= _WORTH:
        _save(file, folder, entries)
    return found


def _files(folder: Path, job_id: str) -> _Files | None:
    """Return a value that changes whenever the job changes; None if the job has no result."""
    try:
        # Paths are strings here, because `Path` objects would double the time for ten thousand jobs.
        job = os.stat(f"{folder}/{job_id}")  # noqa: PTH116
        result = os.stat(f"{folder}/{job_id}/result.json")  # noqa: PTH116
    except OSError:
        return None
    return [job.st_ino, job.st_ctime_ns, result.st_ino, result.st_ctime_ns, result.st_size]


def _index_file(folder: Path) -> Path | None:
    """Return the path of a store's index; None without a home folder."""
    try:
        cache = cache_folder(os.environ)
    except RuntimeError:
        return None
    # `hashlib` is imported here, because it loads OpenSSL, and a folder with few jobs has no index.
    from hashlib import sha256

    return cache / "jobs" / f"{sha256(os.fsencode(folder)).hexdigest()[:32]}.v{_FORMAT}.json"


def _load(file: Path, folder: Path) -> Mapping[str, _Entry]:
    try:
        checksum, _, content = file.read_bytes().partition(b"\n")
        if int(checksum, 16) != zlib.crc32(content):
            return {}
        table = json.loads(content)
        if table["format"] != _FORMAT or table["folder"] != os.fspath(folder):
            return {}
        return {job[0]: (files, StartedJob(*job)) for files, job in table["jobs"]}
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return {}


def _save(file: Path, folder: Path, entries: Mapping[str, _Entry]) -> None:
    """Replace the index. If several commands replace the index at once, the last command wins."""
    table = {"format": _FORMAT, "folder": os.fspath(folder), "jobs": list(entries.values())}
    with suppress(OSError, ValueError):
        content = json.dumps(table, separators=(",", ":")).encode()
        make_folder(file.parent, private=file.parent)
        _remove_drafts(file.parent)
        write_atomic(file, b"%08x\n%b" % (zlib.crc32(content), content))


def _remove_drafts(folder: Path) -> None:
    """Remove unfinished files of commands that were killed while they wrote an index."""
    for draft in folder.glob(".*.tmp"):
        with suppress(OSError):
            if draft.stat().st_mtime < time.time() - _DRAFT_AGE_S:
                draft.unlink()
