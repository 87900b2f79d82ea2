"""Finds out which pattern searches a line for more than a second, and switches it off from there on.

`search_limit.py` ends the process that is at it, and the agent starts the next one.

1. At first the timer is set anew for each few hundred lines: next to no cost, but no telling which pattern it was.
2. Ended by it, the process is started with `careful`: the timer is set for each search, and a mapped file holds which
   one it is. The file's page outlives the process.
3. Ended again, it is started with `blame` too: the search in that file is switched off from that line on, in a file
   that every later process reads. In the other logs it is off from where they had been read to.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from bai_agent.job.run_directory import append_line, open_append
from bai_agent.metrics.follow import LogPosition
from bai_agent.metrics.logs import OUTPUT, log_of_number, source_of
from bai_agent.metrics.records import wait_for_room
from bai_agent.metrics.search_limit import MARK_BYTES, marked_search


@dataclass(frozen=True, order=True)
class SwitchOff:
    """A metric's pattern is not searched in this line of a log and those after it."""

    gen: int
    off: int
    i: int
    src: str = OUTPUT


def open_mark(path: Path) -> mmap.mmap:
    """Return the memory in which a careful process notes its searches: a file's, for `blame` to read."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Written, not only extended: a page without a block on a full disk would be a SIGBUS later.
        wait_for_room(lambda: _clear(descriptor), path=path)
        return mmap.mmap(descriptor, MARK_BYTES)
    finally:
        os.close(descriptor)


def blame(
    mark: Path, switched_off: Path, *, places: Mapping[str, LogPosition] = MappingProxyType({})
) -> SwitchOff | None:
    """Switch off, durably, the search during which a careful process was ended; return it, None if it was in none.

    places: how far the logs had been read. In the others the pattern is off from there on: one that is slow is so for all.
    """
    try:
        content = mark.read_bytes()
    except FileNotFoundError:
        return None
    if (search := marked_search(content)) is None:
        return None
    src = OUTPUT if search.log is None else source_of(*log_of_number(search.log))
    found = SwitchOff(gen=search.generation, off=search.offset, i=search.metric, src=src)
    others = (
        SwitchOff(gen=place.generation, off=place.offset, i=found.i, src=other)
        for other, place in places.items()
        if other != src
    )
    _append(switched_off, [found, *others])
    return found


def read_switched_off(path: Path) -> list[SwitchOff]:
    """Return what is switched off, in the order in which that was found; each metric once for each log: from its first line on."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    first: dict[tuple[str, int], SwitchOff] = {}
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        item = SwitchOff(**json.loads(line))
        key = item.src, item.i
        first[key] = min(first.get(key, item), item)
    return list(first.values())


def off_in(src: str, switched_off: Sequence[SwitchOff]) -> list[SwitchOff]:
    """Return what is off in one log: from its first line on where it has appeared since."""
    own = {each.i: each for each in switched_off if each.src == src}
    others = {each.i for each in switched_off} - own.keys()
    return [*own.values(), *(SwitchOff(gen=0, off=0, i=i, src=src) for i in others)]


def _append(path: Path, items: Sequence[SwitchOff]) -> None:
    lines = b"".join(json.dumps(asdict(item)).encode() + b"\n" for item in items)
    descriptor = open_append(path)
    try:
        wait_for_room(lambda: append_line(descriptor, lines), path=path)
    finally:
        os.close(descriptor)


def _clear(descriptor: int) -> None:
    os.pwrite(descriptor, bytes(MARK_BYTES), 0)
