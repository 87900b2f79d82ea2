"""Prints logs of benchmarks as text for a screen, as JSON, or as unchanged bytes. Logs of several nodes are
printed in whole lines, and each line begins with its node's rank."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from executor.documents.text import colourless, draws_in_place, safe_line, speaks_unicode

_REST = 65536
"""Largest number of bytes of an unfinished line that are held in memory."""


_KEEP = 2**20
"""Largest number of lines that are held. A piece of a log has at most this number of bytes, and therefore at
most this number of lines."""
_LONGEST_LINE = 2**20
"""Largest length of a line in a log of several nodes (bytes). A line beyond this length is split, because
otherwise the line would be buffered without a limit."""


class Scroll:
    """Splits output that arrives in pieces into lines that are safe for a terminal. Lines that are dropped
    are counted."""

    def __init__(self, *, keep: int = _KEEP) -> None:
        """keep: number of newest lines that are held until the caller takes them."""
        self._lines: deque[bytes] = deque(maxlen=keep)
        self._rest = b""
        self._passed = 0

    def feed(self, content: bytes) -> None:
        *lines, rest = (self._rest + content).split(b"\n")
        self._passed += max(0, len(self._lines) + len(lines) - (self._lines.maxlen or 0))
        self._lines.extend(lines)
        if len(rest) > _REST:
            rest = rest[-_REST:] if b"\r" in rest[-_REST:] else rest[:_REST]
        self._rest = rest

    def take(self) -> tuple[int, list[str]]:
        """Return the number of lines that were dropped since the last call, and the lines that are held."""
        passed, self._passed = self._passed, 0
        lines = [_text(line) for line in self._lines]
        self._lines.clear()
        return passed, lines

    def take_rest(self) -> list[str]:
        """After the end of the output, return its last line if this line has no newline."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []

    @property
    def current(self) -> str:
        """The unfinished line, for example a progress bar."""
        return _text(self._rest)


def _text(line: bytes) -> str:
    # Only the part that the screen shows is decoded, because a line can have 100 MB.
    start = max(0, line.rfind(b"\r", 0, len(line.rstrip(b"\r"))) + 1) if b"\r" in line else 0
    shown = line[start : start + _REST].decode(errors="replace")
    return safe_line(shown)


class LogView:
    """Prints logs that arrive in pieces. A `LogView` is a context manager: at the end of the `with` block,
    the last line is printed even if it has no newline. follow: whether pieces of several nodes arrive in any
    order, and not node by node. with_ranks: whether each line begins with its node's rank.
    """

    def __init__(self, *, json_: bool, follow: bool, with_ranks: bool = False) -> None:
        self._json = json_
        self._follow, self._with_ranks = follow, with_ranks
        self._scrolls: dict[int, Scroll] = {}
        self._colours = draws_in_place()
        self._draw: Callable[[str], None] = lambda line: None
        self._erase: Callable[[], None] = lambda: None
        if follow and not json_ and not with_ranks and draws_in_place():
            self._prepare()

    def __enter__(self) -> LogView:
        return self

    def __exit__(self, *_: object) -> None:
        self.print_rests()

    def feed(self, piece: bytes, rank: int = 0) -> None:
        if not self._follow and rank not in self._scrolls:
            self.print_rests()
        scroll = self._scrolls.setdefault(rank, Scroll())
        scroll.feed(piece)
        lines = scroll.take()[1]
        if lines:
            self._erase()
            self._print(lines, rank)
        self._draw(scroll.current)

    def print_rests(self, rank: int | None = None) -> None:
        """Print the unfinished last line of the node `rank`, or of each node if `rank` is None."""
        self._erase()
        for each, scroll in self._scrolls.items():
            if rank is None or each == rank:
                self._print(scroll.take_rest(), each)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While the context is open, the caller can print a message to the same terminal."""
        self._erase()
        yield
        for scroll in self._scrolls.values():
            self._draw(scroll.current)

    def _prepare(self) -> None:
        # rich is imported here, because only the view on a terminal draws. The import of rich takes as long
        # as all other imports.
        from rich.console import Console

        from executor.view.stage import LiveBlock, ansi_text, cropped

        console, unicode = Console(highlight=False), speaks_unicode()
        block = LiveBlock(console)

        def draw(line: str) -> None:
            with console:
                block.erase()
                if line:
                    block.draw(cropped(ansi_text(line), console.width, unicode=unicode))

        self._draw, self._erase = draw, block.erase

    def _print(self, lines: list[str], rank: int) -> None:
        before = _prefix(rank) if self._with_ranks else ""
        for line in lines:
            if self._json:
                print(json.dumps({**({"rank": rank} if self._with_ranks else {}), "line": line}))
            elif not self._colours:
                sys.stdout.write(f"{before}{colourless(line)}\n")
            else:
                # The colour is reset at the end of a line, because the line itself possibly does not reset
                # it.
                sys.stdout.write(f"{before}{line}\x1b[0m\n" if "\x1b" in line else f"{before}{line}\n")
        if lines:
            sys.stdout.flush()


class RawLog:
    """Prints logs as unchanged bytes. A `RawLog` is used like a `LogView`."""

    def __init__(self, *, follow: bool, with_ranks: bool = False) -> None:
        self._follow, self._with_ranks = follow, with_ranks
        self._rests: dict[int, bytes] = {}

    def __enter__(self) -> RawLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.print_rests()

    def feed(self, piece: bytes, rank: int = 0) -> None:
        if not self._with_ranks:
            self._write(piece)
            return
        if not self._follow and rank not in self._rests:
            self.print_rests()
        *lines, rest = (self._rests.get(rank, b"") + piece).split(b"\n")
        while len(rest) > _LONGEST_LINE:
            lines.append(rest[:_LONGEST_LINE])
            rest = rest[_LONGEST_LINE:]
        self._rests[rank] = rest
        self._print(lines, rank)

    def print_rests(self, rank: int | None = None) -> None:
        """Print the unfinished last line of the node `rank`, or of each node if `rank` is None."""
        for each, rest in self._rests.items():
            if rest and (rank is None or each == rank):
                self._rests[each] = b""
                self._print([rest], each)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Allow another message to be printed. Messages of `bai` do not go to the stream of the log."""
        yield

    def _print(self, lines: list[bytes], rank: int) -> None:
        before = _prefix(rank).encode()
        if lines:
            self._write(b"".join(before + line + b"\n" for line in lines))

    def _write(self, content: bytes) -> None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def _prefix(rank: int) -> str:
    return f"[{rank}] "
