"""Creates files that get their final name only when their content is complete."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from pathlib import Path

try:
    # Imported like this in the module `random` as well. hashlib is not imported, because it loads OpenSSL,
    # which takes milliseconds at each start.
    _SHA = import_module("_sha2" if sys.version_info >= (3, 12) else "_sha256")
except ImportError:
    _SHA = import_module("hashlib")

NO_LINKS = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)
"""Error numbers of `link` on file systems without hard links, such as FAT and many FUSE and SMB mounts:
link(2), "ERRORS"."""

NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
"""Errors of a process, or a machine, that has no file descriptor left."""

_LONGEST = 255
"""Maximum length of a file name (bytes): NAME_MAX of Linux's file systems."""
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


def draft_beside(path: Path, suffix: str) -> Path:
    """Return a hidden path beside `path` that ends in `suffix`.

    The new name contains the name of `path`, or a checksum of that name if the new name would be too long.
    """
    name = os.fsencode(path.name)
    if len(name) + len(suffix) + 1 > _LONGEST:
        return path.with_name(f".{name_digest(name)}{suffix}")
    return path.with_name(f".{path.name}{suffix}")


def name_digest(content: bytes) -> str:
    """Return the first 32 hexadecimal digits of the SHA-256 of `content`, for use in a file name."""
    return str(_SHA.sha256(content).hexdigest()[:32])


def place_new(draft: Path, path: Path) -> None:
    """Move the complete file `draft` to `path`. If `path` exists, raise FileExistsError and keep `draft`."""
    try:
        # A hard link is used, because linking fails if the name exists, but renaming replaces the existing
        # file.
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        _rename_new(draft, path)
    else:
        draft.unlink()


def _rename_new(draft: Path, path: Path) -> None:
    """Rename a file, but never replace an existing file. renameat2(2) lists the file systems that support
    this kind of rename."""
    # Imported here, because only file systems without hard links need ctypes.
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    number = errno.ENOSYS
    if rename is not None:
        if not rename(_AT_FDCWD, os.fsencode(draft), _AT_FDCWD, os.fsencode(path), _RENAME_NOREPLACE):
            return
        number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS):
        reason = "its file system supports neither hard links nor renames without replacement; use another file system"
        raise OSError(number, reason, str(path))
    raise OSError(number, os.strerror(number), str(path))


def link_descriptor(descriptor: int, path: Path) -> None:
    """Give the open file `descriptor` the name `path`, even if the file's original name was deleted. Raises
    OSError."""
    # With a folder's descriptor as argument, Python calls linkat, which follows the link in /proc to the file
    # itself.
    folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)
