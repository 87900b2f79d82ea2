"""Reads the keys that options name: TOML's dotted keys, and the items of lists by position or by name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bai_agent.job.toml import read_toml_text

_QUOTED = r"""(?P<quoted>"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_PART = re.compile(rf"[ \t]*(?:(?P<bare>[A-Za-z0-9_-]+)|{_QUOTED})[ \t]*")
_ITEM = re.compile(
    rf"""\[[ \t]*(?:(?P<position>[0-9]{{1,9}})|{_QUOTED}|(?P<bare>[^\[\]"'=]+?))[ \t]*\][ \t]*"""
)


@dataclass(frozen=True)
class ItemName:
    """The item of a list of tables that has this `name`, or this `id`."""

    name: str


KeyPath = tuple[str | int | ItemName, ...]
"""The way to a key: names of tables and keys, and which item where a list is on the way."""


def read_key_path(text: str) -> tuple[KeyPath, str]:
    """Return the key that `text` begins with, and what follows it: "" or a text that begins with "=".

    Raises ValueError, which says where `text` stops being a key.
    """
    steps: list[str | int | ItemName] = []
    position = 0
    while True:
        part = _PART.match(text, position)
        if part is None:
            raise ValueError(_unreadable(text, position))
        steps.append(part["bare"] if part["bare"] is not None else _unquoted(part["quoted"]))
        position = part.end()
        while item := _ITEM.match(text, position):
            if item["position"] is not None:
                steps.append(int(item["position"]))
            else:
                steps.append(
                    ItemName(item["bare"] if item["bare"] is not None else _unquoted(item["quoted"]))
                )
            position = item.end()
        if text[position : position + 1] in ("", "="):
            return tuple(steps), text[position:]
        if text[position] != ".":
            raise ValueError(_unreadable(text, position))
        position += 1


def _unquoted(text: str) -> str:
    name = read_toml_text(f"name = {text}")["name"]
    assert isinstance(name, str)
    return name


def _unreadable(text: str, position: int) -> str:
    rest = text[position:]
    if not rest or rest.startswith(("=", ".")):
        return f"a name is missing at character {position + 1}"
    return f"{rest[:1]!r} at character {position + 1} belongs into quotes, or its bracket is never closed"
