"""The path of many values in a JSON document: `results[*].mean`, `jobs[0].read.iops`, `*.latency`.

As in `json_path.py`, and `[*]` or `*` are all items of an array, or all values of an object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from bai_agent.job.schema.json_path import Star, read_steps
from bai_agent.light_dataclass import dataclass

Picks = tuple[str | int, ...]
"""The item that each `*` of a path matched."""


@dataclass(frozen=True)
class StarPath:
    """A path that has been read."""

    steps: tuple[str | int | Star, ...]

    @property
    def name(self) -> str:
        """The last key, which names the value."""
        return next((each for each in reversed(self.steps) if isinstance(each, str)), "value")

    @property
    def stars(self) -> int:
        return sum(isinstance(each, Star) for each in self.steps)

    def find(self, document: Any) -> Iterator[tuple[Picks, Any]]:
        """Yield the values at the path, each with the items that its `*` matched."""
        yield from _find(document, self.steps, ())

    def pick(self, document: Any, picks: Picks) -> Any:
        """Return the value at this path with `picks` in place of each `*`; None if there is none."""
        left = iter(picks)
        for step in self.steps:
            document = _item(document, next(left) if isinstance(step, Star) else step)
        return document


@lru_cache
def read_star_path(text: str) -> StarPath:
    """Read a path. Raises ValueError, which names the position of the mistake in `text`."""
    return StarPath(tuple(read_steps(text, stars=True)))


def differing_keys(paths: Sequence[StarPath]) -> list[str]:
    """Return the keys that tell paths with the same last key apart: "read" and "write" for `read.iops` and
    `write.iops`."""
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
    """Yield the mistakes in the paths of values, and in the paths of all that belongs to them."""
    stars = None
    for each in (*values, *places):
        try:
            path = read_star_path(each)
        except ValueError as error:
            yield f'hold "{each[:80]}", which is not a path: {error}'
            return
        if each in values:
            stars = path.stars if stars is None else min(stars, path.stars)
        elif stars is not None and path.stars > stars:
            yield f'has fewer * than "{each}", so nothing says which of its items belongs to a value'


def _common(paths: Sequence[Sequence[str | int | Star]]) -> int:
    """Return how many steps all of `paths` have in common at their beginning."""
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
