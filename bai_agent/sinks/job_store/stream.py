"""Uploads one growing file as a sequence of objects in the job store. Each object is named after the position
at which its content starts.

The last object is replaced as the file grows. When the last object is full, the next object begins. The
content is therefore in few objects, each upload can be repeated, and a restarted agent only needs to know the
start of the last object.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from bai_agent.light_dataclass import dataclass, replace

OBJECT_BYTES = 8 << 20
"""Size of a full object (bytes). The uploader never has more bytes than one object in memory."""


@dataclass(frozen=True, kw_only=True)
class UploadOffset:
    """Progress of a stream in the store. Positions are counted in the stream, not in the file."""

    start: int = 0
    """Position at which the last object starts."""
    sent: int = 0
    """Position at which the last object ends."""
    origin: int = 0
    """Position in the stream of the file's first byte. The position is greater than 0 after the file was
    truncated, because the stream continues."""
    lost: int = 0
    """Number of bytes that were lost in truncations of the file before they were sent."""


class StreamUpload:
    """Uploads one file to the store. Raises OSError and StoreError.

    put: function that uploads an object, given its start and its content. save: function that stores a
    position durably. whole_lines: whether text after the last newline is held back.
    """

    def __init__(
        self,
        path: Path,
        *,
        reached: UploadOffset,
        put: Callable[[int, bytes], None],
        save: Callable[[UploadOffset], None],
        whole_lines: bool = False,
        object_bytes: int = OBJECT_BYTES,
    ) -> None:
        self.reached = reached
        self._path = path
        self._put = put
        self._save = save
        self._whole_lines = whole_lines
        self._object_bytes = object_bytes
        self._descriptor = -1
        self._seen = 0

    def pending(self) -> int:
        """Return the number of bytes in the file that are not in the store. If the file was truncated, the number is at least
        1."""
        reached = self.reached
        size = self._size()
        if reached.origin + size < reached.sent:
            return max(1, size)
        return reached.origin + size - reached.sent

    def send(self) -> bool:
        """Send one object. Return whether more content can be sent at once."""
        size = self._size()
        if self.reached.origin + size < self.reached.sent:
            self._go_on_after_truncation()
        self._seen = size
        reached = self.reached
        offset = reached.start - reached.origin
        content = self._read(offset, min(self._object_bytes, size - offset))
        is_full = size - offset >= self._object_bytes
        if self._whole_lines and (end := content.rfind(b"\n") + 1):
            content = content[:end]
        elif self._whole_lines and not is_full:
            return False
        end = reached.start + len(content)
        if end <= reached.sent and not is_full:
            return False
        self._put(reached.start, content)
        self._reach(replace(reached, sent=end, start=end if is_full else reached.start))
        return is_full

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _go_on_after_truncation(self) -> None:
        reached = self.reached
        lost = max(0, reached.origin + self._seen - reached.sent)
        # The position is stored durably before anything is sent, because after a restart the file can be
        # larger than before.
        self._reach(
            UploadOffset(start=reached.sent, sent=reached.sent, origin=reached.sent, lost=reached.lost + lost)
        )

    def _reach(self, reached: UploadOffset) -> None:
        self.reached = reached
        self._save(reached)

    def _size(self) -> int:
        if self._descriptor < 0:
            try:
                # The file stays open, because a benchmark that deletes or replaces its log possibly still
                # writes to the open file.
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return 0
        return os.fstat(self._descriptor).st_size

    def _read(self, offset: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, offset) if length > 0 else b""
