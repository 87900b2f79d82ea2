"""Ends this process when a search takes too long: one by Python's `re` cannot be interrupted from within.

No Python code runs until such a search returns. So the kernel does it: a timer of CPU time sends a signal whose default
action ends the process.
"""

from __future__ import annotations

import mmap
import signal
import struct

LIMIT_SECONDS = 1.0
"""CPU time of one pattern on one line."""
ENDS_WITH = signal.SIGVTALRM
"""What a process dies of whose search took too long."""

_MARK = struct.Struct("<qqq")
"""The metric's index + 1 (0: nothing was searched), the line's generation and offset."""
MARK_BYTES = _MARK.size


class SearchLimit:
    """The `Guard` of an extraction. With a `mark`, memory that outlives the process, it notes there which search it is at.

    The timer is then set for each search; without, only for each few hundred lines, at next to no cost.
    """

    def __init__(self, mark: mmap.mmap | None = None, *, limit: float = LIMIT_SECONDS) -> None:
        self.careful = mark is not None
        self.generation = 0
        """Of the block that is being searched."""
        self._mark = mark
        self._limit = limit
        self._left = limit
        # A parent may have left the signal ignored or blocked, and both are inherited.
        signal.signal(ENDS_WITH, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {ENDS_WITH})

    def lines(self) -> None:
        if not self.careful:
            signal.setitimer(signal.ITIMER_VIRTUAL, self._limit)

    def search(self, index: int, offset: int) -> None:
        assert self._mark is not None
        _MARK.pack_into(self._mark, 0, index + 1, self.generation, offset)
        signal.setitimer(signal.ITIMER_VIRTUAL, self._limit)

    def rest(self) -> None:
        self._left = signal.setitimer(signal.ITIMER_VIRTUAL, 0)[0]

    def resume(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, self._left or self._limit)


def marked_search(mark: bytes) -> tuple[int, int, int] | None:
    """Return the metric's index, the line's generation and its offset, as a mark tells them; None before the first search."""
    if len(mark) < MARK_BYTES:
        return None
    number, generation, offset = _MARK.unpack_from(mark)
    return (number - 1, generation, offset) if number else None
