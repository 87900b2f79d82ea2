"""Finds a pattern whose search of one line takes more than a second, and disables this pattern for the rest
of the log.

`search_limit.py` kills the extractor process during a slow search, and the agent starts the next extractor
process.

1. The first extractor process sets a timer once per few hundred lines. Such a timer takes almost no time, but does not show
   which pattern is slow.

2. If the timer's signal ends this process, the agent starts the next process with the flag `careful`. With this flag, a
   process sets the timer for each search, and records each search in a mapped file, which still has the record after a kill.

3. If the timer's signal also ends the second process, the agent starts the third process with the additional flag `blame`.
   The third process writes into a file that the recorded pattern is disabled from the slow line on. Every later process reads
   this file. In logs other than the slow line's log, the pattern is disabled from the log's current position on.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from bai_agent.job.descriptor.metric_tables import About, Metric
from bai_agent.job.run_directory import append_line, open_append
from bai_agent.job.schema.tables import marked_keys
from bai_agent.metrics.follow import LogPosition
from bai_agent.metrics.logs import OUTPUT, source_of_number
from bai_agent.metrics.records import wait_for_room
from bai_agent.metrics.search_limit import LIMIT_SECONDS, MARK_BYTES, marked_search


class SwitchOff(NamedTuple):
    """The position in a log from which on a metric's pattern is not searched."""

    truncations: int
    """Number of truncations of the log before the line; `gen` in the file."""
    off: int
    i: int
    src: str = OUTPUT


def open_mark(path: Path) -> mmap.mmap:
    """Return the memory in which a careful process records its searches. The memory is mapped from a file
    that `blame` reads."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The file is written instead of only extended, because a page without a disk block would cause a SIGBUS
        # on a full disk.
        wait_for_room(lambda: _clear(descriptor), path=path)
        return mmap.mmap(descriptor, MARK_BYTES)
    finally:
        os.close(descriptor)


def blame(
    mark: Path, switched_off: Path, *, places: Mapping[str, LogPosition] = MappingProxyType({})
) -> SwitchOff | None:
    """Disable the pattern that was searching when a process with the flag `careful` was killed. The disabled search is
    saved durably and returned. Return None if no search was recorded.

    places: the position in each log. In logs other than the slow line's log, the pattern is disabled from the log's position on,
    because a slow pattern is slow in all logs.
    """
    try:
        content = mark.read_bytes()
    except FileNotFoundError:
        return None
    if (search := marked_search(content)) is None:
        return None
    src = OUTPUT if search.log is None else source_of_number(search.log)
    found = SwitchOff(truncations=search.truncations, off=search.offset, i=search.metric, src=src)
    others = (
        SwitchOff(truncations=place.truncations, off=place.offset, i=found.i, src=other)
        for other, place in places.items()
        if other != src
    )
    _append(switched_off, [found, *others])
    return found


def read_switched_off(path: Path) -> list[SwitchOff]:
    """Return the disabled searches in the order of their detection. Each metric occurs once per log, with its first disabled
    line."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    first: dict[tuple[str, int], SwitchOff] = {}
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        table = json.loads(line)
        item = SwitchOff(truncations=table.pop("gen"), **table)
        key = item.src, item.i
        first[key] = min(first.get(key, item), item)
    return list(first.values())


def off_in(src: str, switched_off: Sequence[SwitchOff]) -> list[SwitchOff]:
    """Return the searches that are disabled in one log. In a log that appeared after a search was disabled, the search is
    disabled from the first line on."""
    own = {each.i: each for each in switched_off if each.src == src}
    others = {each.i for each in switched_off} - own.keys()
    return [*own.values(), *(SwitchOff(truncations=0, off=0, i=i, src=src) for i in others)]


def switch_off_warnings(
    switched_off: Sequence[SwitchOff], metrics: Sequence[Metric], *, files: Mapping[str, str]
) -> list[str]:
    """Return a sentence for each metric whose search was switched off. files: the name of each log, by source."""
    first = {each.i: each for each in reversed(switched_off)}
    sentences = []
    for each in sorted(first.values(), key=switched_off.index):
        metric = metrics[each.i]
        keys = ["pattern", *(key for key in marked_keys(Metric, About.LINES_ABOVE) if getattr(metric, key))]
        pattern = " or ".join(filter(None, [", ".join(keys[:-1]), keys[-1]]))
        sentences.append(
            f'metric "{metric.name}": its {pattern} took more than {LIMIT_SECONDS:g} s of CPU time on the line at '
            f"byte {each.off} of {files.get(each.src, each.src)} and was switched off from there on. Repeated groups within "
            "repeats, such as (a+)+, are the usual cause"
        )
    return sentences


def _append(path: Path, items: Sequence[SwitchOff]) -> None:
    lines = b"".join(json.dumps(_table(item)).encode() + b"\n" for item in items)
    descriptor = open_append(path)
    try:
        wait_for_room(lambda: append_line(descriptor, lines), path=path)
    finally:
        os.close(descriptor)


def _table(item: SwitchOff) -> dict[str, object]:
    table = item._asdict()
    return {"gen": table.pop("truncations"), **table}


def _clear(descriptor: int) -> None:
    os.pwrite(descriptor, bytes(MARK_BYTES), 0)
