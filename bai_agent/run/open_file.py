"""A file that stays in reach although its name is taken away: a benchmark may delete or rename its own log."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class OpenFile:
    """Opened as soon as it is there, and kept open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def stat(self) -> os.stat_result | None:
        """Return what is known of the file, whatever its name is by now; None while there has not been any."""
        if self._descriptor < 0:
            with suppress(FileNotFoundError, NotADirectoryError):
                # A benchmark may put a FIFO there: to open that would otherwise wait for its writer.
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return None if self._descriptor < 0 else os.fstat(self._descriptor)

    def size(self) -> int:
        """Return the file's size, 0 while there has not been any."""
        status = self.stat()
        return 0 if status is None else status.st_size

    def link_again(self) -> None:
        """Give the file its name back. Raises OSError, as where no name of it is left at all."""
        self.stat()
        # With a folder's descriptor Python calls linkat, which follows the link in /proc to the file itself.
        folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.link(f"/proc/self/fd/{self._descriptor}", self._path, src_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(folder)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
