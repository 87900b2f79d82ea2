"""Access to folders and files for the benchmark's user, if the benchmark runs as a user other than the
agent's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bai_agent.benchmark.children import kill
from bai_agent.errors import SetupError
from bai_agent.files.user_rights import User, writable_folder

_SEARCH = 0o011
"""Mode bits that let other users open a file in a folder if they know its name, but not list the folder."""

_LIMIT_S = 30.0
"""Time limit for the check whether the user can enter a few folders (seconds). Without the limit, a hanging
file system would block the check."""

# A shell tries to enter the folders, so that the kernel decides, because access lists, capabilities and mount
# options all matter.
_ENTER = 'for folder do cd "$folder" 2>/dev/null || { printf %s "$folder"; exit 9; }; done'


def open_way(rundir: Path, *, top: Path) -> None:
    """Let every user pass through the private folders from `top` down to `rundir`. Only the owner can list
    these folders.

    Folders of other users, and folders above `top`, are not changed. Raises OSError.
    """
    way = [folder for folder in (rundir, *rundir.parents) if folder.is_relative_to(top)]
    for folder in way or [rundir]:
        status = folder.stat()
        if status.st_uid == os.geteuid() and status.st_mode & _SEARCH != _SEARCH:
            folder.chmod((status.st_mode & 0o7777) | _SEARCH)


def give_to(user: User, path: Path) -> None:
    """Make the user the owner of a file or folder. Files in the folder keep their owners. Only the agent's
    user may write in the parent folder. Raises SetupError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fchown(descriptor, user.uid, user.gid)
    except PermissionError:
        raise _not_theirs(user, path) from None
    finally:
        os.close(descriptor)


def give_all_to(user: User, folder: Path) -> None:
    """Make the user the owner of one of bai's folders and of everything in the folder. A folder that the user
    already owns is not changed. Raises SetupError.

    Other users cannot replace a file during the change, because they cannot enter the folder. The owner of
    the folder itself changes last.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid == user.uid:
            return
        os.fchmod(descriptor, 0o700)
        for _, folders, files, at in os.fwalk(".", dir_fd=descriptor, topdown=False):
            for name in (*folders, *files):
                os.chown(name, user.uid, user.gid, dir_fd=at, follow_symlinks=False)
        os.fchown(descriptor, user.uid, user.gid)
        os.fchmod(descriptor, status.st_mode & 0o777)
    except PermissionError:
        raise _not_theirs(user, folder) from None
    finally:
        os.close(descriptor)


def _not_theirs(user: User, path: Path) -> SetupError:
    return SetupError(
        f'[benchmark] user "{user.name}": bai cannot make the user the owner of {path}; only root may run a '
        "benchmark as another user: leave the key out"
    )


def require_own_way(user: User, rundir: Path) -> None:
    """Raise SetupError if the user could replace the run directory or a folder above it."""
    folder = writable_folder(user, rundir)
    if folder is not None:
        raise SetupError(
            f'[benchmark] user "{user.name}" can write into {folder}, so that user could replace everything in {rundir}; '
            "keep the job elsewhere (--store or BAI_STORE; bai-agent: --dir)"
        )


def require_access(user: User, folders: Sequence[Path]) -> None:
    """Raise SetupError if the user cannot enter one of `folders`; the message names the folder that denies
    access."""
    way = list(dict.fromkeys(each for folder in folders for each in (*reversed(folder.parents), folder)))
    try:
        child = subprocess.Popen(
            ["/bin/sh", "-c", _ENTER, "sh", *way],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            user=user.uid,
            group=user.gid,
            extra_groups=user.groups,
        )
    except PermissionError:
        raise SetupError(
            f'[benchmark] user "{user.name}": only root may run a benchmark as another user; leave the key out'
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError(f'[benchmark] user "{user.name}" cannot run /bin/sh: {error}') from error
    try:
        output, _ = child.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        kill(child)
        raise SetupError(
            f'[benchmark] user "{user.name}" could not enter {folders[-1]} within {_LIMIT_S:g} s; does a file system hang?'
        ) from None
    if child.returncode != 0:
        blocked = os.fsdecode(output) or str(folders[-1])
        raise SetupError(
            f'[benchmark] user "{user.name}" cannot enter {blocked}, which leads to the benchmark\'s folder {folders[-1]}: '
            f"run `chmod o+x` on the first folder, or keep the job elsewhere (--store or BAI_STORE; bai-agent: --dir)"
        )
