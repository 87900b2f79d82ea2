"""Converts JSON from another process into an instance of one of bai's dataclasses. Every error names the
object and the key.

A field's type determines the type of its value, and a `Rule` in its annotation adds constraints. Keys that a
dataclass does not have are ignored, because another version of bai may have written these keys.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import Any, TypeAlias, TypeVar

from bai_agent.errors import RecordError
from bai_agent.light_dataclass import MISSING, dataclass, fields, is_dataclass

T = TypeVar("T")

_Reader: TypeAlias = Callable[[Any], Any]
"""A function that converts a JSON value to the type of the value's field. Raises _WrongValueError."""

_SHOWN = 40
"""Number of characters of a wrong value that an error message shows."""
_WHY = "the file is corrupt or was written by another tool"
_WORDS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "a table",
}


@dataclass(frozen=True)
class Rule:
    """A check of a value in addition to its type."""

    words: str
    lowest: float | None = None
    limit: float | None = None
    """Upper bound of the value; the value must be less than this bound."""
    check: Callable[[Any], bool] | None = None
    """Further check of the value: a function that returns whether the value is valid."""

    def allows(self, value: Any) -> bool:
        return (
            (self.lowest is None or value >= self.lowest)
            and (self.limit is None or value < self.limit)
            and (self.check is None or self.check(value))
        )


def decode(kind: type[T], content: bytes | str, *, where: str) -> T:
    """Return the JSON text `content` of the object `where` as a dataclass. Raises RecordError."""
    return checked(kind, parse_json(content, where=where), where=where)


def parse_json(content: bytes | str, *, where: str) -> Any:
    """Return the value of a JSON text. Raises RecordError if the text is not JSON, or is nested too
    deeply."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where} is not JSON: {error}") from error


def checked(kind: type[T], value: Any, *, where: str) -> T:
    """Return a JSON value of the object `where` as a dataclass. Raises RecordError, which names the first wrong key."""
    try:
        made: T = _reader(typing.cast("Any", kind))(value)
    except _WrongValueError as error:
        raise RecordError(error.sentence(where)) from None
    return made


def wrong_value(where: str, words: str, value: Any) -> RecordError:
    """Return the error for a value of the object `where`. `words` says what the value should be, such as "a
    text"."""
    return RecordError(_WrongValueError.of(words, value).sentence(where))


def shown_value(value: Any, *, limit: int = 200) -> str:
    """Return a value from outside in a form for messages, of limited length."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or lists nested too deeply
        return f"{_WORDS.get(type(value), 'something')} that is too large to show"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


class _WrongValueError(Exception):
    """A value has the wrong type or content for its field. `path` is the value's path in the object, such as
    ".repeats[0].code"."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = ""

    @classmethod
    def of(cls, words: str, value: Any) -> _WrongValueError:
        return cls(f": expected {words}, got {shown_value(value, limit=_SHOWN)}")

    def sentence(self, where: str) -> str:
        place = f"{where}: {self.path.removeprefix('.')}" if self.path else where
        return f"{place}{self.problem}; {_WHY}"


@cache
def _reader(hint: Any, rule: Rule | None = None) -> _Reader:
    """Return the reader of values of the type `hint`. The reader is created once for each type, because a
    million records may be read."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: value
    if origin is typing.Annotated:
        return _reader(arguments[0], next((each for each in arguments[1:] if isinstance(each, Rule)), rule))
    if origin in (types.UnionType, typing.Union):
        # The type of an optional field is "… | None".
        (kind,) = (each for each in arguments if each is not type(None))
        read = _reader(kind, rule)
        return lambda value: None if value is None else read(value)
    if is_dataclass(hint) and isinstance(hint, type):
        return _dataclass_reader(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_reader(hint)
    if origin is list:
        return _list_reader(_reader(arguments[0]), rule or Rule(_WORDS[list]))
    if origin in (dict, Mapping):
        return _dict_reader(_reader(arguments[1]), rule or Rule(_WORDS[dict]))
    return _float_reader(rule) if hint is float else _scalar_reader(hint, rule)


def _scalar_reader(kind: type, rule: Rule | None) -> _Reader:
    words = rule.words if rule is not None else _WORDS[kind]

    def read(value: Any) -> Any:
        # In Python a boolean is also an int, but here a boolean is not accepted as a number.
        if type(value) is not kind or (rule is not None and not rule.allows(value)):
            raise _WrongValueError.of(words, value)
        return value

    return read


def _float_reader(rule: Rule | None) -> _Reader:
    words = rule.words if rule is not None else _WORDS[float]

    def read(value: Any) -> float:
        # JSON has only one type of number.
        number = math.nan
        if type(value) in (float, int):
            with suppress(OverflowError):
                number = float(value)
        if not math.isfinite(number) or (rule is not None and not rule.allows(number)):
            raise _WrongValueError.of(words, value)
        return number

    return read


def _enum_reader(kind: type[Enum]) -> _Reader:
    def read(value: Any) -> Enum:
        try:
            return kind(value)
        except (ValueError, TypeError):
            known = ", ".join(f'"{each.value}"' for each in kind)
            raise _WrongValueError.of(f"one of {known}", value) from None

    return read


def _list_reader(read_item: _Reader, rule: Rule) -> _Reader:
    def read(value: Any) -> list[Any]:
        if type(value) is not list or not rule.allows(value):
            raise _WrongValueError.of(rule.words, value)
        found: list[Any] = []
        try:
            for each in value:
                found.append(read_item(each))
        except _WrongValueError as error:
            error.path = f"[{len(found)}]{error.path}"
            raise
        return found

    return read


def _dict_reader(read_item: _Reader, rule: Rule) -> _Reader:
    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict or not rule.allows(value):
            raise _WrongValueError.of(rule.words, value)
        found = {}
        for key, each in value.items():
            try:
                found[key] = read_item(each)
            except _WrongValueError as error:
                error.path = f".{key}{error.path}"
                raise
        return found

    return read


def _dataclass_reader(kind: type[Any]) -> _Reader:
    hints = typing.get_type_hints(kind, include_extras=True)
    readers = [
        (each.name, _reader(hints[each.name]), each.default is MISSING and each.default_factory is MISSING)
        for each in fields(kind)
    ]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _WrongValueError.of(_WORDS[dict], value)
        found = {}
        for name, read_field, required in readers:
            try:
                if name in value:
                    found[name] = read_field(value[name])
                elif required:
                    raise _WrongValueError(" is missing")
            except _WrongValueError as error:
                error.path = f".{name}{error.path}"
                raise
        return kind(**found)

    return read
