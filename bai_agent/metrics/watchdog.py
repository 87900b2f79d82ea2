"""Finds out which pattern searches a line for more than a second, and switches it off from there on.

`search_limit.py` ends the process that is at it, and the agent starts the next one.

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
from dataclasses import dataclass
from pathlib import Path

from bai_agent.job.run_directory import append_line, open_append
from bai_agent.metrics.disk import wait_for_room
from bai_agent.metrics.search_limit import MARK_BYTES, marked_search


@dataclass(frozen=True, order=True)
class SwitchOff:
    """A metric's pattern is not searched in this line of the log and those after it."""

    gen: int
    off: int
    i: int


def open_mark(path: Path) -> mmap.mmap:
    """Return the memory in which a careful process notes its searches: a file's, for `blame` to read."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Written, not only extended: a page without a block on a full disk would be a SIGBUS later.
        wait_for_room(lambda: _clear(descriptor), path=path)
        return mmap.mmap(descriptor, MARK_BYTES)
    finally:
        os.close(descriptor)


def blame(mark: Path, switched_off: Path) -> SwitchOff | None:
    """Switch off, durably, the search during which a careful process was ended; return it, None if it was in none."""
    try:
        content = mark.read_bytes()
    except FileNotFoundError:
        return None
    if (search := marked_search(content)) is None:
        return None
    i, gen, off = search
    line = json.dumps({"gen": gen, "off": off, "i": i}).encode() + b"\n"
    descriptor = open_append(switched_off)
    try:
        wait_for_room(lambda: append_line(descriptor, line), path=switched_off)
    finally:
        os.close(descriptor)
    return SwitchOff(gen=gen, off=off, i=i)


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


def _clear(descriptor: int) -> None:
    os.pwrite(descriptor, bytes(MARK_BYTES), 0)
