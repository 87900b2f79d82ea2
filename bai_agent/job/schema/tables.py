"""Reads TOML tables into frozen dataclasses, strictly, with errors that name file, table and key.

Supported field types: str, int, float, bool, timedelta (a duration text), enums, Literal, nested dataclasses,
tuples of any of these, dict[str, str], `X | None`, and Annotated with a `Check`. A duration
is written as "off" if its value is None and its default is not None.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from bai_agent.decode import shown_value
from bai_agent.errors import DescriptorError
from bai_agent.job.schema.declared import Check, DeclaredTable, MistakeError
from bai_agent.job.schema.durations import format_duration, parse_duration
from bai_agent.job.schema.field_types import OFF

T = TypeVar("T")


def read_table(kind: type[T], table: Mapping[str, Any], *, where: str) -> T:
    """Return `table` as an instance of the dataclass `kind`. where: the beginning of every error message,
    such as "job.toml: [limits]".

    Raises DescriptorError for an unknown key, a missing key, or a value of another type.
    """
    hints = _type_hints(typing.cast("Any", kind))
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            import difflib  # an agent starts without it

            close = difflib.get_close_matches(key, fields, n=1)
            hint = f'; did you mean "{close[0]}"?' if close else f"; known keys: {', '.join(fields)}"
            raise DescriptorError(f'{where} has no key "{key}"{hint}')
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in table:
            values[name] = _read_value(hints[name], table[name], where=where, key=name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise DescriptorError(f'{where} lacks the key "{name}"')
    try:
        made = kind(**values)
    except MistakeError as error:
        key, (problem, fix) = error.mistakes[0]
        raise DescriptorError(f"{f'{where} {key}'.rstrip()}: {problem}; {fix}") from error
    except ValueError as error:
        raise DescriptorError(f"{where}: {error}") from error
    if isinstance(made, DeclaredTable):
        made.mark_written(table)
    return made


@cache
def _type_hints(kind: Any) -> dict[str, Any]:
    # The result is cached, because a job may have a thousand metrics, each of which is a table.
    return typing.get_type_hints(kind, include_extras=True)


@cache
def marked_keys(kind: Any, *marks: object) -> tuple[str, ...]:
    """Return those fields of a dataclass whose `Annotated` type has one of `marks`, in the order of the
    fields."""
    hints = _type_hints(kind).items()
    return tuple(
        name for name, hint in hints if any(each in marks for each in getattr(hint, "__metadata__", ()))
    )


def write_table(value: Any) -> dict[str, Any]:
    """Return a dataclass as plain TOML values, without values that are None and values that equal their default."""
    table: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        default = (
            field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        )
        if item is None and isinstance(default, timedelta):
            table[field.name] = OFF
        elif item is not None and item != default:
            table[field.name] = _write_value(item)
    return table


def _write_value(item: Any) -> Any:
    if dataclasses.is_dataclass(item):
        return write_table(item)
    if isinstance(item, Enum):
        return item.value
    if isinstance(item, timedelta):
        return format_duration(item)
    if isinstance(item, tuple):
        return [_write_value(each) for each in item]
    if isinstance(item, Mapping):
        return {key: _write_value(each) for key, each in item.items()}
    return item


def _read_value(kind: Any, value: Any, *, where: str, key: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _read_checked(arguments[0], arguments[1:], value, where=where, key=key)
    if origin is typing.Literal:
        if value not in arguments:
            raise _wrong(where, key, f"one of {', '.join(map(json.dumps, arguments))}", value)
        return value
    if origin in (typing.Union, types.UnionType):
        (kind,) = (each for each in arguments if each is not type(None))
        if kind is timedelta and value == OFF:
            return None
        return _read_value(kind, value, where=where, key=key)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(where, key, "a list", value)
        return tuple(
            _read_value(arguments[0], each, where=where, key=f"{key}[{i}]") for i, each in enumerate(value)
        )
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong(where, key, "a table", value)
        return {
            _read_value(arguments[0], name, where=where, key=f"{key}.{name}"): _read_value(
                arguments[1], each, where=where, key=f"{key}.{name}"
            )
            for name, each in value.items()
        }
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise _wrong(where, key, "a table", value)
        return read_table(typing.cast("type[Any]", kind), value, where=_inner(where, key))
    return _read_scalar(kind, value, where=where, key=key)


def _read_checked(kind: Any, marks: tuple[Any, ...], value: Any, *, where: str, key: str) -> Any:
    read = _read_value(kind, value, where=where, key=key)
    for mark in marks:
        if type(mark) is Check and (mistake := mark.mistake(read)) is not None:
            raise DescriptorError(f"{where} {key}: {'; '.join(mistake)}")
    return read


def _read_scalar(kind: Any, value: Any, *, where: str, key: str) -> Any:
    if kind is timedelta:
        if not isinstance(value, str):
            raise _wrong(where, key, 'a duration such as "90s"', value)
        try:
            return parse_duration(value)
        except ValueError as error:
            raise DescriptorError(f"{where} {key}: {error}") from error
    if issubclass(kind, Enum):
        try:
            return kind(value)
        except (ValueError, TypeError):  # TypeError: a list or table, which cannot be a key
            choices = ", ".join(f'"{each.value}"' for each in kind)
            raise _wrong(where, key, f"one of {choices}", value) from None
    if type(value) is int and not -(2**63) <= value < 2**63:
        # Range of integers that TOML guarantees: https://toml.io/en/v1.0.0#integer
        raise DescriptorError(f"{where} {key}: an integer must fit into 64 bits")
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        names = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}
        raise _wrong(where, key, names[kind], value)
    if kind is str and "\0" in value:
        raise DescriptorError(f"{where} {key}: holds a NUL character; remove it")
    return value


def _wrong(where: str, key: str, expected: str, value: Any) -> DescriptorError:
    return DescriptorError(f"{where} {key}: expected {expected}, got {shown_value(value)}")


def _inner(where: str, key: str) -> str:
    """Return the location of the table `key` inside the table at `where`, which ends for example with
    `[output.kafka]`."""
    if where.endswith("]"):
        return f"{where[:-1]}.{key}]"
    return f"{where} [{key}]"
