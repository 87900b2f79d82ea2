"""Reads TOML text that users or other programs wrote. Text that exceeds bai's limits is refused, so that all other
code can handle the result."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_DEEPEST = 64
"""Deepest nesting of lists and tables. Some parsers fail at the interpreter's recursion limit, and others
fail only far beyond that limit."""
_WHOLE = range(-(2**63), 2**63)
"""Range of integers that TOML guarantees: https://toml.io/en/v1.0.0#integer"""

TOMLDecodeError = tomllib.TOMLDecodeError


class TomlBoundsError(ValueError):
    """A TOML text exceeds bai's limits, although the text may be valid TOML. The message is a predicate for the file's
    name, such as "is nested too deep"."""


def read_toml_text(text: str) -> dict[str, Any]:
    """Return the table in `text`. Raises TOMLDecodeError or TomlBoundsError, both ValueErrors."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise TomlBoundsError("is nested too deep") from None
    except ValueError:  # int() rejects more than 4,300 digits
        raise TomlBoundsError("holds a number of thousands of digits") from None
    _check_bounds(table)
    return table


def _check_bounds(table: dict[str, Any]) -> None:
    level: list[Any] = [table]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
            elif type(each) is int and each not in _WHOLE:
                raise TomlBoundsError("holds an integer that does not fit into 64 bits")
        level = inner
    if level:
        raise TomlBoundsError("is nested too deep")
