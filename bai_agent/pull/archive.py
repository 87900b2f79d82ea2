"""Reading archives as a stream of members: tar (plain, gzip, bzip2, xz, zstd) and zip, told by content, not by name."""

from __future__ import annotations

import calendar
import errno
import gzip
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import IO, cast

from bai_agent.pull.decompress import TOO_LARGE, WINDOW_LIMIT, ArchiveError, decompressed

__all__ = ["ArchiveError", "Member", "MemberContent", "MemberKind", "open_archive"]

_LINK_LIMIT = 4096
"""PATH_MAX: no symbolic link's target is longer."""
_BLOCK = 512
_HEADERS_LIMIT = 4 << 20
"""Bytes that a tar archive may say about one member: name, extended attributes, sparse map. tarfile keeps all of it in memory."""
_SKIP = 1 << 20
_LATEST = 2.0**33
"""Seconds since the epoch, in the year 2242."""


class MemberKind(Enum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "symbolic link"
    HARD_LINK = "hard link"
    DEVICE = "device, FIFO or socket"


class MemberContent:
    """A member's content; a damaged one raises ArchiveError."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content = content

    def read(self, size: int) -> bytes:
        with _translated():
            return self._content.read(size)

    def __enter__(self) -> MemberContent:
        return self

    def __exit__(self, *_: object) -> None:
        self._content.close()


@dataclass(frozen=True)
class Member:
    """One member; its content can be read until the next one is asked for."""

    name: str
    kind: MemberKind
    size: int
    mode: int
    mtime: float | None
    target: str
    """Of a link: where it points to, as the archive says it."""
    open: Callable[[], MemberContent]


@contextmanager
def open_archive(path: Path) -> Iterator[Iterator[Member]]:
    """Open the archive `path` for one pass over its members. Raises ArchiveError, also from the iterator."""
    with ExitStack() as stack:
        with _translated():
            file = stack.enter_context(path.open("rb"))
            start = file.read(_BLOCK)
            file.seek(0)
            if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
                members = _zip_members(stack.enter_context(zipfile.ZipFile(file)), file)
            else:
                metered = _Metered(stack.enter_context(decompressed(file, start)))
                tar = stack.enter_context(tarfile.open(fileobj=cast(IO[bytes], metered), mode="r|"))
                members = _tar_members(tar, metered)
        # What goes wrong while somebody uses them is not always the archive's fault.
        yield members


class _Metered:
    """An archive's bytes, of which no more than some are given away while a member's headers are read."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content = content
        self.left = float(_HEADERS_LIMIT)  # opening the archive reads the first header

    def read(self, size: int) -> bytes:
        if self.left <= 0:
            raise ArchiveError(
                f"is damaged, or made to do harm: a member's headers are larger than {_HEADERS_LIMIT >> 20} MiB"
            )
        piece = self._content.read(size)
        self.left -= len(piece)
        return piece


def _tar_members(tar: tarfile.TarFile, metered: _Metered) -> Iterator[Member]:
    while True:
        with _translated():
            metered.left = _HEADERS_LIMIT
            info = tar.next()
            metered.left = float("inf")
        if info is None:
            return
        # tarfile keeps every member it has seen, a kilobyte each.
        tar.members = []  # type: ignore[attr-defined]
        yield Member(
            name=info.name,
            kind=_tar_kind(info),
            size=info.size,
            mode=info.mode,
            mtime=_time(float(info.mtime)),
            target=info.linkname,
            open=partial(_tar_content, tar, info),
        )
        with _translated():
            _pass_over_content(tar)


def _pass_over_content(tar: tarfile.TarFile) -> None:
    """Leave the last member behind, but for a byte: `next` wants to read that one.

    tarfile itself would go on in an archive that has ended, for as long as the size in a header says.
    """
    stream = tar.fileobj
    assert stream is not None
    while (ahead := tar.offset - 1 - stream.tell()) > 0:
        if not stream.read(min(ahead, _SKIP)):
            raise ArchiveError("is damaged: it ends in the middle of a member")


def _tar_kind(info: tarfile.TarInfo) -> MemberKind:
    if info.isreg():
        return MemberKind.FILE
    if info.isdir():
        return MemberKind.FOLDER
    if info.issym():
        return MemberKind.LINK
    if info.islnk():
        return MemberKind.HARD_LINK
    return MemberKind.DEVICE


def _zip_members(archive: zipfile.ZipFile, file: IO[bytes]) -> Iterator[Member]:
    for info in archive.infolist():
        with _translated():
            _check_window(info, file)
        mode = info.external_attr >> 16
        target = ""
        if info.filename.endswith("/"):  # not is_dir(): it cannot do with a member that has no name
            kind = MemberKind.FOLDER
        elif stat.S_ISLNK(mode):
            kind = MemberKind.LINK
            with _translated():
                if info.file_size > _LINK_LIMIT:
                    raise ArchiveError(
                        f'is damaged: the link "{info.filename}" has a target of {info.file_size:,} bytes'
                    )
                target = archive.read(info).decode("utf-8", "surrogateescape")
        elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
            kind = MemberKind.FILE
        else:
            kind = MemberKind.DEVICE
        yield Member(
            name=info.filename,
            kind=kind,
            size=info.file_size,
            mode=stat.S_IMODE(mode) or 0o644,
            mtime=_zip_time(info),
            target=target,
            open=partial(_zip_content, archive, info),
        )


def _check_window(info: zipfile.ZipInfo, file: IO[bytes]) -> None:
    """Raise ArchiveError where a member that LZMA has packed asks for too much memory: zipfile would give it all.

    APPNOTE.TXT, 4.3.7 and 5.8 (https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT): after the local header's 30 bytes,
    the name and the extra field come a version, the properties' length, and the properties: a byte, and the dictionary's size.
    """
    if info.compress_type != zipfile.ZIP_LZMA:
        return
    header = os.pread(file.fileno(), 30, info.header_offset)
    name, extra = struct.unpack_from("<HH", header, 26)
    length, _, dictionary = struct.unpack(
        "<HBI", os.pread(file.fileno(), 9, info.header_offset + 30 + name + extra)[2:]
    )
    if length >= 5 and dictionary > WINDOW_LIMIT:
        raise ArchiveError(TOO_LARGE)


def _tar_content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> MemberContent:
    with _translated():
        return MemberContent(cast(IO[bytes], tar.extractfile(info)))


def _zip_content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> MemberContent:
    with _translated():
        return MemberContent(archive.open(info))


def _zip_time(info: zipfile.ZipInfo) -> float | None:
    try:
        return _time(float(calendar.timegm((*info.date_time, 0, 0, 0))))
    except (ValueError, OverflowError):
        return None


def _time(seconds: float) -> float | None:
    """Return a member's time, if it is one that every file system can keep; an archive may say what it likes."""
    return max(0.0, seconds) if seconds < _LATEST else None


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise ArchiveError("needs more memory to be unpacked than there is") from error
    except tarfile.ReadError as error:
        raise ArchiveError(
            "is not an archive that can be unpacked (tar, tar.gz, tar.bz2, tar.xz, tar.zst, zip), or damaged"
        ) from error
    except lzma.LZMAError as error:
        if "memory" in str(error).lower():
            raise ArchiveError(TOO_LARGE) from error
        raise ArchiveError(f"is damaged: {error}") from error
    except (
        tarfile.TarError,
        EOFError,
        UnicodeDecodeError,  # a name in a zip archive that is not as its flag says
        struct.error,
        zlib.error,
        zipfile.BadZipFile,
        gzip.BadGzipFile,
    ) as error:
        raise ArchiveError(f"is damaged: {error}") from error
    except (
        NotImplementedError,
        RuntimeError,
    ) as error:  # zipfile's words for unknown compressions and for passwords
        raise ArchiveError(f"cannot be unpacked: {error}") from error
    except (
        ValueError,
        OverflowError,
    ) as error:  # a place before the file's start, or beyond what a file can have
        raise ArchiveError(f"is damaged: it says that something is where nothing can be ({error})") from error
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise ArchiveError("is damaged: it says that something is where nothing can be") from error
        if error.errno is not None:
            raise
        raise ArchiveError(f"is damaged: {error}") from error  # bz2 has no error of its own
