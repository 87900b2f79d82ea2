"""Lets a thread of root's agent work on files as the benchmark's user, in folders that this user can write.

The user may replace names in a writable folder by links at any moment, even between two system calls.
Therefore root does not check names itself. The thread takes the user's own user id and groups, and the kernel
refuses any access that the user does not have. Linux has separate ids for file access in each thread
(credentials(7), setfsuid(2)). Other threads of the agent keep their user and group ids. The user cannot send
signals to the thread. The thread gives up root's capabilities over files (capabilities(7), "Effect of user ID
changes on capabilities").
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from bai_agent.light_dataclass import dataclass

_SETGROUPS = 116 if os.uname().machine == "x86_64" else 159
"""Number of the system call setgroups: 159 on arm64 and all later architectures
(include/uapi/asm-generic/unistd.h)."""
_MOST_LINKS = 40
"""Maximum number of links that the kernel follows in a path: path_resolution(7)."""
_ACL = "system.posix_acl_access"
_NO_ID = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class User:
    """The account that a benchmark runs as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


@contextmanager
def user_rights(user: User | None) -> Iterator[None]:
    """Let this thread open, make, change and remove files as `user`, until the context is left.

    user: None to change nothing. Do not start threads or processes in the context, because they would inherit
    the user's rights. Raises PermissionError if we are not root.
    """
    if user is None:
        yield
        return
    groups, gid, uid = os.getgroups(), _file_id("setfsgid"), _file_id("setfsuid")
    try:
        _set_groups(user.groups)
        _change_id("setfsgid", user.gid)
        _change_id("setfsuid", user.uid)
        yield
    finally:
        _change_id("setfsuid", uid)
        _change_id("setfsgid", gid)
        _set_groups(groups)


def folder_owner(folder: Path) -> User | None:
    """Return the owner of `folder` if this process runs as root and the owner is another user. Return None
    otherwise.

    Also return None if `folder` does not exist. The owner must not be able to write in the parent of
    `folder`.
    """
    if os.geteuid() != 0:
        return None
    try:
        status = folder.lstat()
    except OSError:
        return None
    if status.st_uid == 0:
        return None
    return _account(status.st_uid, status.st_gid)


@cache
def _account(uid: int, gid: int) -> User:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:  # a container's arbitrary uid
        return User(name=str(uid), uid=uid, gid=gid, groups=(), home="/")
    return user_of_entry(entry)


def user_of_entry(entry: pwd.struct_passwd) -> User:
    """Return the user of an entry in the account database, with all groups of the user."""
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return User(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, groups=groups, home=entry.pw_dir)


def open_as(user: User | None, path: Path, *, follow: bool = True) -> int:
    """Return a descriptor for reading a regular file that `user` can reach. Raises OSError.

    If the path is a FIFO, the call does not wait for a writer. Refuses a link through /proc to a file that
    this process has open but that `user` cannot reach.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    with user_rights(user):
        descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is not a file", str(path))
        if user is not None:
            _require_reach(user, descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def process_options(user: User | None, cwd: Path) -> Iterator[dict[str, Any]]:
    """Yield the arguments of `subprocess` that start a child as `user` in the folder `cwd`. Raises OSError.

    The folder is passed by its descriptor, because `subprocess` would enter a path while the child is still
    root.
    """
    if user is None:
        yield {"cwd": cwd}
        return
    with user_rights(user):
        # The path ends in a dot, so that the kernel refuses a folder that the user cannot enter.
        folder = os.open(f"{cwd}/.", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _require_reach(user, folder, cwd)
        yield {
            "cwd": f"/proc/self/fd/{folder}",
            "user": user.uid,
            "group": user.gid,
            "extra_groups": user.groups,
        }
    finally:
        os.close(folder)


def _require_reach(user: User, descriptor: int, path: Path) -> None:
    """Raise PermissionError if `user` cannot reach a file by its real name. path: the name by which the file
    was opened.

    The kernel lets a process open paths through /proc/self/cwd and /proc/self/fd without checking the parent
    folders of the real path.
    """
    place = Path(f"/proc/self/fd/{descriptor}").readlink()
    with user_rights(user):
        if not os.path.samestat(place.stat(), os.fstat(descriptor)):
            raise PermissionError(errno.EACCES, "the user may not access this file", str(path))


def may_change(user: User, path: Path) -> bool:
    """Return whether `user` can write to `path` or to a folder above or below it. Raises OSError.

    The result False means that all names in these folders are safe from the user. Root makes missing parent
    folders.
    """
    if writable_folder(user, path) is not None:
        return True
    return path.is_dir() and any(_can_write(user, Path(folder)) for folder, _, _ in os.walk(path.resolve()))


def writable_folder(user: User, path: Path) -> Path | None:
    """Return the first folder along `path` in which `user` can replace the next name of the path. Raises
    OSError.

    The result may be `path` itself. The result is None if all names of the path are safe from `user`.
    """
    parts = deque(path.parts[1:])
    at = Path("/")
    links = 0
    while True:
        status = at.lstat()
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = at.readlink()
            parts.extendleft(reversed([each for each in target.parts if each != "/"]))
            at = Path("/") if target.is_absolute() else at.parent
            continue
        if not stat.S_ISDIR(status.st_mode):
            return None
        if _can_exchange(user, at, status, parts[0] if parts else None):
            return at
        if not parts:
            return None
        name = parts.popleft()
        at = at.parent if name == ".." else at / name
        if not os.path.lexists(at):
            return None


def _can_exchange(user: User, folder: Path, status: os.stat_result, name: str | None) -> bool:
    """Return whether `user` can replace `name` in `folder`. If `name` is None, return whether `user` can
    write to `folder`."""
    if not _can_write(user, folder):
        return False
    if name is None or not status.st_mode & stat.S_ISVTX or status.st_uid == user.uid:
        return True
    # In a folder with the sticky bit, such as /tmp, only the owner of a file may remove it: inode(7).
    try:
        return (folder / name).lstat().st_uid == user.uid
    except FileNotFoundError:
        return True


def _can_write(user: User, folder: Path) -> bool:
    status = folder.lstat()
    if status.st_uid == user.uid or status.st_mode & stat.S_IWOTH:
        return True
    if not status.st_mode & stat.S_IWGRP:
        return False
    # If the folder has an access control list, the mode's group bits are the bits of the list's mask: acl(5).
    return status.st_gid in user.groups or _ACL in os.listxattr(folder)


@cache
def _libc() -> Any:
    # Imported here, because most jobs run as the agent's own user, and the import would delay the start of
    # every job.
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    for name in ("setfsuid", "setfsgid"):
        getattr(libc, name).argtypes = (ctypes.c_uint,)
        getattr(libc, name).restype = ctypes.c_uint
    return libc


def _file_id(function: str) -> int:
    """Return this thread's user or group id for file access. The system call returns the current id only when
    it sets an id. The argument -1 changes nothing."""
    return int(getattr(_libc(), function)(_NO_ID))


def _change_id(function: str, number: int) -> None:
    getattr(_libc(), function)(number)
    # The system call does not report whether it succeeded.
    if _file_id(function) != number:
        raise PermissionError(
            errno.EPERM, f"{function} to {number} is refused; only root may work as another user"
        )


def _set_groups(groups: Sequence[int]) -> None:
    """Set the groups of this thread alone. The C library's function `setgroups` is not used, because it sets
    the groups of all threads."""
    import ctypes

    numbers = (ctypes.c_uint * len(groups))(*groups)
    if _libc().syscall(ctypes.c_long(_SETGROUPS), ctypes.c_size_t(len(groups)), numbers) != 0:
        number = ctypes.get_errno()
        raise PermissionError(number, f"setgroups: {os.strerror(number)}; only root may work as another user")
