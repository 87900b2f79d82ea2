"""Where the jobs of this machine are."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from bai_agent.errors import StoreError
from bai_agent.job.store.directory import DirectoryStore
from executor.errors import UsageError


def store_at(folder: str | Path | None, *, exists: bool = False) -> DirectoryStore:
    """Return the store of this machine's jobs: `folder`, else what BAI_STORE names, else ~/.bai/jobs.

    exists: a `folder` must be there, as somebody looks for jobs in it; else it is made with its first job.
    Raises UsageError, StoreError.
    """
    named = str(folder) if folder is not None else os.environ.get("BAI_STORE") or ""
    if named.startswith("s3://"):
        raise UsageError(
            f"{named} holds jobs on EC2; jobs on this machine need a folder: name one with --store"
        )
    if named.startswith("file://"):
        named = os.fsdecode(unquote_to_bytes(urlsplit(named).path))
    chosen = Path(named) if named else Path.home() / ".bai" / "jobs"
    path = Path(os.path.abspath(chosen.expanduser()))  # noqa: PTH100 - resolve() would follow links
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        if exists and folder is not None:
            raise UsageError(f"the job store {path} does not exist; name another with --store") from None
        is_folder = True
    except OSError as error:
        raise StoreError(
            f"the job store {path} cannot be read: {error.strerror}; name another with --store or BAI_STORE"
        ) from error
    if not is_folder:
        raise UsageError(f"the job store {path} is no folder; name one with --store or BAI_STORE")
    return DirectoryStore(path)
