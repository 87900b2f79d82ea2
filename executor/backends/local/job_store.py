"""Where the jobs of this machine are."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from bai_agent.errors import StoreError
from bai_agent.job.store import scheme_of
from bai_agent.job.store.directory import DirectoryStore
from executor.backends.backend import named_store
from executor.errors import UsageError


def store_at(folder: str | Path | None, *, exists: bool = False) -> DirectoryStore:
    """Return the store of this machine's jobs: `folder`, else what BAI_STORE names, else ~/.bai/jobs.

    exists: a `folder` must be there, as somebody looks for jobs in it; else it is made with its first job.
    Raises UsageError, StoreError.
    """
    named = str(folder) if folder is not None else named_store(None) or ""
    if not is_local(named):
        raise UsageError(f"{named} is not a folder, which jobs on this machine need; name one with --store")
    if scheme_of(named) == "file":
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
        raise UsageError(f"the job store {path} is not a folder; name one with --store or BAI_STORE")
    return DirectoryStore(path)


def is_local(named: str) -> bool:
    """Return whether `named` is a folder of this machine, rather than a store elsewhere."""
    return scheme_of(named) in ("", "file")
