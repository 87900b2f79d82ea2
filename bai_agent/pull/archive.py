"""Reads archives as a stream of members: tar (plain, gzip, bzip2, xz, zstd) and zip, recognised by content.

The memory for decompression is bounded by limits of this module, not by sizes in a file's header.
"""

from __future__ import annotations

import bz2
import calendar
import errno
import gzip
import lzma
import os
import stat
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import IO, cast

from bai_agent.light_dataclass import dataclass

__all__ = ["ArchiveError", "ArchiveMember", "MemberContent", "MemberKind", "open_archive"]

_LINK_LIMIT = 4096
"""Longest target of a symbolic link (PATH_MAX)."""
_BLOCK = 512
_HEADERS_LIMIT = 4 << 20
"""Largest size of one tar member's headers: name, extended attributes and sparse map (bytes). tarfile keeps
these headers in memory."""
_SKIP = 1 << 20
_LATEST = 2.0**33
"""Latest accepted modification time of a member, in the year 2242 (seconds since the epoch)."""
WINDOW_LIMIT = 128 << 20
"""Largest window of a decompressor (bytes). `xz -9` uses 64 MiB, `zstd --ultra -22` 128 MiB, but a header can
request 4 GiB."""
_LZMA_MEMORY = WINDOW_LIMIT + (16 << 20)
"""Memory limit of liblzma (bytes): the window and liblzma's own overhead."""
_CHUNK = 64 << 10
TOO_LARGE = (
    f"needs more than the allowed {WINDOW_LIMIT >> 20} MiB of memory to be unpacked; "
    "pack the archive again with a smaller window or dictionary"
)


class ArchiveError(Exception):
    """The file is damaged or not a supported archive. The message continues a sentence that begins with the
    file's name."""


class MemberKind(Enum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "symbolic link"
    HARD_LINK = "hard link"
    DEVICE = "device, FIFO or socket"


class MemberContent:
    """File-like content of an archive member. Reading damaged content raises ArchiveError."""

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
class ArchiveMember:
    """An archive member. The content of a member must be read before the next member is requested."""

    name: str
    kind: MemberKind
    size: int
    mode: int
    mtime: float | None
    target: str
    """Target of a link, as stored in the archive."""
    open: Callable[[], MemberContent]


@contextmanager
def open_archive(path: Path) -> Iterator[Iterator[ArchiveMember]]:
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
        # Errors in the caller's `with` block are not translated to ArchiveError, because they can have causes
        # other than the archive.
        yield members


class _Metered:
    """The archive's bytes. While a member's headers are read, the number of bytes is limited."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content = content
        self.left = float(_HEADERS_LIMIT)  # opening the archive reads the first header

    def read(self, size: int) -> bytes:
        if self.left <= 0:
            raise ArchiveError(
                f"is damaged or malicious: a member's headers are larger than {_HEADERS_LIMIT >> 20} MiB"
            )
        piece = self._content.read(size)
        self.left -= len(piece)
        return piece


def _tar_members(tar: tarfile.TarFile, metered: _Metered) -> Iterator[ArchiveMember]:
    while True:
        with _translated():
            metered.left = _HEADERS_LIMIT
            info = tar.next()
            metered.left = float("inf")
        if info is None:
            return
        # The list is cleared, because tarfile keeps every member in this list, which takes a kilobyte per
        # member.
        tar.members = []  # type: ignore[attr-defined]
        yield ArchiveMember(
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
    """Skip the unread content of the last member except for one byte, which tarfile's `next` needs.

    tarfile itself would try to skip the full size that a member's header states, even in a truncated archive.
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


def _zip_members(archive: zipfile.ZipFile, file: IO[bytes]) -> Iterator[ArchiveMember]:
    for info in archive.infolist():
        with _translated():
            _check_window(info, file)
        mode = info.external_attr >> 16
        target = ""
        if info.filename.endswith("/"):  # not is_dir(), which fails for a member without a name
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
        yield ArchiveMember(
            name=info.filename,
            kind=kind,
            size=info.file_size,
            mode=stat.S_IMODE(mode) or 0o644,
            mtime=_zip_time(info),
            target=target,
            open=partial(_zip_content, archive, info),
        )


def _check_window(info: zipfile.ZipInfo, file: IO[bytes]) -> None:
    """Raise ArchiveError if a member compressed with LZMA requests too much memory, because zipfile has no
    such limit.

    APPNOTE.TXT, 4.3.7 and 5.8 (https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT): the local
    header's 30 bytes, the name and the extra field are followed by a version, the length of the LZMA
    properties, and the properties. The LZMA properties are a byte and the dictionary's size.
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
    """Return a member's modification time; None if the time is too late for some file systems."""
    return max(0.0, seconds) if seconds < _LATEST else None


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise ArchiveError("needs more memory to be unpacked than is available") from error
    except tarfile.ReadError as error:
        raise ArchiveError(
            "is not an archive that can be unpacked (tar, tar.gz, tar.bz2, tar.xz, tar.zst, zip), or damaged"
        ) from error
    except lzma.LZMAError as error:
        if "memory" in str(error).lower():
            raise ArchiveError(TOO_LARGE) from error
        raise ArchiveError(f"is damaged: {error}") from error
    # A name in a zip archive may not match its encoding flag (UnicodeDecodeError).
    except (
        *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, struct.error),
        *(EOFError, UnicodeDecodeError),
    ) as error:
        raise ArchiveError(f"is damaged: {error}") from error
    except (NotImplementedError, RuntimeError) as error:
        # zipfile raises these for unknown compressions and for passwords.
        raise ArchiveError(f"cannot be unpacked: {error}") from error
    except (ValueError, OverflowError) as error:
        # A position is before the file's start, or beyond the largest one.
        raise ArchiveError(f"is damaged: it refers to an impossible position ({error})") from error
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise ArchiveError("is damaged: it refers to an impossible position") from error
        if error.errno is not None:
            raise
        raise ArchiveError(f"is damaged: {error}") from error  # bz2 has no error class of its own


def decompressed(file: IO[bytes], start: bytes) -> IO[bytes]:
    """Return the decompressed content of `file`, which begins with `start`; `file` itself if it is not compressed. Raises ArchiveError."""
    if start.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if start.startswith(b"BZh"):
        return cast(IO[bytes], bz2.BZ2File(file))
    if start.startswith((b"\xfd7zXZ\x00", b"\x5d\x00\x00")):
        return cast(IO[bytes], _Lzma(file))
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd(file)
    return file


class _Lzma:
    """An .xz or .lzma file with any number of streams. `lzma.LZMAFile` has no memory limit."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream: lzma.LZMADecompressor | None = None
        self._ahead = b""
        """Bytes read from the file and not yet passed to a stream."""

    def read(self, size: int) -> bytes:
        while True:
            if self._stream is None and not self._begin():
                return b""
            assert self._stream is not None
            content = b""
            if self._stream.needs_input:
                content = self._ahead or self._file.read(_CHUNK)
                self._ahead = b""
                if not content:
                    raise EOFError("the compressed data ends too early")
            piece = self._stream.decompress(content, size)
            if self._stream.eof:
                self._ahead, self._stream = self._stream.unused_data, None
            if piece:
                return piece

    def __enter__(self) -> _Lzma:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream = None

    def _begin(self) -> bool:
        """Begin the next stream; return False if the file has no further stream."""
        while True:
            self._ahead = self._ahead or self._file.read(_CHUNK)
            if not self._ahead:
                return False
            if not self._ahead.startswith(b"\0"):
                break
            self._ahead = self._ahead.lstrip(b"\0")
        self._stream = lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)
        return True


def _zstd(file: IO[bytes]) -> IO[bytes]:
    # libzstd itself refuses windows above 128 MiB (ZSTD_WINDOWLOG_LIMIT_DEFAULT).
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError as error:
        raise ArchiveError(
            "is a zstd archive, and this Python lacks the package backports.zstd; install backports.zstd"
        ) from error
    return cast(IO[bytes], _Zstd(cast(IO[bytes], zstd.ZstdFile(file)), zstd.ZstdError))


class _Zstd:
    """A zstd stream. The stream's errors are translated to ArchiveError, because their class depends on the
    version of Python."""

    def __init__(self, stream: IO[bytes], error: type[Exception]) -> None:
        self._stream = stream
        self._error = error

    def read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except self._error as error:
            if "memory" in str(error):  # "Frame requires too much memory for decoding"
                raise ArchiveError(TOO_LARGE) from error
            raise ArchiveError(f"is damaged: {error}") from error

    def __enter__(self) -> _Zstd:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
