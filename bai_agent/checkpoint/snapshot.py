"""Captures all files of the checkpoint folder at one moment, while the benchmark continues.

Each file gets a hard link in the run directory, so the file's content remains even if the benchmark renames
or deletes the file. The folder is listed before and after the links are made, and the two listings must be
equal. A file that is rewritten in place is detected only by its size and time. Size and time are checked
again after the upload.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from bai_agent.errors import CheckpointError
from bai_agent.files.new_files import NO_DESCRIPTOR, NO_LINKS, link_descriptor
from bai_agent.files.user_rights import User, open_as, user_rights
from bai_agent.generations.checkpoint_marker import MOST_FILES, leads_inside
from bai_agent.job.run_directory import make_folder
from bai_agent.light_dataclass import dataclass

STAGING = ".bai-restore"
"""Subfolder into which a checkpoint is downloaded before the checkpoint's files replace the folder's
content."""
_STEPS_S = 0.05
"""Time in which two writes to a file can leave the same modification time (seconds). The kernel's clock for
modification times advances in steps of up to 10 ms."""
_PAUSE_S = 0.2
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)
"""Error numbers that mean that a name now belongs to another file, or to no file."""


class FileVersion(NamedTuple):
    """A file at the time of a listing."""

    inode: int
    size: int
    mtime_ns: int
    link: str | None = None
    """The target of a symbolic link."""


@dataclass(frozen=True, kw_only=True)
class FolderListing:
    """The content of a folder."""

    files: Mapping[str, FileVersion]
    """Files and symbolic links in the folder, by their paths. The links lead to names within the folder."""
    skipped: tuple[str, ...] = ()
    """Names of entries that a checkpoint leaves out: pipes, sockets, devices, and links out of the folder."""

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.files.values())


class _ChangedError(Exception):
    """The folder is being written to. The error's message is the name of a changed file."""


def list_folder(folder: Path, *, user: User | None) -> FolderListing:
    """List the content of the folder, with the rights of `user`. Raises CheckpointError, OSError."""
    found: dict[str, FileVersion] = {}
    skipped: list[str] = []
    pending = [""]
    with user_rights(user):
        while pending:
            below = pending.pop()
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    name = below + entry.name
                    status = entry.stat(follow_symlinks=False)
                    target = str(Path(entry.path).readlink()) if stat.S_ISLNK(status.st_mode) else None
                    version = FileVersion(status.st_ino, status.st_size, status.st_mtime_ns, target)
                    if name == STAGING:
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        pending.append(f"{name}/")
                    elif stat.S_ISREG(status.st_mode):
                        found[name] = version
                    elif target is not None and leads_inside(name, target):
                        found[name] = version._replace(size=0)
                    else:
                        skipped.append(name)
                    if len(found) > MOST_FILES:
                        raise CheckpointError(f"{folder} has more than {MOST_FILES:,} files")
    return FolderListing(files=dict(sorted(found.items())), skipped=tuple(sorted(skipped)))


class Snapshot:
    """The files of a folder at one moment."""

    def __init__(self, listing: FolderListing, place: Path) -> None:
        self.listing = listing
        self.time_ns = time.time_ns()
        self.paths: dict[str, Path] = {}
        """Name of a file in the folder → path at which the captured content can be read."""
        self._place = place
        self._descriptors: list[int] = []
        shutil.rmtree(place, ignore_errors=True)
        make_folder(place, private=place.parent)

    def hold(self, folder: Path, name: str, *, user: User | None) -> None:
        """Make a hard link to one file, so that the file's content remains. Raises _ChangedError,
        CheckpointError."""
        try:
            descriptor = open_as(user, folder / name, follow=False)
        except OSError as error:
            raise _open_error(error, folder / name) from error
        path = self._place / f"{len(self.paths):06}"
        try:
            if _version(os.fstat(descriptor)) != self.listing.files[name]:
                raise _ChangedError(name)
            link_descriptor(descriptor, path)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise _ChangedError(name) from error  # the file has been deleted
            if error.errno not in NO_LINKS:
                raise
            # The run directory is on another file system, so the file is kept open instead.
            path = Path(f"/proc/self/fd/{descriptor}")
            self._descriptors.append(descriptor)
            descriptor = -1
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        self.paths[name] = path

    def rewritten(self) -> str | None:
        """Return the name of a file that was written to after the file was captured; None if no file was
        written to."""
        for name, path in self.paths.items():
            if _version(path.stat()) != self.listing.files[name]:
                return name
        return None

    def release(self) -> None:
        """Remove the links and close the files."""
        for each in self._descriptors:
            os.close(each)
        self._descriptors.clear()
        shutil.rmtree(self._place, ignore_errors=True)


def take_snapshot(
    folder: Path,
    *,
    user: User | None,
    place: Path,
    until: float,
    over: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> Snapshot:
    """Return the files of `folder` at one moment, linked below `place`. The caller releases the returned
    snapshot.

    until: time at which the capture of a folder that keeps changing is given up (`time.monotonic()`). Raises
    CheckpointError.
    """
    while True:
        try:
            return _take(folder, user=user, place=place)
        except _ChangedError as changed:
            if over() or time.monotonic() >= until:
                raise CheckpointError(f"{folder / str(changed)} was written to at every check") from None
        except OSError as error:
            raise CheckpointError(f"{error.filename or folder}: {error.strerror or error}") from error
        sleep(_PAUSE_S)


def _take(folder: Path, *, user: User | None, place: Path) -> Snapshot:
    before = _list_again(folder, user=user)
    now = time.time()
    for name, each in before.files.items():
        # A second write within the same step of the kernel's clock would not change the modification time.
        if 0 <= now - each.mtime_ns / 1e9 < _STEPS_S:
            raise _ChangedError(name)
    snapshot = Snapshot(before, place)
    try:
        for name, each in before.files.items():
            if each.link is None:
                snapshot.hold(folder, name, user=user)
        after = _list_again(folder, user=user)
        if after != before:
            changed = dict(after.files.items() ^ before.files.items()) or dict.fromkeys(
                {*after.skipped} ^ {*before.skipped}
            )
            raise _ChangedError(min(changed))
    except BaseException:
        snapshot.release()
        raise
    return snapshot


def _list_again(folder: Path, *, user: User | None) -> FolderListing:
    try:
        return list_folder(folder, user=user)
    except OSError as error:
        # A subfolder disappeared while it was listed.
        if error.errno in _GONE and folder.exists():
            raise _ChangedError(os.path.relpath(error.filename or folder, folder)) from error
        raise


def _version(status: os.stat_result) -> FileVersion:
    return FileVersion(status.st_ino, status.st_size, status.st_mtime_ns)


def _open_error(error: OSError, path: Path) -> Exception:
    if error.errno in _GONE:
        return _ChangedError(path.name)
    if error.errno in NO_DESCRIPTOR:
        return CheckpointError(f"{path.parent} has more files than this process may hold open")
    return CheckpointError(f"{path} cannot be read: {error.strerror}")
