"""Turns pydantic's errors into findings: plain sentences, with the advice taken from the schema."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from datetime import date, datetime, time
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from executor.descriptor.findings import Finding
from executor.descriptor.schema import Schema, schema_at, tables, tables_with
from executor.descriptor.toml_text import key_text, toml_value
from executor.descriptor.values import OWN_SENTENCE

_EXPECTED = {
    "string_type": "a text in quotes",
    "int_type": "an integer without quotes",
    "int_from_float": "an integer",
    "bool_type": "true or false, without quotes",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}

_MEANT = {"true": "true", "yes": "true", "on": "true", "1": "true"} | dict.fromkeys(
    ("false", "no", "off", "0"), "false"
)
"""What people write for true and false, as TOML has it."""


def explain(error: ValidationError, *, file: str) -> list[Finding]:
    """Return one finding for each mistake that `error` holds. A misspelt key is not also reported as missing."""
    errors = error.errors(include_url=False)
    misspelt = {
        (*each["loc"][:-1], _close(each["loc"])) for each in errors if each["type"] == "extra_forbidden"
    }
    return [
        _finding(each, file=file)
        for each in errors
        if not (each["type"] == "missing" and each["loc"] in misspelt)
    ]


def _finding(error: ErrorDetails, *, file: str) -> Finding:
    # A mistake in a table's own key has the key twice in its place: (…, "my key", "[key]").
    path = tuple(step for step in error["loc"] if step != "[key]")
    problem, fix = _words(error, path)
    if "[key]" in error["loc"] and problem.startswith('"'):
        problem = f"the key {problem}"
    return Finding(file=file, path=path, problem=problem, fix=fix)


def _words(error: ErrorDetails, path: tuple[str | int, ...]) -> tuple[str, str]:
    kind, context = error["type"], error.get("ctx", {})
    if kind == OWN_SENTENCE:
        return context["problem"], context["fix"]
    if kind == "extra_forbidden":
        return _unknown(path, error["input"])
    schema = schema_at(path) or {}
    if kind == "missing":
        return "is missing", f"add {_line(path, schema)}" + ("" if "properties" in schema else _to(path))
    if kind == "literal_error":
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
    return error["msg"], schema.get("description", "see the reference of the benchmark descriptor")


def _unknown(path: tuple[str | int, ...], value: Any) -> tuple[str, str]:
    table, key = path[:-1], str(path[-1])
    known = _keys(table)
    header = _header(table)
    close = _close(path)
    elsewhere = [name for name in tables_with(key) if name != header]
    if elsewhere:
        fix = f"move it: {key} belongs to {' or '.join(name or 'the top of the file' for name in elsewhere)}"
        if close:
            fix = f'did you mean "{close}"? Or {fix}'
    elif close:
        fix = f'did you mean "{close}"?'
    else:
        fix = f"{header or 'the top of the file'} knows: {', '.join(known)}"
        far = difflib.get_close_matches(key.lower(), _all_keys(), n=1, cutoff=0.75)
        if far:
            homes = " or ".join(name or "the top of the file" for name in tables_with(far[0]))
            fix = f'did you mean "{far[0]}" of {homes}? {fix}'
    if isinstance(value, dict):
        return f"there is no table [{key_text(path)}]", fix
    return f'there is no key "{key}" {f"in {header}" if header else "at the top of the file"}', fix


def _keys(table: Sequence[str | int]) -> list[str]:
    return list((schema_at(table) or {}).get("properties", {}))


def _close(path: Sequence[str | int]) -> str | None:
    """Return the key that whoever wrote the unknown key at `path` may have meant."""
    close = difflib.get_close_matches(str(path[-1]).lower(), _keys(path[:-1]), n=1, cutoff=0.6)
    return close[0] if close else None


def _all_keys() -> list[str]:
    return sorted({key for _, table in tables() for key in table["properties"]})


def _not_a_choice(value: Any, schema: Schema, path: Sequence[str | int]) -> tuple[str, str]:
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    # Some choices are only understood, so that files written for others are valid: nobody is sent there.
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
    key = path[-1] if path else ""
    if kind == "string_type" and isinstance(value, (bool, int, float, date, time)):
        return f"write {_name(key)} = {toml_value(str(value).lower() if isinstance(value, bool) else str(value))}"
    if kind in ("int_type", "bool_type") and isinstance(value, str):
        plain = value.strip().lower()
        if kind == "int_type" and plain.isdigit():
            return f"write {_name(key)} = {plain}"
        if kind == "bool_type" and plain in _MEANT:
            return f"write {_name(key)} = {_MEANT[plain]}"
    if kind == "list_type" and isinstance(value, dict):
        return f"write its header with two brackets: [[{key_text(path)}]]"
    if kind == "list_type":
        inner = toml_value(value) if isinstance(value, (str, int, float)) else '"…"'
        return f"write {_name(key)} = [{inner}]"
    if kind.startswith(("model", "dict")) and isinstance(value, list):
        return f"write its header once, with single brackets: [{key_text(path)}]"
    if kind.startswith(("model", "dict")):
        return f"write it as a table: a line [{key_text(path)}], its keys below"
    return f"write for example {_line(path, schema)}"


def _line(path: Sequence[str | int], schema: Schema) -> str:
    """Return what a user could write for the key at `path`."""
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
