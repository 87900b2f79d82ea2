"""Tells whether a pattern may search many lines at once, and finds the same as in each line by itself.

A search differs only where the pattern can tell a newline from a line's end: where it matches one, or asks for a boundary of the
text. Each node of the tree that Python's parser makes of the pattern is asked. Whatever is unknown counts as different: slower,
never wrong.
"""

from __future__ import annotations

import re
import sys
from enum import Enum
from typing import Any

if sys.version_info >= (3, 11):
    from re import _constants as constants
    from re import _parser as parser
else:
    import sre_constants as constants
    import sre_parse as parser

_NEWLINE = 10
_WITH_NEWLINE = {constants.CATEGORY_SPACE, constants.CATEGORY_NOT_DIGIT, constants.CATEGORY_NOT_WORD}
_WITHOUT_NEWLINE = {constants.CATEGORY_NOT_SPACE, constants.CATEGORY_DIGIT, constants.CATEGORY_WORD}
# Beside a newline as at a text's end there is no letter.
_BOUNDARIES = {constants.AT_BOUNDARY, constants.AT_NON_BOUNDARY}
_LOOKS = {constants.ASSERT, constants.ASSERT_NOT}
_PATHS = {constants.MAX_REPEAT, constants.MIN_REPEAT}
_CUTS = {
    getattr(constants, name)
    for name in ("POSSESSIVE_REPEAT", "ATOMIC_GROUP", "GROUPREF_EXISTS")
    if hasattr(constants, name)
}


class SearchReach(Enum):
    """Where a match may reach in a text of many lines."""

    LINE = "line"
    """Within its line: it is the match of that line."""
    SPACE = "space"
    """Over newlines, as white space; one that holds none is the match of that line."""
    ANYWHERE = "anywhere"
    """A search of many lines says nothing about each."""


def search_reach(pattern: str) -> SearchReach:
    """Return how far matches of `pattern`, which must compile, reach."""
    try:
        tree = parser.parse(pattern, re.ASCII)
    except ValueError:  # it asks for Unicode's classes: (?u)
        return SearchReach.ANYWHERE
    if tree.state.flags & re.DOTALL:
        return SearchReach.ANYWHERE
    seen = _Seen()
    seen.read(tree)
    if seen.anything or (seen.space and seen.cuts):
        return SearchReach.ANYWHERE
    return SearchReach.SPACE if seen.space else SearchReach.LINE


class _Seen:
    """What stands in a tree."""

    def __init__(self) -> None:
        self.anything = False
        """Something that makes the search of many lines another one."""
        self.space = False
        """Something that matches a newline as it matches a blank. `[^,]` is not that: it would run on to the text's end."""
        self.cuts = False
        """Something that looks at more than the match, or forgets other ways to match: the line's match may be among them."""

    def read(self, tree: Any) -> None:
        for operation, argument in tree:
            if operation is constants.LITERAL:
                self.anything |= argument == _NEWLINE
            elif operation is constants.NOT_LITERAL:
                self.anything |= argument != _NEWLINE
            elif operation is constants.IN:
                self._read_set(argument)
            elif operation is constants.AT:
                self.anything |= argument not in _BOUNDARIES
            elif operation is constants.SUBPATTERN:
                self.anything |= bool(argument[1] & re.DOTALL)
                self.read(argument[-1])
            elif operation is constants.BRANCH:
                for branch in argument[1]:
                    self.read(branch)
            elif operation in _PATHS:
                self.read(argument[2])
            elif operation in _LOOKS:
                self.cuts = True
                self.read(argument[1])
            elif operation in _CUTS:
                self.cuts = True
                self._read_cut(operation, argument)
            elif operation not in (constants.ANY, constants.GROUPREF, constants.FAILURE):
                self.anything = True

    def _read_cut(self, operation: Any, argument: Any) -> None:
        if operation is constants.GROUPREF_EXISTS:
            for branch in argument[1:]:
                self.read(branch or ())
        else:
            self.read(argument[2] if isinstance(argument, tuple) else argument)

    def _read_set(self, items: Any) -> None:
        negated = items[0][0] is constants.NEGATE
        holds = False
        for operation, argument in items[1:] if negated else items:
            if operation is constants.LITERAL:
                holds |= argument == _NEWLINE
            elif operation is constants.RANGE:
                holds |= argument[0] <= _NEWLINE <= argument[1]
            elif operation is constants.CATEGORY and argument in _WITH_NEWLINE | _WITHOUT_NEWLINE:
                holds |= argument in _WITH_NEWLINE
                self.anything |= not negated and argument in _WITH_NEWLINE - {constants.CATEGORY_SPACE}
            else:
                self.anything = True
        if negated:
            self.anything |= not holds
        else:
            self.space |= holds
