"""Stores values that do not fit in memory in a file without a name. The file disappears when its process
ends, so a restarted process does not reuse it."""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from bai_agent.job.run_directory import write_all

MOST_SPILLED = 16_000_000
"""Maximum number of values in the file (128 MB)."""
_MOST_BLOCKS = 2**15
_PENDING = 2**17
"""Number of pending values, over all series, at which they are written to the file together."""


class SpillFile:
    """A file with all values of some series."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._count = self._blocks = self._pending = 0
        self._series: list[SpilledValues] = []
        self._is_full = False

    def begin(self) -> SpilledValues:
        """Create a series without values."""
        self._series.append(SpilledValues(self))
        return self._series[-1]

    def note(self, count: int) -> None:
        """Add `count` to the number of pending values. If there are too many, write the pending values of all series. Raises
        OSError if the file has no room.

        After an OSError, the file is empty.
        """
        self._pending += count
        if self._pending < _PENDING and not self._is_full:
            return
        self._pending = 0
        try:
            for series in self._series:
                series.write()
        except OSError:
            self._is_full = True
            if self._file is not None:
                # The file is emptied, because the benchmark possibly needs the disk space.
                self._file.truncate(0)
            raise

    def append(self, values: array[float]) -> int:
        """Append values to the file, and return the values' position. Raises OSError if the disk has no
        room."""
        place, self._count, self._blocks = self._count, self._count + len(values), self._blocks + 1
        if self._is_full or self._count > MOST_SPILLED or self._blocks > _MOST_BLOCKS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._file is None:
            # Imported here because few runs have so many values.
            from tempfile import TemporaryFile

            self._file = TemporaryFile(buffering=0, dir=self._folder)  # noqa: SIM115
        write_all(self._file.fileno(), values.tobytes())
        return place

    def read(self, place: int, count: int) -> array[float]:
        """Return values from the file. Raises OSError if some of the values are missing."""
        values = array("d")
        if self._file is not None:
            values.frombytes(os.pread(self._file.fileno(), count * values.itemsize, place * values.itemsize))
        if len(values) < count:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return values


class SpilledValues:
    """All values of one series, in their order."""

    def __init__(self, file: SpillFile) -> None:
        self._file = file
        self._places: list[tuple[int, int]] = []
        self._pending = array("d")

    def add(self, values: Sequence[float]) -> None:
        """Add the next values. Raises OSError."""
        for start in range(0, len(values), _PENDING):
            piece = values[start : start + _PENDING]
            self._pending.extend(piece)
            self._file.note(len(piece))

    def write(self) -> None:
        """Write the series' values that are not in the file yet. Raises OSError."""
        if self._pending:
            self._places.append((self._file.append(self._pending), len(self._pending)))
            self._pending = array("d")

    def blocks(self) -> Iterator[array[float]]:
        """Yield all values. Raises OSError if some values are missing."""
        for place, count in self._places:
            yield self._file.read(place, count)
        yield self._pending
