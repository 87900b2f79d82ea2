"""Kills this process if a search takes too long, because a search by Python's `re` cannot be interrupted from
within.

A search by `re` blocks all Python code of the process until the search returns. Therefore, a CPU timer sends
a signal whose default action is termination, and the kernel ends the process.
"""

from __future__ import annotations

import mmap
import signal
import struct
from typing import NamedTuple

LIMIT_SECONDS = 1.0
"""CPU time limit for one pattern on one line (seconds)."""
ENDS_WITH = signal.SIGVTALRM
"""Signal that ends a process whose search took too long."""

_MARK = struct.Struct("<qqqq")
"""Content of a mark: the metric's index + 1 (0: no search), the number of truncations of the log before the line, the
line's offset, and the log's number + 1 (0: output.log).
"""
MARK_BYTES = _MARK.size


class SearchLimit:
    """The `Guard` of an extraction. The guard records the current search in `mark`, a memory page that
    survives the process.

    With `mark`, the timer is set for each search. Without `mark`, the timer is set once per few
    hundred lines, because such a timer takes almost no time.
    """

    def __init__(self, mark: mmap.mmap | None = None) -> None:
        self.careful = mark is not None
        self.truncations = 0
        """Number of truncations of the log before the block that is being searched."""
        self.log: int | None = None
        """Number of the process's log to which the block belongs. None for output.log."""
        self._mark = mark
        self._left = LIMIT_SECONDS
        # The signal's default action is restored, because a process inherits signals that its parent ignored
        # or blocked.
        signal.signal(ENDS_WITH, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {ENDS_WITH})

    def lines(self) -> None:
        if not self.careful:
            signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_SECONDS)

    def search(self, index: int, offset: int) -> None:
        assert self._mark is not None
        log = 0 if self.log is None else self.log + 1
        _MARK.pack_into(self._mark, 0, index + 1, self.truncations, offset, log)
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_SECONDS)

    def rest(self) -> None:
        self._left = signal.setitimer(signal.ITIMER_VIRTUAL, 0)[0]

    def resume(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, self._left or LIMIT_SECONDS)


class MarkedSearch(NamedTuple):
    """A search that is recorded in a mark."""

    metric: int
    """Index of the metric."""
    truncations: int
    """Number of truncations of the log before the line."""
    offset: int
    """Offset of the line."""
    log: int | None
    """Number of the process's log that contains the line. None for output.log."""


def marked_search(mark: bytes) -> MarkedSearch | None:
    """Return the search in a mark; None before the first search."""
    if len(mark) < MARK_BYTES:
        return None
    number, truncations, offset, log = _MARK.unpack_from(mark)
    return MarkedSearch(number - 1, truncations, offset, log - 1 if log else None) if number else None
