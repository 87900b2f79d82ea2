"""Checks of what another node has written, by the `Rule` of each field. An agent has no pydantic, which `bai` checks records with."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from functools import cache
from typing import Any, TypeVar

from bai_agent.job.record_types import Rule
from bai_agent.job.store import RecordError
from bai_agent.job.tables import shown_value

T = TypeVar("T")

_SHOWN = 40
"""Characters of a wrong value that are shown."""
_WHY = "the file is corrupt or was written by another tool"
_WORDS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "a table",
}


def checked(kind: type[T], table: Any, *, where: str) -> T:
    """Return `table`, which stands in the object `where`, as a dataclass; keys that it does not have are left out.

    Raises RecordError, which names the first wrong key.
    """
    made: T = _value(kind, table, where)
    return made


def _value(hint: Any, value: Any, place: str, rule: Rule | None = None) -> Any:
    if hint is Any:
        return value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        found = next((each for each in arguments[1:] if isinstance(each, Rule)), rule)
        return _value(arguments[0], value, place, found)
    if origin in (types.UnionType, typing.Union):
        # Fields that may be missing are "… | None".
        (kind,) = (each for each in arguments if each is not type(None))
        return None if value is None else _value(kind, value, place, rule)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _record(hint, value, place)
    kind = origin or hint
    # JSON has one kind of number, and a truth is none.
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise _wrong(place, rule.words if rule is not None else _WORDS[kind], value)
    if kind is list:
        return [_value(arguments[0], each, f"{place}[{at}]") for at, each in enumerate(value)]
    if kind is dict:
        return {key: _value(arguments[1], each, f"{place}.{key}") for key, each in value.items()}
    if rule is not None and not _is_within(rule, value):
        raise _wrong(place, rule.words, value)
    return value


def _is_within(rule: Rule, value: Any) -> bool:
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return (rule.lowest is None or value >= rule.lowest) and (rule.limit is None or value < rule.limit)


def _record(kind: type[Any], table: Any, place: str) -> Any:
    if not isinstance(table, dict):
        raise _wrong(place, "a table", table)
    fields: dict[str, Any] = {}
    for field, hint in _hints(typing.cast("Any", kind)):
        # A place without a colon is the object itself.
        inner = f"{place}.{field.name}" if ": " in place else f"{place}: {field.name}"
        if field.name in table:
            fields[field.name] = _value(hint, table[field.name], inner)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise RecordError(f"{inner} is missing; {_WHY}")
    return kind(**fields)


@cache
def _hints(kind: Any) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return [(each, hints[each.name]) for each in dataclasses.fields(kind)]


def _wrong(place: str, expected: str, value: Any) -> RecordError:
    return RecordError(f"{place}: expected {expected}, got {shown_value(value, limit=_SHOWN)}; {_WHY}")
