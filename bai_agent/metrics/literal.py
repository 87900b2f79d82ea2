"""Finds the text that a line must contain for a pattern to match at all.

It stands in the tree that Python's own parser of regular expressions makes of the pattern. That tree is not a public
interface, so whatever is unknown in it counts as "could be anything": the result is then slower, never wrong.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

if sys.version_info >= (3, 11):
    from re import _constants as constants
    from re import _parser as parser
else:
    import sre_constants as constants
    import sre_parse as parser

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_ZERO_WIDTH = {constants.AT, constants.ASSERT, constants.ASSERT_NOT}
_REPEATS = {
    getattr(constants, name)
    for name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
    if hasattr(constants, name)
}
_NODES: tuple[Any, ...] = (parser.SubPattern, list)
_ATOMIC_GROUP = getattr(constants, "ATOMIC_GROUP", None)


@dataclass(frozen=True)
class Shape:
    """What a pattern's tree tells about the text that it matches."""

    beyond_ascii: bool
    """It names characters beyond ASCII, or asks for Unicode's classes."""
    ignore_case: bool
    can_be_empty: bool
    """A match may have no characters."""
    literal: str
    """Every match contains it (but for the case, with `ignore_case`); empty where nothing is required."""


def read_shape(pattern: str) -> Shape:
    """Return the shape of `pattern`, which must compile."""
    try:
        tree, beyond = parser.parse(pattern, re.ASCII), False
    except ValueError:  # it asks for Unicode's classes: (?u)
        tree, beyond = parser.parse(pattern), True
    flags = tree.state.flags
    for operation, argument in _walk(tree):
        if operation in (constants.LITERAL, constants.NOT_LITERAL):
            beyond = beyond or argument > 127
        elif operation is constants.RANGE:
            beyond = beyond or argument[1] > 127
        elif operation is constants.SUBPATTERN:
            flags |= argument[1] & re.IGNORECASE
            beyond = beyond or bool(argument[1] & re.UNICODE)
    runs = _Runs()
    runs.read(tree)
    runs.end()
    return Shape(
        beyond_ascii=beyond,
        ignore_case=bool(flags & re.IGNORECASE),
        can_be_empty=tree.getwidth()[0] == 0,
        literal=max(runs.found, key=len, default=""),
    )


class _Runs:
    """Collects the stretches of characters that stand side by side in every match."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._current = ""

    def read(self, tree: Any) -> None:
        for operation, argument in tree:
            if operation is constants.LITERAL and chr(argument) not in "\r\n" and _encodes(chr(argument)):
                self._current += chr(argument)
            elif operation is constants.SUBPATTERN:
                self.read(argument[-1])
            elif operation is _ATOMIC_GROUP:
                self.read(argument)
            elif operation in _ZERO_WIDTH:
                continue
            elif operation in _REPEATS and argument[0] >= 1:
                self.end()
                self.read(argument[2])
                self.end()
            else:
                self.end()

    def end(self) -> None:
        if self._current:
            self.found.append(self._current)
        self._current = ""


def _encodes(character: str) -> bool:
    """Return whether the character, found in decoded text, stood as its own UTF-8 bytes in the file."""
    return character != _REPLACEMENT and not "\ud800" <= character <= "\udfff"


def _walk(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each operation in the tree with its argument."""
    if isinstance(node, _NODES):
        for item in node:
            if isinstance(item, tuple):
                yield item[0], item[1]
                yield from _walk(item[1])
            else:
                yield from _walk(item)
    elif isinstance(node, tuple):
        for item in node:
            if isinstance(item, _NODES):
                yield from _walk(item)
