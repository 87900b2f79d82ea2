"""Ends this process when a pattern searches a line for more than a second, and remembers which pattern it was.

A search by Python's `re` cannot be interrupted from within: no Python code runs until it returns. So the kernel does
it: a timer of CPU time sends SIGVTALRM, whose default action ends the process, and the agent starts the next one.

1. At first the timer is set anew for each few hundred lines: next to no cost, but no telling which pattern it was.
2. Ended by it, the process is started with `careful`: the timer is set for each search, and a mapped file holds which
   one it is. The file's page outlives the process.
3. Ended again, it is started with `blame` too: the search in that file is switched off from that line on, in a file
   that every later process reads.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
from dataclasses import dataclass
from pathlib import Path

from bai_agent.job.run_directory import append_line, open_append
from bai_agent.metrics.disk import wait_for_room

LIMIT_SECONDS = 1.0
"""CPU time of one pattern on one line."""

_MARK = struct.Struct("<qqq")
"""The metric's index + 1 (0: nothing was searched), the line's generation and offset."""


@dataclass(frozen=True, order=True)
class SwitchOff:
    """A metric's pattern is not searched in this line of the log and those after it."""

    gen: int
    off: int
    i: int


class Watchdog:
    """Bounds searches: the `Guard` of an extraction."""

    def __init__(self, mark: Path, *, careful: bool, limit: float = LIMIT_SECONDS) -> None:
        self.careful = careful
        self.generation = 0
        """Of the block that is being searched."""
        self._limit = limit
        self._left = limit
        # A parent may have left the signal ignored or blocked, and both are inherited.
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGVTALRM})
        self._mark = _map(mark) if careful else None

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


def blame(mark: Path, switched_off: Path) -> SwitchOff | None:
    """Switch off, durably, the search during which a careful process was ended; return it, None if it was in none."""
    try:
        content = mark.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) < _MARK.size:
        return None
    number, gen, off = _MARK.unpack_from(content)
    if number == 0:
        return None
    found = SwitchOff(gen=gen, off=off, i=number - 1)
    line = json.dumps({"gen": gen, "off": off, "i": number - 1}).encode() + b"\n"
    descriptor = open_append(switched_off)
    try:
        wait_for_room(lambda: append_line(descriptor, line), path=switched_off)
    finally:
        os.close(descriptor)
    return found


def read_switched_off(path: Path) -> list[SwitchOff]:
    """Return what is switched off, each metric once: from its first line on."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    first: dict[int, SwitchOff] = {}
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        value = json.loads(line)
        item = SwitchOff(gen=value["gen"], off=value["off"], i=value["i"])
        first[item.i] = min(first.get(item.i, item), item)
    return sorted(first.values())


def _map(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Written, not only extended: a page without a block on a full disk would be a SIGBUS later.
        wait_for_room(lambda: _clear(descriptor), path=path)
        return mmap.mmap(descriptor, _MARK.size)
    finally:
        os.close(descriptor)


def _clear(descriptor: int) -> None:
    os.pwrite(descriptor, bytes(_MARK.size), 0)
