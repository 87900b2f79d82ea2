"""Logs on a screen, as JSON or as bytes; of several nodes whole lines, each with the rank of its node in front."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from executor.view.scroll import Scroll
from executor.view.text import colourless, draws_in_place, speaks_unicode

_KEEP = 2**20
"""Lines of one piece; a piece has no more bytes than that."""
_LONGEST_LINE = 2**20
"""Bytes of a line of one of several nodes; a longer one is broken, or it would be kept for ever."""


class LogView:
    """Prints logs that come in pieces. Used as a context: at its end the last line stands, with or without a newline.

    follow: pieces of several nodes come in any order; else node after node. with_ranks: each line has its node's rank in front.
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
        scroll = self._scrolls.setdefault(rank, Scroll(keep=_KEEP))
        scroll.feed(piece)
        lines = scroll.take()[1]
        if lines:
            self._erase()
            self._print(lines, rank)
        self._draw(scroll.current)

    def print_rests(self, rank: int | None = None) -> None:
        """Print the last, unfinished lines: of all nodes, or of one."""
        self._erase()
        for each, scroll in self._scrolls.items():
            if rank is None or each == rank:
                self._print(scroll.take_rest(), each)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let something else be printed to the same terminal."""
        self._erase()
        yield
        for scroll in self._scrolls.values():
            self._draw(scroll.current)

    def _prepare(self) -> None:
        # Only a terminal that is followed at draws, and rich takes as long as all the rest.
        from rich.console import Console

        from executor.view.block import LiveBlock, ansi_text, cropped

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
                # A colour that a line leaves switched on ends with it.
                sys.stdout.write(f"{before}{line}\x1b[0m\n" if "\x1b" in line else f"{before}{line}\n")
        if lines:
            sys.stdout.flush()


class RawLog:
    """Prints logs as the bytes that they are; the context and parameters are those of `LogView`."""

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
        """Print the last, unfinished lines: of all nodes, or of one."""
        for each, rest in self._rests.items():
            if rest and (rank is None or each == rank):
                self._rests[each] = b""
                self._print([rest], each)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let something else be printed; what has been said goes to another stream."""
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
