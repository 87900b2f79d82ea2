"""Converts pydantic's errors into findings, which are plain sentences with advice from the schema."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from bai_agent.job.schema.declared import MistakeError
from executor.descriptor.findings import Finding
from executor.descriptor.schema import Schema, schema_at, tables, tables_with
from executor.descriptor.toml_text import key_text, toml_value

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_MISSING = ("missing", "missing_keyword_only_argument")
_LISTS = ("list_type", "tuple_type")
_TABLES = ("model_type", "dict_type", "dataclass_type")
_TOP = "the top of the file"
_EXPECTED = {
    "string_type": "a text in quotes",
    "int_type": "an integer without quotes",
    "int_from_float": "an integer",
    "bool_type": "true or false, without quotes",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "dataclass_type": "a table",
}

_MEANT = {"true": "true", "yes": "true", "on": "true", "1": "true"} | dict.fromkeys(
    ("false", "no", "off", "0"), "false"
)
"""Words that users write for true or false, with the spelling in TOML."""


def explain(error: ValidationError, *, file: str) -> list[Finding]:
    """Return a finding for each mistake in `error`. A misspelt required key gets one finding, not a second
    finding as a missing key."""
    errors = error.errors(include_url=False)
    misspelt = {(*each["loc"][:-1], _close(each["loc"])) for each in errors if each["type"] in _UNKNOWN}
    return [
        found
        for each in errors
        if not (each["type"] in _MISSING and each["loc"] in misspelt)
        for found in _findings(each, file=file)
    ]


def _findings(error: ErrorDetails, *, file: str) -> Iterator[Finding]:
    # If a key itself is invalid, the location ends with the key and "[key]": (…, "my key", "[key]").
    path = tuple(step for step in error["loc"] if step != "[key]")
    cause = error.get("ctx", {}).get("error")
    mistakes = cause.mistakes if isinstance(cause, MistakeError) else [("", _words(error, path))]
    for key, (problem, fix) in mistakes:
        if "[key]" in error["loc"] and problem.startswith('"'):
            problem = f"the key {problem}"
        yield Finding(file=file, path=(*path, key) if key else path, problem=problem, fix=fix)


def _words(error: ErrorDetails, path: tuple[str | int, ...]) -> tuple[str, str]:
    kind, context = error["type"], error.get("ctx", {})
    if kind in _UNKNOWN:
        return _unknown(path, error["input"])
    schema = schema_at(path) or {}
    if kind in _MISSING:
        return "is missing", f"add {_line(path, schema)}" + ("" if "properties" in schema else _to(path))
    if kind in ("literal_error", "enum"):
        return _not_a_choice(error["input"], schema, path)
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, not {_described(error['input'])}", _typed_fix(
            kind, error["input"], path, schema
        )
    if kind == "string_too_short":
        return "is empty", f"write {_line(path, schema)}, or leave the key out"
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = f"at least {context['ge']}" if "ge" in context else f"at most {context['le']}"
        return (
            f"must be {bound}, not {_described(error['input'])}",
            f"write for example {_line(path, schema)}",
        )
    return error["msg"], schema.get("description", "see docs/benchmark-descriptor.md")


def _unknown(path: tuple[str | int, ...], value: Any) -> tuple[str, str]:
    key, header = str(path[-1]), _header(path[:-1])
    if isinstance(value, dict):
        return f"there is no table [{key_text(path)}]", _meant_key(path, key, header)
    place = f"in {header}" if header else "at the top of the file"
    return f'there is no key "{key}" {place}', _meant_key(path, key, header)


def _meant_key(path: tuple[str | int, ...], key: str, header: str) -> str:
    """Return advice for an unknown key. The advice names a table that has this key, or a similar key."""
    close = _close(path)
    homes = [name for name in tables_with(key) if name != header]
    if homes:
        fix = f"move it: {key} belongs to {_either(homes)}"
        return f'did you mean "{close}"? Or {fix}' if close else fix
    if close:
        return f'did you mean "{close}"?'
    fix = f"{header or _TOP} knows: {', '.join(_keys(path[:-1]))}"
    far = difflib.get_close_matches(key.lower(), _all_keys(), n=1, cutoff=0.75)
    return f'did you mean "{far[0]}" of {_either(tables_with(far[0]))}? {fix}' if far else fix


def _either(headers: Sequence[str]) -> str:
    return " or ".join(each or _TOP for each in headers)


def _keys(table: Sequence[str | int]) -> list[str]:
    return list((schema_at(table) or {}).get("properties", {}))


def _close(path: Sequence[str | int]) -> str | None:
    """Return a similar key of the same table for the unknown key at `path`; None if there is none."""
    close = difflib.get_close_matches(str(path[-1]).lower(), _keys(path[:-1]), n=1, cutoff=0.6)
    return close[0] if close else None


def _all_keys() -> list[str]:
    return sorted({key for _, table in tables() for key in table["properties"]})


def _not_a_choice(value: Any, schema: Schema, path: Sequence[str | int]) -> tuple[str, str]:
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    # Some choices are accepted in files of other programs, but are not recommended.
    choices = schema.get("x-advised", choices)
    shown = [toml_value(each) for each in choices]
    if len(choices) == 1:
        return f"is {_described(value)}; this version reads {shown[0]} only", f"write {path[-1]} = {shown[0]}"
    texts = [each for each in choices if isinstance(each, str)]
    close = (
        difflib.get_close_matches(str(value).lower(), texts, n=1, cutoff=0.5)
        if isinstance(value, (str, int))
        else []
    )
    hint = f"did you mean {toml_value(close[0])}? " if close else ""
    return f"{_described(value)} is not one of the choices", f"{hint}Possible: {', '.join(shown)}"


def _typed_fix(kind: str, value: Any, path: tuple[str | int, ...], schema: Schema) -> str:
    name = _name(path[-1] if path else "")
    if kind in _TABLES and isinstance(value, list):
        return f"write its header once, with single brackets: [{key_text(path)}]"
    if kind in _TABLES:
        return f"write a table: the line [{key_text(path)}], and the keys below this line"
    if kind in _LISTS and isinstance(value, dict):
        return f"write its header with two brackets: [[{key_text(path)}]]"
    if kind in _LISTS:
        inner = toml_value(value) if isinstance(value, (str, int, float)) else '"…"'
        return f"write {name} = [{inner}]"
    converted = _converted(kind, value)
    return f"write {name} = {converted}" if converted else f"write for example {_line(path, schema)}"


def _converted(kind: str, value: Any) -> str | None:
    """Return the value as TOML in the type that the key needs, as a suggestion; None if the meaning of the value is
    unclear."""
    if kind == "string_type" and isinstance(value, (bool, int, float, date, time)):
        return toml_value(str(value).lower() if isinstance(value, bool) else str(value))
    plain = value.strip().lower() if isinstance(value, str) else ""
    if kind == "int_type" and plain.isdigit():
        return plain
    return _MEANT.get(plain) if kind == "bool_type" else None


def _line(path: Sequence[str | int], schema: Schema) -> str:
    """Return an example line for the key at `path`."""
    if "properties" in schema:
        inner = " and ".join(
            _line((*path, key), schema_at((*path, key)) or {}) for key in schema.get("required", [])
        )
        return f"the table [{key_text(path)}]" + (f" with {inner}" if inner else "")
    for source in ("examples", "enum"):
        if schema.get(source):
            return f"{_name(path[-1])} = {toml_value(schema[source][0])}"
    plain = {"integer": "1", "boolean": "true"}.get(str(schema.get("type")), toml_value("…"))
    return f"{_name(path[-1])} = {plain}"


def _to(path: Sequence[str | int]) -> str:
    header = _header(path[:-1])
    return f" to {header}" if header else " at the top of the file"


def _header(table: Sequence[str | int]) -> str:
    if not table:
        return ""
    if isinstance(table[-1], int):
        return f"[[{key_text([step for step in table if isinstance(step, str)])}]]"
    return f"[{key_text([step for step in table if isinstance(step, str)])}]"


def _name(key: str | int) -> str:
    return key_text([key])


def _described(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        return f'the text "{value if len(value) <= 60 else value[:57] + "…"}"'
    if isinstance(value, (datetime, date, time)):
        return f"the date or time {value}"
    return "a list" if isinstance(value, list) else "a table"
