"""Rewrites a pattern so that one search of many lines finds the same matches as a search of each single line.

In a text of many lines, a newline must act like the end of the text. Therefore, each node of the parsed
pattern is replaced by a node that does not match newlines and treats a newline as the end. Patterns with a
node that cannot be replaced search each line separately.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

if sys.version_info >= (3, 11):
    from re import _compiler as compiler
    from re import _constants as constants
    from re import _parser as parser
else:
    import sre_compile as compiler
    import sre_constants as constants
    import sre_parse as parser

_NEWLINE = (constants.LITERAL, ord("\n"))
_SPACES = [(constants.LITERAL, ord(space)) for space in " \t\r\f\v"]
"""ASCII white space except the newline."""
_OPPOSITES = {
    constants.CATEGORY_NOT_DIGIT: constants.CATEGORY_DIGIT,
    constants.CATEGORY_NOT_WORD: constants.CATEGORY_WORD,
}
_PLACES = {
    constants.AT_BEGINNING: constants.AT_BEGINNING_LINE,
    constants.AT_BEGINNING_STRING: constants.AT_BEGINNING_LINE,
    constants.AT_END: constants.AT_END_LINE,
    constants.AT_END_STRING: constants.AT_END_LINE,
    # A word boundary needs no replacement, because a newline is not a letter and acts like the end of a text.
    constants.AT_BOUNDARY: constants.AT_BOUNDARY,
    constants.AT_NON_BOUNDARY: constants.AT_NON_BOUNDARY,
}
_AS_THEY_ARE = (constants.GROUPREF, constants.FAILURE)
_NESTING = {
    getattr(constants, name)
    for name in (
        *("SUBPATTERN", "BRANCH", "MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT", "ATOMIC_GROUP"),
        *("ASSERT", "ASSERT_NOT", "GROUPREF_EXISTS"),
    )
    if hasattr(constants, name)
}
_Tree = Any
"""Syntax tree of a pattern from Python's own parser. The parser has no type annotations."""
_Node = tuple[Any, Any]


class _UnboundError(ValueError):
    """Part of a pattern that possibly matches differently in a text of many lines."""


def bound_to_lines(pattern: str) -> re.Pattern[str] | None:
    """Return an expression that finds the matches of `pattern` in a text of complete lines. `pattern` matches
    ASCII. Return None if the pattern must search each line separately."""
    with suppress(_UnboundError, ValueError):
        return _compiled(_bound_tree(pattern))
    return None


def first_in_each_line(pattern: str, group: int, behind: str) -> re.Pattern[str] | None:
    """Return an expression that finds only the first match of `pattern` in each line. The match includes the
    rest of the line.

    If the expression `behind` matches directly after `group`, the match includes the rest of the whole text.
    In this case, the caller finds fewer matches than lines.
    """
    with suppress(_UnboundError, ValueError):
        tree = _bound_tree(pattern)
        at = next(
            (i for i, (operation, argument) in enumerate(tree.data) if _is_group(operation, argument, group)),
            None,
        )
        if at is None:
            return None
        rest = tree.data[at + 1 :]
        # The pattern's flags do not apply to `behind`.
        met = [*_nodes(f"(?-i:(?={behind}))"), *rest, *_nodes(r"[\s\S]*")]
        other = [*rest, *_nodes(r"[^\n]*")]
        branches = [parser.SubPattern(tree.state, nodes) for nodes in (met, other)]
        tree.data[at + 1 :] = [(constants.BRANCH, (None, branches))]
        return _compiled(tree)
    return None


def _is_group(operation: Any, argument: Any, group: int) -> bool:
    return operation is constants.SUBPATTERN and argument[0] == group > 0


def _bound_tree(pattern: str) -> _Tree:
    tree = parser.parse(pattern, re.ASCII)
    _bind(tree)
    return tree


def _nodes(expression: str) -> list[_Node]:
    return cast("list[_Node]", parser.parse(expression, re.ASCII).data)


def _compiled(tree: _Tree) -> re.Pattern[str]:
    found: re.Pattern[str] = compiler.compile(tree, re.ASCII)
    return found


def _bind(tree: _Tree) -> None:
    tree.data[:] = [_bound(operation, argument) for operation, argument in tree.data]


def _bound(operation: Any, argument: Any) -> _Node:
    if operation in _NESTING:
        for part in _parts(argument):
            _bind(part)
        return operation, argument
    if operation is constants.LITERAL and (operation, argument) != _NEWLINE:
        return operation, argument
    if operation is constants.NOT_LITERAL:
        return constants.IN, [(constants.NEGATE, None), (constants.LITERAL, argument), _NEWLINE]
    if operation is constants.ANY:
        return constants.NOT_LITERAL, _NEWLINE[1]
    if operation is constants.IN:
        return constants.IN, _bound_set(argument)
    if operation is constants.AT and argument in _PLACES:
        return constants.AT, _PLACES[argument]
    if operation in _AS_THEY_ARE:
        return operation, argument
    raise _UnboundError


def _parts(argument: Any) -> list[_Tree]:
    """Return the parts of a pattern's tree that a node's argument contains."""
    if isinstance(argument, parser.SubPattern):
        return [argument]
    if isinstance(argument, (tuple, list)):
        return [part for each in argument for part in _parts(each)]
    return []


def _bound_set(items: Sequence[_Node]) -> list[_Node]:
    """Return the items of a set of characters without the newline."""
    if items[0][0] is constants.NEGATE:
        return [*items, _NEWLINE]
    if len(items) == 1 and items[0][0] is constants.CATEGORY and items[0][1] in _OPPOSITES:
        return [(constants.NEGATE, None), (constants.CATEGORY, _OPPOSITES[items[0][1]]), _NEWLINE]
    found: list[_Node] = []
    for operation, argument in items:
        if operation is constants.LITERAL or (operation is constants.CATEGORY and argument not in _OPPOSITES):
            is_space = operation is constants.CATEGORY and argument is constants.CATEGORY_SPACE
            found += _SPACES if is_space else [(operation, argument)]
        elif operation is constants.RANGE and not argument[0] <= _NEWLINE[1] <= argument[1]:
            found.append((operation, argument))
        else:
            raise _UnboundError
    if _NEWLINE in found:
        raise _UnboundError
    return found
