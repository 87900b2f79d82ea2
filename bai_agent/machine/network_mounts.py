"""Mounts a job's network file systems before the pull, and unmounts them at the job's end.

Before a file system is mounted, its target is listed in a file of the run directory. After a kill, another
agent unmounts the listed targets. Before the machine powers off, the guardian unmounts the targets that the
file still lists.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISVTX, S_IWGRP, S_IWOTH

from bai_agent.benchmark.children import Stopped, run_in_session
from bai_agent.errors import SetupError
from bai_agent.job.descriptor.source_tables import Mount, MountType
from bai_agent.machine.host_facts import mounts
from bai_agent.runtime.clock import call_with_deadline

log = logging.getLogger(__name__)

MOUNT_SECONDS = 60.0
"""Time limit for the file server's answer and the mount together (seconds)."""
NFS_PORT = 2049
_OPTIONS = "soft,timeo=150,retrans=2,nosuid,nodev"
"""Mount options. With the option "soft", calls fail when the server is gone, so a power-off does not wait for
the server. "timeo" is 15 s, the minimum that EFS recommends:
https://docs.aws.amazon.com/efs/latest/ug/mounting-fs-nfs-mount-settings.html
"""
_MOST_WORDS = 300
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
"""Flags of umount2(2)."""


class UnmountableError(Exception):
    """A file system cannot be mounted. The error's text is the end of a sentence about the file system."""


def mount_all(
    wanted: Sequence[Mount],
    record: Path,
    *,
    stopping: Callable[[], bool],
    seconds: float = MOUNT_SECONDS,
    port: int = NFS_PORT,
) -> None:
    """Mount the job's file systems that are not mounted yet. Return early if `stopping()` returns True.
    Raises SetupError.

    record: file of the run directory that lists the targets. seconds: time limit for each file system.
    """
    listed = _listed(record)
    for mount in wanted:
        if mount.target in listed and is_mounted(mount.target):
            continue
        try:
            _mount_here(
                mount, record, is_listed=mount.target in listed, stopping=stopping, seconds=seconds, port=port
            )
        except Stopped:
            return
        except UnmountableError as error:
            raise SetupError(
                f'[[mounts]] "{mount.src}" at {mount.target} cannot be mounted: {error}'
            ) from error
        log.info("mounted %s at %s", mount.src, mount.target)


def unmount_all(record: Path) -> None:
    """Unmount all targets that `record` lists, without waiting for servers or open files.

    Deletes `record` if none of the targets is mounted any more.
    """
    for target in reversed(_listed(record)):
        # Unmounted repeatedly, because the mount of a killed agent may be below the mount of the next agent.
        while is_mounted(target):
            if (problem := _detach(target)) is not None:
                log.warning("%s cannot be unmounted: %s", target, problem)
                break
    if not any(map(is_mounted, _listed(record))):
        record.unlink(missing_ok=True)


def _mount_here(
    mount: Mount, record: Path, *, is_listed: bool, stopping: Callable[[], bool], seconds: float, port: int
) -> None:
    """List the target in `record`, then mount the file system. Raises UnmountableError, Stopped."""
    deadline = time.monotonic() + seconds
    _require_rights(mount)
    _make_target(mount.target, run_directory=record.parent)
    with _held(mount.target):
        _require_unused(mount.target)
        if mount.server is not None:
            _require_server(mount.server, deadline=deadline, seconds=seconds, port=port, stopping=stopping)
        if not is_listed:
            with record.open("a") as file:
                file.write(f"{mount.target}\n")
        try:
            _mount(mount, deadline=deadline, seconds=seconds, stopping=stopping)
        except UnmountableError:
            # If the file system is already mounted, a mount that a killed agent began has succeeded in the
            # meantime.
            if not is_listed or not is_mounted(mount.target):
                raise


@contextmanager
def _held(target: str) -> Iterator[None]:
    """Lock the target folder, so that no other job's agent mounts a file system on it at the same time.
    Raises UnmountableError."""
    try:
        folder = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UnmountableError(f"{target}: {error.strerror}.") from error
    try:
        with suppress(OSError):  # some file systems have no locks
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UnmountableError("another job is mounting a file system at this target.") from error
        yield
    finally:
        os.close(folder)


def is_mounted(target: str) -> bool:
    """Return whether a file system is mounted at `target`. The file system's server is not contacted."""
    return any(fields[1] == target for fields in mounts(Path("/")))


def mount_arguments(mount: Mount) -> list[str]:
    """Return the command (without a shell) that mounts the file system."""
    first = "vers=4" if mount.type is MountType.NFS else "tls,iam" if mount.iam else "tls"
    return ["mount", "-t", mount.type.value, "-o", f"{first},{_OPTIONS}", mount.src, mount.target]


def _listed(record: Path) -> list[str]:
    try:
        return record.read_text().splitlines()
    except FileNotFoundError:
        return []


def _require_rights(mount: Mount) -> None:
    """Raise UnmountableError if this process may not mount, or the file system's program is missing."""
    if os.geteuid() != 0:
        raise UnmountableError(f"only root may mount, and the agent runs as user {os.geteuid()}.")
    if not mount.type.is_installed():
        other = (
            ', or write type = "nfs" and the DNS name of the file system'
            if mount.type is MountType.EFS
            else ""
        )
        raise UnmountableError(
            f"there is no {mount.type.program} on this machine. Install the package {mount.type.package}{other}."
        )


def _make_target(target: str, *, run_directory: Path) -> None:
    """Create the target folder if it is missing, and check that it can be used. Raises UnmountableError."""
    own = os.path.realpath(run_directory)
    if f"{own}/".startswith(f"{target}/") or target.startswith(f"{own}/"):
        raise UnmountableError(f"the folder is above or inside the run directory {own}.")
    path = Path("/")
    try:
        for part in Path(target).parts[1:]:
            path /= part
            with suppress(FileExistsError):
                path.mkdir(0o755)
            _require_folder(path, is_target=str(path) == target)
    except OSError as error:
        raise UnmountableError(f"{path}: {error.strerror}.") from error


def _require_unused(target: str) -> None:
    """Raise UnmountableError if a file system is mounted at `target`, or the folder is not empty."""
    if is_mounted(target):
        raise UnmountableError("another file system is mounted at this target.")
    try:
        if next(Path(target).iterdir(), None) is not None:
            raise UnmountableError("the folder is not empty. Name a new or an empty folder.")
    except OSError as error:
        raise UnmountableError(f"{target}: {error.strerror}.") from error


def _require_folder(path: Path, *, is_target: bool) -> None:
    """Raise UnmountableError unless `path` is a folder that no other user can replace.

    A folder above the target is also refused if another user can replace its subfolders.
    """
    status = path.lstat()
    if S_ISLNK(status.st_mode) or not S_ISDIR(status.st_mode):
        what = "a link" if S_ISLNK(status.st_mode) else "not a folder"
        raise UnmountableError(f"{path} is {what}.")
    if is_target:
        # In a folder that is writable for all users, such as /tmp, the target's owner can replace the target.
        replaceable, is_safe = path.parent, status.st_uid == 0 or not _is_writable(path.parent.lstat())
    else:
        is_kept = bool(status.st_mode & S_ISVTX) or not _is_writable(status)
        replaceable, is_safe = path, status.st_uid == 0 and is_kept
    if not is_safe:
        raise UnmountableError(
            f"another user could replace folders in {replaceable}. Name a folder elsewhere, for example "
            '"/efs".'
        )


def _is_writable(status: os.stat_result) -> bool:
    return bool(status.st_mode & (S_IWGRP | S_IWOTH))


def _require_server(
    server: str, *, deadline: float, seconds: float, port: int, stopping: Callable[[], bool]
) -> None:
    """Raise UnmountableError unless the server accepts a connection.

    The connection is checked before the mount, because a mount that hangs does not report the reason in time.
    """

    def connect() -> bool:
        with socket.create_connection((server, port), timeout=max(0.1, deadline - time.monotonic())):
            return True

    try:
        answered = call_with_deadline(
            connect, over=lambda: stopping() or time.monotonic() >= deadline, name=f"NFS server {server}"
        )
    except socket.gaierror as error:
        raise UnmountableError(f'the server "{server}" has no address ({error.strerror}).') from error
    except TimeoutError:
        answered = None
    except OSError as error:
        raise UnmountableError(f"{server} refuses connections to port {port} ({error.strerror}).") from error
    if answered is None:
        if stopping():
            raise Stopped
        raise UnmountableError(_silent(seconds))


def _silent(seconds: float) -> str:
    return (
        f"its server did not answer within {seconds:.0f} s. The server's security group, or its "
        f"firewall, must let this machine reach TCP port {NFS_PORT}."
    )


def _mount(mount: Mount, *, deadline: float, seconds: float, stopping: Callable[[], bool]) -> None:
    # The output goes to a file, because the TLS process of mount.efs keeps running and would keep a pipe
    # open.
    with tempfile.TemporaryFile() as output:
        try:
            env = {**os.environ, "LC_ALL": "C"}
            code = run_in_session(
                mount_arguments(mount), output, env=env, deadline=deadline, stopping=stopping, cwd="/"
            )
        except OSError as error:
            raise UnmountableError(f"mount cannot be started ({error.strerror}).") from error
        except subprocess.TimeoutExpired:
            raise UnmountableError(_silent(seconds)) from None
        output.seek(0)
        said = " ".join(output.read(1 << 16).decode(errors="replace").split())[-_MOST_WORDS:]
    if code != 0 and "timed out" in said.lower():
        raise UnmountableError(_silent(seconds))
    if code != 0:
        raise UnmountableError(said or f"mount ended with {code}")


def _detach(target: str) -> str | None:
    """Unmount the target lazily. Return the error message, or None after a success."""
    import ctypes  # only a job with mounts needs ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW) == 0:
        return None
    return os.strerror(ctypes.get_errno())
