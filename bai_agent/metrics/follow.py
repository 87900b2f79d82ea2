"""Reads a growing file in blocks of complete lines, with constant memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from bai_agent.light_dataclass import dataclass, replace

CHUNK = 128 * 1024
"""Number of bytes per read. Larger reads are not faster, because they exceed the processor's cache."""
LINE_LIMIT = 2**20
"""Number of bytes of a line that are searched for metrics. Further bytes of the line are only counted."""


@dataclass(frozen=True)
class LineBlock:
    """Complete lines, each ended by a newline byte, which start at `offset` of the file.

    A carriage return that ends a line is replaced by a newline, so offsets do not change. A line that was truncated
    at the limit is a block of its own.
    """

    truncations: int
    """Number of truncations of the file before this block."""
    offset: int
    data: bytes
    repainted: frozenset[int] = frozenset()
    """Offsets of those lines that are states of a progress bar and were replaced by a later state; see
    `repaint.py`."""


@dataclass(frozen=True, kw_only=True)
class LogPosition:
    """Position of a follower in its file. All lines before `offset` have been processed."""

    truncations: int = 0
    """Number of truncations of the file."""
    offset: int = 0
    former: int = 0
    """Number of bytes that were read before the file was truncated."""
    lost: int = 0
    """Number of bytes that a truncation removed before they were searched."""
    unsearched: int = 0
    """Number of bytes that were not searched, because they were beyond `LINE_LIMIT` in their lines."""
    repeat: int = -1
    """Run whose output is being read, in a `[repeat]` job; -1 before the first run."""


def open_log(path: Path) -> int:
    """Return a descriptor for reading. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


class Follower:
    """Follows one file from a position on. If the file becomes shorter, it is regarded as truncated and read
    from its start.

    As soon as one of `paths` exists, the follower opens the first of these paths that exists, and keeps the
    file open. `seen` is the known size of the file. If `carriage_return` is True, a line ends at a newline or
    a carriage return. If `carriage_return` is False, a line ends only at a newline. `chunk` is at most
    `line_limit`. `opener` raises FileNotFoundError if there is no file.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        place: LogPosition | None = None,
        seen: int = 0,
        carriage_return: bool = True,
        chunk: int = CHUNK,
        line_limit: int = LINE_LIMIT,
        opener: Callable[[Path], int] = open_log,
    ) -> None:
        self.place = place or LogPosition()
        self.position = self.place.offset
        """Offset of the next read."""
        self.end: int | None = None
        """Offset up to which the file may be read for now. None means the file's end."""
        self._seen = max(seen, self.position)
        self._paths = paths
        self._carriage_return = carriage_return
        self._chunk = chunk
        self._limit = line_limit
        self._opener = opener
        self._descriptor = -1
        self._parts: list[bytes] = []
        self._held = 0

    @property
    def behind(self) -> bool:
        """Whether the file's known size is greater than the offset of the next read."""
        return self.position < (self._seen if self.end is None else min(self._seen, self.end))

    def size(self) -> int:
        """Return the file's size now; 0 if there is no file."""
        return os.fstat(self._descriptor).st_size if self._open() else 0

    @property
    def last(self) -> int:
        """Offset at which the content that may be read now ends."""
        return self.size() if self.end is None else min(self.size(), self.end)

    def read(self) -> tuple[bool, list[LineBlock]]:
        """Read one chunk; return whether the file had new content, and the lines that ended in the chunk.

        If the file became shorter, nothing is read and the position becomes the start of the truncated file.
        The caller must save the new position before the next call.
        """
        if not self._open():
            return False, []
        size = os.fstat(self._descriptor).st_size
        if size < self._seen:
            self._begin_again()
            return True, []
        self._seen = size
        if self.end is not None:
            size = min(size, self.end)
        if size <= self.position:
            return False, []
        data = os.pread(self._descriptor, min(self._chunk, size - self.position), self.position)
        if not data:
            return False, []
        return True, self._split(data)

    def finish(self) -> list[LineBlock]:
        """Return the file's last line, if that line has no newline."""
        return self._split(b"\n", in_file=False) if self.place.offset < self.position else []

    def skip(self, offset: int, *, repeat: int) -> None:
        """Continue at `offset`, where the run `repeat` begins. Call `finish` first.

        After a truncation and new output, `offset` may be before the bytes that were already read.
        """
        if offset < self.position:
            self._begin_again()
        self.place = replace(self.place, offset=offset, repeat=repeat)
        self.position = offset

    def stay_in(self, repeat: int) -> None:
        """Count the following bytes of the file as output of the run `repeat`."""
        self.place = replace(self.place, repeat=repeat)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> bool:
        if self._descriptor >= 0:
            return True
        for path in self._paths:
            try:
                self._descriptor = self._opener(path)
            except FileNotFoundError:
                continue
            return True
        return False

    def _begin_again(self) -> None:
        place = self.place
        self.place = replace(
            place,
            truncations=place.truncations + 1,
            offset=0,
            former=place.former + self.position,
            lost=place.lost + max(self._seen, self.position) - place.offset,
        )
        self.position = self._seen = 0
        self._parts, self._held = [], 0

    def _split(self, data: bytes, *, in_file: bool = True) -> list[LineBlock]:
        start = self.position
        if in_file:
            self.position += len(data)
        if self._carriage_return and b"\r" in data:
            data = data.replace(b"\r", b"\n")
        last = data.rfind(b"\n")
        if last < 0:
            self._hold(data)
            return []
        blocks: list[LineBlock] = []
        truncations, offset = self.place.truncations, self.place.offset
        unsearched = self.place.unsearched
        begin = 0
        first = data.find(b"\n")
        length = start - offset + first
        if length > self._limit:
            self._hold(data[:first])
            blocks.append(LineBlock(truncations, offset, b"".join(self._parts) + b"\n"))
            unsearched += length - self._limit
            self._parts, self._held = [], 0
            begin = first + 1
            offset = start + begin
        if begin <= last:
            whole = b"".join([*self._parts, memoryview(data)[begin : last + 1]])
            blocks.append(LineBlock(truncations, offset, whole))
        self._parts, self._held = [], 0
        end = start + last + 1 if in_file else self.position
        self.place = replace(self.place, offset=end, unsearched=unsearched)
        self._hold(data[last + 1 :])
        return blocks

    def _hold(self, data: bytes) -> None:
        keep = data[: self._limit - self._held]
        if keep:
            self._parts.append(keep)
            self._held += len(keep)
