"""Decompressed streams of archives, whose memory is bounded by us and not by what a header asks for."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
from typing import IO, cast

WINDOW_LIMIT = 128 << 20
"""Bytes that a decompressor may look back on. `xz -9` takes 64 MiB, `zstd --ultra -22` 128 MiB; a header may ask for 4 GiB."""
_LZMA_MEMORY = WINDOW_LIMIT + (16 << 20)
"""The window, and what liblzma needs beside it."""
_CHUNK = 64 << 10
TOO_LARGE = (
    f"asks for more memory to be unpacked than the {WINDOW_LIMIT >> 20} MiB that are allowed; "
    "pack it again with a smaller window or dictionary"
)


class ArchiveError(Exception):
    """The file is not an archive that we read, or it is damaged; the text is the end of a sentence."""


def decompressed(file: IO[bytes], start: bytes) -> IO[bytes]:
    """Return what `file`, which begins with `start`, holds; `file` itself where it is not compressed. Raises ArchiveError."""
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
    """An .xz or .lzma file of one stream or several. `lzma.LZMAFile` takes no limit of memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream: lzma.LZMADecompressor | None = None
        self._ahead = b""
        """Read from the file, and not yet given to a stream."""

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
                    raise EOFError("it ends in the middle of the compressed data")
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
        """Begin with the next stream; return False where there is none."""
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
    # libzstd refuses windows above 128 MiB by itself (ZSTD_WINDOWLOG_LIMIT_DEFAULT).
    if sys.version_info >= (3, 14):
        from compression import zstd

        return cast(IO[bytes], _Zstd(zstd.ZstdFile(file), zstd.ZstdError))
    try:
        import zstandard
    except ImportError as error:
        raise ArchiveError(
            "is a zstd archive, and this Python lacks the package zstandard; install it"
        ) from error
    reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False)
    return cast(IO[bytes], _Zstd(reader, zstandard.ZstdError))


class _Zstd:
    """A zstd stream, whose error is of another module in each Python and so becomes ours here."""

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
