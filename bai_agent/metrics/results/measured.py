"""What a reader of a format finds in a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from bai_agent.errors import BaiError

_NO_LABELS: Mapping[str, Any] = MappingProxyType({})


class WrongFormatError(BaiError):
    """The file is not of the format that it was said to be."""


class Measured(NamedTuple):
    """A value as it stands in the file, whatever that is."""

    name: Any
    value: Any
    units: Any = ""
    labels: Mapping[str, Any] = _NO_LABELS
    step: Any = None
    time: Any = None
    """ms UTC, where the file says when it was measured."""


class Problem(NamedTuple):
    """Something of the file that gives no value, as the rest of a sentence about it."""

    text: str
    quoted: str = ""
    """What the file itself says."""


Found = Iterator[Measured | Problem]


def tables(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list; nothing where it is none."""
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, dict))


def items(value: Any) -> Iterable[tuple[str, Any]]:
    """Return the members of an object; nothing where it is none."""
    return value.items() if isinstance(value, dict) else ()


def series(value: Any) -> Iterable[tuple[int, Any]]:
    """Return the numbered items of a list; nothing where it is none."""
    return enumerate(value) if isinstance(value, list) else ()


def require(there: bool, what: str) -> None:
    """Raise WrongFormatError, saying `what` the file lacks, unless it is there."""
    if not there:
        raise WrongFormatError(f"it has no {what}")
