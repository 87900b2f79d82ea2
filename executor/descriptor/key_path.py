"""The path to a key of a descriptor, as `--set` and `[matrix]` write it: `output.metrics[loss].warmup`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bai_agent.job.toml import read_toml_text
from bai_agent.light_dataclass import dataclass

_QUOTED = r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_NAME = rf"(?:\A|\.)[ \t]*(?P<name>[A-Za-z0-9_-]+|{_QUOTED})"
_ITEM = rf"""(?!\A)\[[ \t]*(?P<item>{_QUOTED}|[^\[\]"'=]+?)[ \t]*\]"""
_STEP = re.compile(rf"(?:{_NAME}|{_ITEM})[ \t]*")


@dataclass(frozen=True)
class ItemName:
    """The item of a list of tables with this `name`, or this `id`."""

    name: str


KeyPath = tuple[str | int | ItemName, ...]
"""The path to a key: names of tables and keys, and positions or names of a list's items."""


def read_key_path(text: str) -> tuple[KeyPath, str]:
    """Return the key at the start of `text`, and the rest: "" or a text that begins with "=".

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
    """Return whether one of two paths is the other, or begins with it."""
    length = min(len(one), len(other))
    return one[:length] == other[:length]
