"""Keys and values as TOML text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import Any


def key_text(path: Sequence[str | int]) -> str:
    """Return `path` as a dotted key of TOML, with list positions in brackets, counted from 0."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if re.fullmatch(r"[A-Za-z0-9_-]+", step) else _quoted(step)
            text += f".{name}" if text else name
    return text


def toml_value(value: Any) -> str:
    """Return `value` in TOML. A text with backslashes has single quotes, in which they keep their meaning."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{key_text([key])} = {toml_value(each)}" for key, each in value.items()) + " }"
        )
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(each) for each in value) + "]"
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


def _text(value: str) -> str:
    literal = "\\" in value and "'" not in value and value.isprintable()
    return f"'{value}'" if literal else _quoted(value)


def _quoted(text: str) -> str:
    # JSON leaves DEL as it is, which TOML does not allow.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_document(table: Mapping[str, Any]) -> str:
    """Return `table` as the text of a TOML file, with a header for each table below it."""
    return "\n".join(_lines(table, ())) + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """Return the lines of the table at `path`: its plain keys, then its tables, because TOML needs this order."""
    tables = {
        key: value if isinstance(value, list) else [value] for key, value in table.items() if _is_table(value)
    }
    lines = [f"{key_text([key])} = {toml_value(value)}" for key, value in table.items() if key not in tables]
    for key, items in tables.items():
        place = (*path, key)
        header = f"[[{key_text(place)}]]" if isinstance(table[key], list) else f"[{key_text(place)}]"
        for item in items:
            lines += ["", header, *_lines(item, place)]
    return lines


def _is_table(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, dict) for each in value)
    return isinstance(value, dict)
