"""Folders that one process works in, and that the next one removes where their owner was killed."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from contextlib import ExitStack, suppress
from pathlib import Path

from bai_agent.errors import BusyError
from bai_agent.job.run_directory import locked, make_folder

_LOCK = "lock"
"""Held as long as the owner lives."""
_TRIES = 20


def new_owned_folder(
    parent: Path, *, prefix: str = "", private: Path | None = None, stack: ExitStack
) -> Path:
    """Return a new folder in `parent`, whose lock is ours until `stack` ends. Raises OSError.

    private: the outermost folder that nobody else may enter where it is made; by default the new one.
    """
    last: OSError | None = None
    for _ in range(_TRIES):
        folder = parent / f"{prefix}{secrets.token_hex(8)}"
        try:
            make_folder(folder, private=private or folder)
            stack.enter_context(locked(folder / _LOCK))
        except BusyError:
            continue  # somebody cleans up here at this moment
        except FileNotFoundError as error:
            last = error  # and has just done so; or no folder can be made there
        else:
            if folder.is_dir():
                return folder
    raise last or FileNotFoundError(None, "new folders go away at once", str(parent))


def remove_unowned(parent: Path, *, prefix: str = "", user: int | None = None) -> None:
    """Remove the folders in `parent` whose owners were killed. What cannot be removed stays for the next one who tries.

    user: whose folders alone are looked at, where others may make some in `parent` too.
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
