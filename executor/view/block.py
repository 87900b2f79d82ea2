"""Redraws lines at the end of a terminal's output in place, also after the terminal was resized."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from rich.cells import cell_len, chop_cells
from rich.console import Console, RenderableType
from rich.control import Control
from rich.segment import ControlType, Segment, Segments
from rich.text import Text


class LiveBlock:
    """What stands in the last rows of a terminal. The cursor stays on a row of its own below.

    A terminal that becomes narrower wraps what stands on it, so the rows are counted when they are erased. Where a cursor
    goes that stood in a wrapped line differs between terminals.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._wraps = wraps_again(os.environ)
        self._lines: list[str] = []

    def draw(self, what: RenderableType) -> None:
        """Replace the block by `what`, cut to the screen's height."""
        self.erase()
        console = self._console
        lines = [list(_stripped(line)) for line in console.render_lines(what, pad=False)]
        lines = lines[: max(0, console.height - 1)]
        self._lines = ["".join(segment.text for segment in line) for line in lines]
        console.print(Segments(_joined(lines)), end="", soft_wrap=True)

    def erase(self) -> None:
        """Erase the block; what is printed next takes its place."""
        if not self._lines:
            return
        above = sum(rows_of(line, self._console.width) if self._wraps else 1 for line in self._lines)
        self._lines = []
        self._console.control(_Sequence(f"\r\x1b[{above}A\x1b[J"))


class _Sequence(Control):
    """Erasing to the end of the screen, for which rich has no name."""

    def __init__(self, sequence: str) -> None:
        super().__init__()
        self.segment = Segment(sequence, None, [(ControlType.ERASE_IN_LINE, 0)])


def rows_of(line: str, width: int) -> int:
    """Return the rows that `line` takes on a terminal of `width` columns."""
    return max(1, len(chop_cells(line, width))) if cell_len(line) > width else 1


def wraps_again(environment: Mapping[str, str]) -> bool:
    """Return whether this terminal, once narrower, wraps the lines that stand on it. xterm and GNU screen cut them off."""
    return "TMUX" in environment or not ("XTERM_VERSION" in environment or "STY" in environment)


def ansi_text(line: str) -> Text:
    """Return a line of a benchmark, with its colours."""
    return Text.from_ansi(line) if "\x1b" in line else Text(line)


def cropped(text: Text, width: int, *, unicode: bool = True) -> Text:
    """Return `text` in one row of `width` columns."""
    text.truncate(width, overflow="ellipsis" if unicode else "crop")
    text.no_wrap = True
    return text


def _stripped(line: list[Segment]) -> Iterator[Segment]:
    """Yield a line without the spaces at its end: wrapped, they would be rows of their own."""
    length = len("".join(segment.text for segment in line).rstrip(" "))
    for segment in line:
        if length <= 0:
            return
        yield Segment(segment.text[:length], segment.style)
        length -= len(segment.text)


def _joined(lines: Iterable[list[Segment]]) -> Iterator[Segment]:
    for line in lines:
        yield from line
        yield Segment.line()
