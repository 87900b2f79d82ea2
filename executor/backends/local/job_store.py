"""Where the jobs of this machine are."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager
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


def check_own(store: Path, job: str = "") -> None:
    """Raise UsageError unless `store`, and what is there of the folders on the way to `job`'s nodes, are this user's own.

    What another user wrote, or what a link leads to, is read and never acted on: a file of it may name any process and any
    folder. A store may be root's, as one for several users is.
    """
    user = os.geteuid()
    with _readable(store):
        owner = store.stat().st_uid if store.exists() else user
        if owner not in (user, 0):
            raise UsageError(_whose(store, "the job store", owner) + "; name one of your own with --store")
        folder = store / job
        below = ("attempts", "attempts/*", "attempts/*/nodes", "attempts/*/nodes/*") if job else ()
        for each in (folder, *(place for pattern in below for place in sorted(folder.glob(pattern)))):
            if each == store:
                continue
            status = each.lstat() if each.exists() or each.is_symlink() else None
            if status is not None and stat.S_ISLNK(status.st_mode):
                raise UsageError(f"{each} is a symbolic link, and a job behind one is only looked at")
            if status is not None and status.st_uid != user:
                raise UsageError(_whose(each, "the job's folder", status.st_uid))


def _whose(folder: Path, what: str, owner: int) -> str:
    try:
        name = f'"{pwd.getpwuid(owner).pw_name}"'
    except KeyError:
        name = str(owner)
    return f"{what} {folder} belongs to the user {name}, and is only looked at: that user may do this"


@contextmanager
def _readable(store: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"the job store {store} cannot be read: {error.strerror}") from error
