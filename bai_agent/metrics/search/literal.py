"""Finds a pattern's required text: the text that each line with a match contains.

The text is found in the tree of Python's own parser of regular expressions. Python's parser is not a public
interface, so a node of an unknown type is treated as a node that can match any text. Unknown nodes make the
search slower, but never wrong.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from bai_agent.light_dataclass import dataclass

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
_CHARACTERS = {constants.LITERAL, constants.NOT_LITERAL, constants.IN, constants.ANY, constants.ANY_ALL}
_ATOMIC_GROUP = getattr(constants, "ATOMIC_GROUP", None)


@dataclass(frozen=True)
class Shape:
    """Properties of the texts that a pattern matches."""

    beyond_ascii: bool
    """Whether the pattern needs characters beyond ASCII, or Unicode's character classes."""
    ignore_case: bool
    can_be_empty: bool
    """Whether a match may be empty."""
    literal: str
    """Text that every match contains (regardless of case if `ignore_case`). "" if no required text is
    known."""


def read_shape(pattern: str) -> Shape:
    """Return the properties of the texts that `pattern`, a valid regular expression, matches."""
    try:
        tree, beyond = parser.parse(pattern, re.ASCII), False
    except ValueError:  # needs Unicode's classes: (?u)
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


def can_match_number(pattern: str, group: int, *, letters: str) -> bool:
    """Return False if the text of `group` (0: the whole match) can never be a number.

    A text can never be a number if it always contains a character that numbers do not have, or never contains
    a digit. letters: characters of a number in addition to digits, sign, point and exponent.
    """
    tree: Any = _parsed(pattern)
    if group:
        found = (one[-1] for each, one in _walk(tree) if each is constants.SUBPATTERN and one[0] == group)
        tree = next(found, tree)
    allowed = "0123456789+-.eE \t\v\f" + letters
    return not _must_hold_another(tree, allowed) and _can_hold(tree, "0123456789")


def _must_hold_another(tree: Any, allowed: str) -> bool:
    """Return whether each match of `tree` contains a character that is not in `allowed`."""
    for operation, argument in tree:
        if operation is constants.SUBPATTERN:
            found = _must_hold_another(argument[-1], allowed)
        elif operation is _ATOMIC_GROUP:
            found = _must_hold_another(argument, allowed)
        elif operation is constants.BRANCH:
            found = all(_must_hold_another(branch, allowed) for branch in argument[1])
        elif operation in _REPEATS:
            found = argument[0] > 0 and _must_hold_another(argument[2], allowed)
        else:
            found = operation not in _ZERO_WIDTH and not _matches_one_of(operation, argument, allowed)
        if found:
            return True
    return False


def _can_hold(tree: Any, characters: str) -> bool:
    for operation, argument in _walk(tree):
        if operation in _CHARACTERS:
            if _matches_one_of(operation, argument, characters):
                return True
        elif operation in (constants.GROUPREF, constants.GROUPREF_EXISTS):
            return True
    return False


def _matches_one_of(operation: Any, argument: Any, characters: str) -> bool:
    """Return whether a node of the parsed pattern, which matches a single character, matches any of `characters`. Return True for
    a node of an unknown type."""
    if operation is constants.LITERAL:
        return chr(argument).lower() in characters.lower()
    if operation is constants.NOT_LITERAL:
        return any(ord(each) != argument for each in characters)
    if operation is not constants.IN:
        return True
    negated = argument[0][0] is constants.NEGATE
    items = argument[1:] if negated else argument
    return any(any(_is_in(each, item) for item in items) != negated for each in characters)


def _is_in(character: str, item: Any) -> bool:
    operation, argument = item
    if operation is constants.LITERAL:
        return bool(chr(argument).lower() == character.lower())
    if operation is constants.RANGE:
        return any(argument[0] <= ord(each) <= argument[1] for each in (character.lower(), character.upper()))
    if operation is constants.CATEGORY:
        belongs = {
            constants.CATEGORY_DIGIT: character.isdigit(),
            constants.CATEGORY_SPACE: character.isspace(),
            constants.CATEGORY_WORD: character.isalnum() or character == "_",
        }
        opposite = {
            constants.CATEGORY_NOT_DIGIT: constants.CATEGORY_DIGIT,
            constants.CATEGORY_NOT_SPACE: constants.CATEGORY_SPACE,
            constants.CATEGORY_NOT_WORD: constants.CATEGORY_WORD,
        }
        if argument in belongs:
            return belongs[argument]
        if argument in opposite:
            return not belongs[opposite[argument]]
    return True


def has_open_end(pattern: str, group: int) -> bool:
    """Return whether any text may follow the text of `group` (0: the whole match) in a line that `pattern`
    matches.

    Any text may follow the group if the pattern ends with the group. Any text may also follow if the rest of the pattern is
    optional or matches arbitrary text.
    """
    return group == 0 or _follows_openly(_parsed(pattern), group) is not False


def _parsed(pattern: str) -> Any:
    try:
        return parser.parse(pattern, re.ASCII)
    except ValueError:  # needs Unicode's classes: (?u)
        return parser.parse(pattern)


def _follows_openly(tree: Any, group: int) -> bool | None:
    """Return whether any text may follow `group` in `tree`. Return None if the group is not in `tree`."""
    nodes = list(tree)
    for position, (operation, argument) in enumerate(nodes):
        inner: bool | None = None
        if operation is constants.SUBPATTERN and argument[0] == group:
            inner = True
        elif any(each is constants.SUBPATTERN and one[0] == group for each, one in _walk(argument)):
            # If the group is inside alternatives or repeats, any text is assumed to follow the group.
            body = argument[-1] if operation is constants.SUBPATTERN else None
            inner = _follows_openly(body, group) if body is not None else True
        if inner is not None:
            return inner and _begins_openly(nodes[position + 1 :])
    return None


def _begins_openly(nodes: list[Any]) -> bool:
    for operation, argument in nodes:
        if _is_anything(operation, argument):
            return True
        if operation is constants.AT and argument in (constants.AT_END, constants.AT_END_STRING):
            return False
        if operation in _ZERO_WIDTH:
            continue
        if operation not in _REPEATS:
            return False
        if any(_is_anything(*each) for each in argument[2]):
            return True
        if argument[0] > 0:
            return False
    return True


def _is_anything(operation: Any, argument: Any) -> bool:
    """Return whether the node is `.` or a set that excludes only some characters."""
    negated = operation is constants.IN and argument[0][0] is constants.NEGATE
    return negated or operation in (constants.ANY, constants.ANY_ALL, constants.NOT_LITERAL)


class _Runs:
    """Collects the sequences of consecutive characters in every match."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._current = ""

    def read(self, tree: Any) -> None:
        for operation, argument in _items(tree):
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
    """Return whether a character of decoded text stands for its UTF-8 bytes in the file."""
    return character != _REPLACEMENT and not "\ud800" <= character <= "\udfff"


def _walk(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each operation in the tree with its argument, in any order."""
    left = [node]
    while left:
        each = left.pop()
        if isinstance(each, tuple):
            left += [item for item in each if isinstance(item, _NODES)]
        elif isinstance(each, _NODES):
            for item in _items(each):
                if isinstance(item, tuple):
                    yield item[0], item[1]
                    if not isinstance(item[1], int):
                        left.append(item[1])
                else:
                    left.append(item)


def _items(node: Any) -> list[Any]:
    """Return the items of a node of the parsed pattern. Iterating over the node itself is much slower."""
    items: list[Any] = node.data if isinstance(node, parser.SubPattern) else node
    return items
