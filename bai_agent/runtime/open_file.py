"""A file that stays readable after it was deleted or renamed, because a benchmark can delete or rename its
own log."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from bai_agent.files.new_files import link_descriptor


class OpenFile:
    """A file that is opened as soon as it exists, and then stays open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def stat(self) -> os.stat_result | None:
        """Return the status of the file, even if it was renamed or deleted. None until the file exists for
        the first time."""
        if self._descriptor < 0:
            with suppress(FileNotFoundError, NotADirectoryError):
                # O_NONBLOCK is set, because a benchmark can replace the file by a FIFO, and opening a FIFO
                # would wait for a writer.
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return None if self._descriptor < 0 else os.fstat(self._descriptor)

    def size(self) -> int:
        """Return the file's size (bytes); 0 until the file exists for the first time."""
        status = self.stat()
        return 0 if status is None else status.st_size

    def link_again(self) -> None:
        """Link the open file to its original name again. Raises OSError, for example if the file has no other
        name left."""
        self.stat()
        link_descriptor(self._descriptor, self._path)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
