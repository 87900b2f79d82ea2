"""A file that remains accessible after its name is gone, because a benchmark may delete or rename its own
log."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from bai_agent.files.new_files import link_descriptor


class OpenFile:
    """A file that is opened as soon as it exists, and that remains open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def stat(self) -> os.stat_result | None:
        """Return the status of the file, under any name; None until the file has existed."""
        if self._descriptor < 0:
            with suppress(FileNotFoundError, NotADirectoryError):
                # O_NONBLOCK is set, because a benchmark may put a FIFO there, and opening a FIFO would wait
                # for its writer.
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return None if self._descriptor < 0 else os.fstat(self._descriptor)

    def size(self) -> int:
        """Return the file's size (bytes); 0 until the file has existed."""
        status = self.stat()
        return 0 if status is None else status.st_size

    def link_again(self) -> None:
        """Restore the file's name. Raises OSError, for example if the file has no name left."""
        self.stat()
        link_descriptor(self._descriptor, self._path)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
