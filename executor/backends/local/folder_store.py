"""Opens the store of this machine's jobs, and checks who owns the store."""

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
    """Return the store of this machine's jobs in `folder`. If `folder` is None, BAI_STORE names the folder. Without
    BAI_STORE, the folder is ~/.bai/jobs.

    exists: whether the folder must already exist, for commands that look up jobs. If false, the folder is
    created with its first job. Raises UsageError, StoreError.
    """
    path = _chosen(folder)
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


def _chosen(folder: str | Path | None) -> Path:
    named = str(folder) if folder is not None else named_store(None) or ""
    if not is_local(named):
        raise UsageError(f"{named} is not a folder; name a folder for jobs on this machine with --store")
    if scheme_of(named) == "file":
        named = os.fsdecode(unquote_to_bytes(urlsplit(named).path))
    chosen = Path(named) if named else Path.home() / ".bai" / "jobs"
    return Path(os.path.abspath(chosen.expanduser()))  # noqa: PTH100 - resolve() would follow links


def is_local(named: str) -> bool:
    """Return whether `named` is a folder of this machine, not a store elsewhere."""
    return scheme_of(named) in ("", "file")


def check_own(store: Path, job: str = "") -> None:
    """Raise UsageError unless this user owns `store` and the existing folders of `job` and its nodes.

    Jobs of other users, and jobs behind a symbolic link, may only be read. The files of such a job may name any
    process to end and any folder to delete. The store itself may also belong to root, for example if several users
    share it.
    """
    user = os.geteuid()
    with _readable(store):
        owner = store.stat().st_uid if store.exists() else user
        if owner not in (user, 0):
            raise UsageError(_whose(store, "the job store", owner) + "; name your own store with --store")
        if job:
            _check_folders(store / job, user)


def _check_folders(job: Path, user: int) -> None:
    """Raise UsageError unless the job's folder and the folders of its nodes are folders that this user
    owns."""
    below = ("attempts", "attempts/*", "attempts/*/nodes", "attempts/*/nodes/*")
    for each in (job, *(place for pattern in below for place in sorted(job.glob(pattern)))):
        if not (each.exists() or each.is_symlink()):
            continue
        status = each.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise UsageError(f"{each} is a symbolic link, and bai only reads a job behind a link")
        if status.st_uid != user:
            raise UsageError(_whose(each, "the job's folder", status.st_uid))


def _whose(folder: Path, what: str, owner: int) -> str:
    try:
        name = f'"{pwd.getpwuid(owner).pw_name}"'
    except KeyError:
        name = str(owner)
    return f"{what} {folder} belongs to the user {name}, and only that user may change it"


@contextmanager
def _readable(store: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"the job store {store} cannot be read: {error.strerror}") from error
