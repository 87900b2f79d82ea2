"""Recognises the states of a progress bar that later states replaced. Some metrics are taken only from the
last state of a line.

A progress bar prints all its states into one line, and ends each state by a carriage return. Whether a state
is the line's last state is only known when the line ends or the next state follows. Therefore, the follower
does not return the newest state yet, and the saved position is before the newest state. A restarted process starts at the saved
position, and makes the same decision.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bai_agent.metrics.follow import Follower, LineBlock, LogPosition
from bai_agent.metrics.search.terminal import visible

_BLANK_LIMIT = 64 * 1024
"""Maximum number of bytes of states without visible characters that are skipped."""


class _Line(NamedTuple):
    """A line of a block, the line's end in the file, and whether a newline ended the line."""

    offset: int
    data: bytes
    end: int
    final: bool
    unsearched: int
    """Number of bytes before this line that were beyond the limit of long lines."""

    @property
    def is_blank(self) -> bool:
        return not visible(self.data).strip()


class RepaintFollower(Follower):
    """A follower whose blocks also list the states that later states replaced.

    A state also counts as the last state of its line if 64 KiB of states without visible characters follow.
    """

    def __init__(self, paths: Sequence[Path], *, place: LogPosition | None = None, **keys: Any) -> None:
        super().__init__(paths, place=place, **keys)
        self._read_place = self.place
        """Position up to which lines were read. `place` is the position up to which lines were returned."""
        self._waiting: list[_Line] = []

    def _begin_again(self) -> None:
        super()._begin_again()
        self._read_place = self.place
        self._waiting = []

    def skip(self, offset: int, *, repeat: int) -> None:
        super().skip(offset, repeat=repeat)
        self._read_place = self.place

    def stay_in(self, repeat: int) -> None:
        super().stay_in(repeat)
        self._read_place = replace(self._read_place, repeat=repeat)

    def _split(self, data: bytes, *, in_file: bool = True) -> list[LineBlock]:
        before = self.place = self._read_place
        start = self.position
        has_states = b"\r" in data
        newlines = {start + match.start() for match in re.finditer(b"\n", data)} if has_states else set()
        blocks = super()._split(data, in_file=in_file)
        self._read_place = self.place
        if not has_states and not self._waiting:
            return blocks
        lines = [*self._waiting, *self._lines_of(blocks, before, newlines if has_states else None)]
        repainted, settled = self._settle(lines)
        self._waiting = lines[settled:]
        if self._waiting:
            first = self._waiting[0]
            self.place = replace(self._read_place, offset=first.offset, unsearched=first.unsearched)
        return list(_as_blocks(lines[:settled], repainted, truncations=self.place.truncations))

    def _lines_of(
        self, blocks: Sequence[LineBlock], before: LogPosition, newlines: set[int] | None
    ) -> Iterator[_Line]:
        """Yield the lines of `blocks`. If `newlines` is None, a newline ended each line."""
        unsearched = before.unsearched
        for number, block in enumerate(blocks):
            # If a line was truncated, the block only contains the line's beginning. The line ends where the
            # next block begins.
            following = blocks[number + 1].offset if number + 1 < len(blocks) else self._read_place.offset
            offset = block.offset
            pieces = block.data[:-1].split(b"\n")
            for place, piece in enumerate(pieces, 1):
                end = offset + len(piece) if place < len(pieces) else max(offset + len(piece), following - 1)
                final = newlines is None or end in newlines
                if piece or final:
                    yield _Line(offset, piece, end, final, unsearched)
                offset = end + 1
            unsearched = self._read_place.unsearched

    def _settle(self, lines: Sequence[_Line]) -> tuple[set[int], int]:
        """Return the starts of the states that later states replaced, and the number of lines for which this
        is decided."""
        repainted: set[int] = set()
        state: int | None = None
        for number, line in enumerate(lines):
            if not line.is_blank:
                if state is not None:
                    repainted.add(lines[state].offset)
                state = number
            if line.final or (state is not None and line.end - lines[state].end > _BLANK_LIMIT):
                state = None
        return repainted, len(lines) if state is None else state


def _as_blocks(lines: Sequence[_Line], repainted: set[int], *, truncations: int) -> Iterator[LineBlock]:
    """Yield blocks of consecutive lines of the file."""
    begin = 0
    for number, line in enumerate(lines, 1):
        whole = line.end == line.offset + len(line.data)
        if number < len(lines) and whole and lines[number].offset == line.end + 1:
            continue
        part = lines[begin:number]
        begin = number
        yield LineBlock(
            truncations,
            part[0].offset,
            b"".join(each.data + b"\n" for each in part),
            frozenset(each.offset for each in part if each.offset in repainted),
        )


def repainted_states(line: bytes) -> list[int]:
    """Return the starts of the states in `line` (without its newline) that later states replace."""
    starts = [0, *(match.end() for match in re.finditer(b"\r", line))]
    shown = [at for at, state in zip(starts, line.split(b"\r"), strict=True) if visible(state).strip()]
    return shown[:-1]
