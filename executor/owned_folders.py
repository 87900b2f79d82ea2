"""Manages this user's cache folder, and folders that each belong to one process. If a process is killed, a
later process removes the folders of the killed process."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from bai_agent.errors import BusyError
from bai_agent.job.run_directory import locked, make_folder, write_atomic

_LOCK = "lock"
"""Name of the lock file in an owned folder. The process that owns the folder holds the lock as long as it
runs."""
_TRIES = 20
_KEPT = 5
"""Number of most recently used files that are kept in each folder of the cache. Several files are kept
because other versions of `bai` may use them at the same time."""
_IN_USE_S = 3600.0
"""Time after its last use for which a file of the cache is never removed (seconds). A launch uploads a file
within minutes of writing the file into the cache."""


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return this user's cache folder for wheels, bundles and indexes of jobs. Raises RuntimeError if the
    user has no home folder."""
    named = environment.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "bai"


def in_cache(path: Path) -> bool:
    """Return whether the cache contains `path`. Record that a file in the cache was just used."""
    with suppress(OSError):  # The cache may belong to another user.
        os.utime(path)
    return path.exists()


def keep_in_cache(path: Path, content: bytes) -> None:
    """Write a file into its folder of the cache, and remove files of that folder that have not been used
    recently. Raises OSError."""
    make_folder(path.parent, private=path.parent)
    write_atomic(path, content)
    with suppress(OSError):  # Another process may remove these files at the same time.
        used = sorted((each.stat().st_mtime, each) for each in path.parent.iterdir())
        for last, each in used[:-_KEPT]:
            if last < time.time() - _IN_USE_S:
                each.unlink()


def new_owned_folder(
    parent: Path, *, prefix: str = "", private: Path | None = None, stack: ExitStack
) -> Path:
    """Return a new folder in `parent`, and hold its lock until `stack` is closed. Raises OSError. private:
    the outermost of the newly created folders that other users may not enter; by default the returned folder.
    """
    last: OSError | None = None
    for _ in range(_TRIES):
        folder = parent / f"{prefix}{os.urandom(8).hex()}"
        try:
            make_folder(folder, private=private or folder)
            stack.enter_context(locked(folder / _LOCK))
        except BusyError:
            continue  # Another process is cleaning up this folder at the moment.
        except FileNotFoundError as error:
            # Another process has just removed the new folder, or no folder can be created in `parent`.
            last = error
        else:
            if folder.is_dir():
                return folder
    raise last or FileNotFoundError(None, "new folders are removed at once", str(parent))


def scratch_folder(prefix: str, *, near: Path | None = None, stack: ExitStack) -> Path:
    """Create a folder for temporary files and return its path. The folder is removed when `stack` is closed.
    Raises OSError. near: parent folder, which must belong to this user; by default the system's folder for
    temporary files.
    """
    # `tempfile` is imported here, because most commands create no temporary folder.
    from tempfile import gettempdir

    parent = near or Path(gettempdir())
    remove_unowned(parent, prefix=prefix, user=None if near else os.geteuid())
    folder = new_owned_folder(parent, prefix=prefix, stack=stack)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def remove_unowned(parent: Path, *, prefix: str = "", user: int | None = None) -> None:
    """Remove the folders in `parent` whose owning process was killed. A folder that cannot be removed is left
    for the next call. user: if set, remove only this user's folders, for a `parent` in which other users also
    create folders.
    """
    with suppress(OSError):
        for name in os.listdir(parent):  # noqa: PTH208 - the names alone
            folder = parent / name
            with suppress(BusyError, OSError):
                status = folder.lstat()
                mine = stat.S_ISDIR(status.st_mode) and user in (None, status.st_uid)
                if mine and name.startswith(prefix):
                    with locked(folder / _LOCK):
                        shutil.rmtree(folder, ignore_errors=True)
