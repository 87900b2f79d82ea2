"""Paths in a JSON document to one value (`loss`, `train.loss`, `"a.b".c`, `losses[0]`) or to several values
(`results[*].mean`, `*.latency`).

`[*]` or `*` stands for all items of an array, or all values of an object.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

from bai_agent.light_dataclass import dataclass

JsonPath = tuple[str | int, ...]
"""The steps of a path: keys of objects, and positions in arrays."""
Picks = tuple[str | int, ...]
"""For each `*` of a path, the index or key that it matched."""


class Star(Enum):
    """Step of a path that stands for all items of an array, or all values of an object."""

    ALL = "*"


_PART = re.compile(r"""(?P<quoted>"(?:[^"\\\x00-\x1f]|\\.)*")|(?P<bare>[^.\[\]"\x00-\x1f]+)""")
_POSITION = re.compile(r"\[(?:(?P<position>[0-9]{1,9})|(?P<star>\*))\]")
_MOST_STEPS = 64


def read_json_path(text: str) -> JsonPath:
    """Parse a path. Keys are separated by dots, and positions are in brackets. Keys that contain dots or brackets are in double
    quotes.

    Raises ValueError, which names the position of the mistake in `text`.
    """
    return tuple(step for step in _read_steps(text) if not isinstance(step, Star))


def _read_steps(text: str, *, stars: bool = False) -> list[str | int | Star]:
    """Return the steps of a path. If `stars` is True, the path may contain `*` and `[*]`, and may begin with
    brackets. Raises ValueError."""
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
    """Return the last key of `path`, which is used as the name of the value at the path."""
    return next(step for step in reversed(path) if isinstance(step, str))


def value_at(value: Any, path: JsonPath) -> Any:
    """Return the value to which `path` leads in the JSON value `value`. Raises LookupError if the path leads to no
    value."""
    for step in path:
        container: type[Any] = dict if isinstance(step, str) else list
        if not isinstance(value, container):
            raise LookupError(step)
        value = value[step]
    return value


@dataclass(frozen=True)
class StarPath:
    """A parsed path, which may contain `*`."""

    steps: tuple[str | int | Star, ...]

    @property
    def name(self) -> str:
        """The last key, which is used as the value's name."""
        return next((each for each in reversed(self.steps) if isinstance(each, str)), "value")

    @property
    def stars(self) -> int:
        return sum(isinstance(each, Star) for each in self.steps)

    def find(self, document: Any) -> Iterator[tuple[Picks, Any]]:
        """Yield the values at the path, each with the indexes or keys that the `*` of the path matched."""
        yield from _find(document, self.steps, ())

    def pick(self, document: Any, picks: Picks) -> Any:
        """Return the value to which the path leads if `picks` replace the `*`; None if the path leads to no
        value."""
        left = iter(picks)
        for step in self.steps:
            document = _item(document, next(left) if isinstance(step, Star) else step)
        return document


@lru_cache
def read_star_path(text: str) -> StarPath:
    """Read a path. Raises ValueError, which names the position of the mistake in `text`."""
    return StarPath(tuple(_read_steps(text, stars=True)))


def differing_keys(paths: Sequence[StarPath]) -> list[str]:
    """Return the keys that distinguish paths with the same last key, such as "read" and "write" for
    `read.iops` and `write.iops`."""
    names = Counter(path.name for path in paths)
    differing = []
    for path in paths:
        alike = [other.steps for other in paths if other.name == path.name]
        middle: Sequence[str | int | Star] = ()
        if names[path.name] > 1:
            before = _common(alike)
            after = _common([steps[before:][::-1] for steps in alike])
            middle = path.steps[before : len(path.steps) - after]
        differing.append(".".join(str(step) for step in middle if not isinstance(step, Star)))
    return differing


def path_mistakes(values: Sequence[str], places: Sequence[str]) -> Iterator[str]:
    """Yield the mistakes in paths. values: paths of values. places: paths of names, units, steps and labels."""
    stars = None
    for each in (*values, *places):
        try:
            path = read_star_path(each)
        except ValueError as error:
            yield f'contain "{each[:80]}", which is not a path: {error}'
            return
        if each in values:
            stars = path.stars if stars is None else min(stars, path.stars)
        elif stars is not None and path.stars > stars:
            yield f'has fewer * than "{each}", so the items of the two paths cannot be matched'


def _common(paths: Sequence[Sequence[str | int | Star]]) -> int:
    """Return the number of steps at the beginning that all of `paths` have in common."""
    count = 0
    for steps in zip(*paths, strict=False):
        if any(step != steps[0] for step in steps):
            break
        count += 1
    return count


def _find(value: Any, steps: tuple[str | int | Star, ...], picks: Picks) -> Iterator[tuple[Picks, Any]]:
    for at, step in enumerate(steps):
        if isinstance(step, Star):
            items: Any = ()
            if isinstance(value, list):
                items = enumerate(value)
            elif isinstance(value, dict):
                items = value.items()
            for key, item in items:
                yield from _find(item, steps[at + 1 :], (*picks, key))
            return
        value = _item(value, step)
        if value is None:
            return
    yield picks, value


def _item(value: Any, step: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return None
