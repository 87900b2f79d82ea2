"""Ends this process when a search takes too long: one by Python's `re` cannot be interrupted from within.

No Python code runs until such a search returns. So the kernel does it: a timer of CPU time sends a signal whose default
action ends the process.
"""

from __future__ import annotations

import mmap
import signal
import struct
from typing import NamedTuple

LIMIT_SECONDS = 1.0
"""CPU time of one pattern on one line."""
ENDS_WITH = signal.SIGVTALRM
"""What a process dies of whose search took too long."""

_MARK = struct.Struct("<qqqq")
"""The metric's index + 1 (0: nothing was searched), the line's generation and offset, the log's number + 1 (0: output.log)."""
MARK_BYTES = _MARK.size


class SearchLimit:
    """The `Guard` of an extraction. With a `mark`, memory that outlives the process, it notes there which search it is at.

    The timer is then set for each search; without, only for each few hundred lines, at next to no cost.
    """

    def __init__(self, mark: mmap.mmap | None = None) -> None:
        self.careful = mark is not None
        self.generation = 0
        """Of the block that is being searched."""
        self.log: int | None = None
        """The number of the process's log that the block is of; None: output.log."""
        self._mark = mark
        self._left = LIMIT_SECONDS
        # A parent may have left the signal ignored or blocked, and both are inherited.
        signal.signal(ENDS_WITH, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {ENDS_WITH})

    def lines(self) -> None:
        if not self.careful:
            signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_SECONDS)

    def search(self, index: int, offset: int) -> None:
        assert self._mark is not None
        log = 0 if self.log is None else self.log + 1
        _MARK.pack_into(self._mark, 0, index + 1, self.generation, offset, log)
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_SECONDS)

    def rest(self) -> None:
        self._left = signal.setitimer(signal.ITIMER_VIRTUAL, 0)[0]

    def resume(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, self._left or LIMIT_SECONDS)


class MarkedSearch(NamedTuple):
    """The search that a mark tells of."""

    metric: int
    """Its index."""
    generation: int
    offset: int
    """Of the line."""
    log: int | None
    """The number of the process's log that the line is in; None: output.log."""


def marked_search(mark: bytes) -> MarkedSearch | None:
    """Return what a mark tells of; None before the first search."""
    if len(mark) < MARK_BYTES:
        return None
    number, generation, offset, log = _MARK.unpack_from(mark)
    return MarkedSearch(number - 1, generation, offset, log - 1 if log else None) if number else None
