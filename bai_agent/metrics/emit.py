"""Parses what benchmarks emit through the FIFO: a JSON object per line, names and numbers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from bai_agent.metrics.number import finite_number

NAME_LIMIT = 256
"""Characters of a name."""
_RUN_BEGINS = re.compile(rb'\{"BAI_REPEAT": "(warmup-)?([0-9]{1,6})"\}')
"""What `mpi_process.py` writes before its process starts, in a job with `[repeat]`."""
_ATTEMPTS = 100
"""Places in one line where an object is looked for: a line full of braces must not hold up the rest."""


@dataclass(frozen=True)
class Emitted:
    """What one line held."""

    values: list[tuple[int, str, str]] = field(default_factory=list)
    """The key's position, its name and its value as JSON."""
    not_numbers: list[tuple[str, str]] = field(default_factory=list)
    """Names whose value is not a finite number, with that value."""
    bad: bool = False
    """The line, or a part of it, is not an object, or holds what is not a name."""


def begun_run(line: bytes) -> int | None:
    """Return the number of the run that what follows `line` is of, -1 for a warm-up run; None where it says nothing of that."""
    found = _RUN_BEGINS.fullmatch(line)
    if found is None:
        return None
    return -1 if found[1] else int(found[2])


def parse_emitted(line: bytes) -> Emitted:
    """Return what `line` holds.

    A writer that died within a line leaves a piece of it in front of the next writer's object, so the longest end of
    the line that is a whole object counts, and what stands before it makes the line a bad one.
    """
    text = line.decode("utf-8", "surrogateescape").strip(" \t\r")
    start = text.find("{")
    for _ in range(_ATTEMPTS):
        if start < 0:
            break
        pairs = _object_at(text, start)
        if pairs is not None:
            return _read_pairs(pairs, bad=start > 0)
        start = text.find("{", start + 1)
    return Emitted(bad=True)


class _Pairs(list[tuple[str, Any]]):
    """An object's members; a list of its own kind, so that an array is not taken for one."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Pairs)


def _object_at(text: str, start: int) -> _Pairs | None:
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, _Pairs) and end == len(text) else None


def _read_pairs(pairs: _Pairs, *, bad: bool) -> Emitted:
    emitted = Emitted(bad=bad)
    for position, (name, value) in enumerate(pairs):
        if not 0 < len(name) <= NAME_LIMIT or not _is_text(name):
            emitted = Emitted(emitted.values, emitted.not_numbers, bad=True)
            continue
        number = finite_number(value)
        if number is None:
            emitted.not_numbers.append((name, _shown(value)))
        else:
            emitted.values.append((position, name, number))
    return emitted


def _shown(value: object) -> str:
    if isinstance(value, _Pairs):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        # JSON may hold half a character, which nothing prints.
        return value.encode(errors="replace").decode()
    return json.dumps(value)


def _is_text(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)
