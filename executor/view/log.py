"""A log on a screen, or as JSON: whole lines, and on a screen the one that has not ended yet."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from executor.view.scroll import Scroll
from executor.view.text import colourless, draws_in_place, speaks_unicode

_KEEP = 2**20
"""Lines of one piece; a piece has no more bytes than that."""


class LogView:
    """Prints a log that comes in pieces. Used as a context: at its end the last line stands, with or without a newline."""

    def __init__(self, *, json_: bool, follow: bool) -> None:
        self._json = json_
        self._scroll = Scroll(keep=_KEEP)
        self._colours = draws_in_place()
        self._draw: Callable[[str], None] = lambda line: None
        self._erase: Callable[[], None] = lambda: None
        if follow and not json_ and draws_in_place():
            self._prepare()

    def __enter__(self) -> LogView:
        return self

    def __exit__(self, *_: object) -> None:
        self.print_rest()

    def feed(self, piece: bytes) -> None:
        self._scroll.feed(piece)
        lines = self._scroll.take()[1]
        if lines:
            self._erase()
            self._print(lines)
        self._draw(self._scroll.current)

    def print_rest(self) -> None:
        """Print the line that has not ended yet, which will not go on."""
        self._erase()
        self._print(self._scroll.take_rest())

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let something else be printed to the same terminal."""
        self._erase()
        yield
        self._draw(self._scroll.current)

    def _prepare(self) -> None:
        from rich.console import Console

        from executor.view.block import LiveBlock, cropped, foreign_text

        console, unicode = Console(highlight=False), speaks_unicode()
        block = LiveBlock(console)

        def draw(line: str) -> None:
            with console:
                block.erase()
                if line:
                    block.draw(cropped(foreign_text(line), console.width, unicode=unicode))

        self._draw, self._erase = draw, block.erase

    def _print(self, lines: list[str]) -> None:
        for line in lines:
            if self._json:
                print(json.dumps({"line": line}))
            elif not self._colours:
                sys.stdout.write(f"{colourless(line)}\n")
            else:
                # A colour that a line leaves switched on ends with it.
                sys.stdout.write(f"{line}\x1b[0m\n" if "\x1b" in line else f"{line}\n")
        if lines:
            sys.stdout.flush()
