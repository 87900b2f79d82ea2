"""Converts keys and values to TOML text. In `--set` and `[matrix]`, a key can also name items of lists:
`output.metrics[loss].warmup`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import Any

from bai_agent.job.toml import read_toml_text
from bai_agent.light_dataclass import dataclass

_QUOTED_KEY = r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_NAME = rf"(?:\A|\.)[ \t]*(?P<name>[A-Za-z0-9_-]+|{_QUOTED_KEY})"
_ITEM = rf"""(?!\A)\[[ \t]*(?P<item>{_QUOTED_KEY}|[^\[\]"'=]+?)[ \t]*\]"""
_STEP = re.compile(rf"(?:{_NAME}|{_ITEM})[ \t]*")


@dataclass(frozen=True)
class ItemName:
    """An item of a list of tables, identified by its `name` or `id`."""

    name: str


KeyPath = tuple[str | int | ItemName, ...]
"""The path to a key: names of tables and keys, and positions or names of list items."""


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


def read_key_path(text: str) -> tuple[KeyPath, str]:
    """Split `text` into the key at its start and the remaining text, which is "" or begins with "=".

    Raises ValueError with the position of the mistake.
    """
    steps: list[str | int | ItemName] = []
    position = 0
    while step := _STEP.match(text, position):
        steps.append(_read_step(step["name"], step["item"]))
        position = step.end()
    rest = text[position:]
    if not steps or rest[:1] not in ("", "="):
        raise ValueError(f"a name, a quote or a bracket is missing at character {position + 1}")
    return tuple(steps), rest


def _read_step(name: str | None, item: str | None) -> str | int | ItemName:
    written = name or item or ""
    plain = str(read_toml_text(f"name = {written}")["name"]) if written[0] in "\"'" else written
    if name is not None:
        return plain
    return int(written) if re.fullmatch("[0-9]{1,9}", written) else ItemName(plain)


def overlap(one: Sequence[object], other: Sequence[object]) -> bool:
    """Return whether two paths are equal, or one begins with the other."""
    length = min(len(one), len(other))
    return one[:length] == other[:length]


def toml_value(value: Any) -> str:
    """Return `value` in TOML. A text with backslashes gets single quotes, in which backslashes are not
    escapes."""
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
    # JSON does not escape DEL, but TOML does not allow it unescaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_document(table: Mapping[str, Any]) -> str:
    """Return `table` as the text of a TOML file, with a header for each table in it."""
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
