"""The path of a value in a JSON object: `loss`, `train.loss`, `"a.b".c`, `losses[0]`."""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Any

JsonPath = tuple[str | int, ...]
"""Keys of objects, and positions in arrays."""


class Star(Enum):
    """Stands for all items of an array, or all values of an object."""

    ALL = "*"


_PART = re.compile(r"""(?P<quoted>"(?:[^"\\\x00-\x1f]|\\.)*")|(?P<bare>[^.\[\]"\x00-\x1f]+)""")
_POSITION = re.compile(r"\[(?:(?P<position>[0-9]{1,9})|(?P<star>\*))\]")
_MOST_STEPS = 64


def read_json_path(text: str) -> JsonPath:
    """Return the path that `text` is: keys with dots between, those with dots or brackets in double quotes, positions in brackets.

    Raises ValueError, which names the position of the mistake in `text`.
    """
    return tuple(step for step in read_steps(text) if not isinstance(step, Star))


def read_steps(text: str, *, stars: bool = False) -> list[str | int | Star]:
    """Return the steps of a path; with `stars` also `*` and `[*]`, and one may begin with brackets. Raises ValueError."""
    steps: list[str | int | Star] = []
    place = 0
    while True:
        part = None if stars and text[place:].startswith("[") and not place else _PART.match(text, place)
        if part is not None:
            key = part["bare"] if part["quoted"] is None else _unquoted(part["quoted"], place)
            steps.append(Star.ALL if stars and part["bare"] == "*" else key)
            place = part.end()
        elif place or not (stars and text):
            raise ValueError(
                f'character {place + 1} is not the beginning of a key; write "train.loss", or \'"a.b".c\''
            )
        while position := _POSITION.match(text, place):
            if position["star"] and not stars:
                break
            steps.append(Star.ALL if position["star"] else int(position["position"]))
            place = position.end()
        if len(steps) > _MOST_STEPS:
            raise ValueError(f"it has more than {_MOST_STEPS} steps")
        if place == len(text):
            return steps
        if text[place] != ".":
            raise ValueError(
                f"character {place + 1} is neither a dot nor a position such as [0]; put keys with such characters in double quotes"
            )
        place += 1


def _unquoted(text: str, place: int) -> str:
    try:
        return str(json.loads(text))
    except ValueError as error:
        raise ValueError(f"the quoted key at character {place + 1} is not a JSON text") from error


def last_key(path: JsonPath) -> str:
    """Return the last key of `path`, which names the value for people."""
    return next(step for step in reversed(path) if isinstance(step, str))


def value_at(value: Any, path: JsonPath) -> Any:
    """Return the value at `path` in `value`. Raises LookupError if there is none."""
    for step in path:
        container: type[Any] = dict if isinstance(step, str) else list
        if not isinstance(value, container):
            raise LookupError(step)
        value = value[step]
    return value
