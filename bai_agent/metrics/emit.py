"""Parses the lines that a benchmark emits. Each line is a JSON object of names and numbers."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from bai_agent.metrics.search.number import finite_number

NAME_LIMIT = 256
"""Longest name of an emitted metric (characters)."""
_RUN_BEGINS = re.compile(rb'\{"BAI_REPEAT": "(warmup-)?([0-9]{1,6})"\}')
"""Line that `mpi_process.py` writes in a `[repeat]` job before its process starts."""
_ATTEMPTS = 100
"""Maximum number of positions in a line at which an object is searched. The number is limited so that a line
full of braces does not delay the other lines."""


class Emitted(NamedTuple):
    """Content of one emitted line."""

    values: list[tuple[int, str, str]]
    """For each key: its position, its name, and its value as JSON."""
    not_numbers: list[tuple[str, str]]
    """Names whose values are not finite numbers, each with the value."""
    bad: bool
    """Whether the line, or a part of the line, is not a JSON object of names and values."""


def begun_run(line: bytes) -> int | None:
    """Return the number of the run that `line` announces (-1: a warm-up run); None if `line` announces no
    run."""
    found = _RUN_BEGINS.fullmatch(line)
    if found is None:
        return None
    return -1 if found[1] else int(found[2])


def parse_emitted(line: bytes) -> Emitted:
    """Return the content of `line`.

    If a process died while it wrote a line, an incomplete object precedes the next process's object. Therefore, the function
    reads the longest suffix of the line that is a complete object. If there is text before the object, the line is marked as
    bad.
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
    return Emitted([], [], bad=True)


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, in a class that distinguishes the object from an array."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Pairs)


def _object_at(text: str, start: int) -> _Pairs | None:
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, _Pairs) and end == len(text) else None


def _read_pairs(pairs: _Pairs, *, bad: bool) -> Emitted:
    values: list[tuple[int, str, str]] = []
    not_numbers: list[tuple[str, str]] = []
    for position, (name, value) in enumerate(pairs):
        if not 0 < len(name) <= NAME_LIMIT or not _is_text(name):
            bad = True
            continue
        number = finite_number(value)
        if number is None:
            not_numbers.append((name, _shown(value)))
        else:
            values.append((position, name, number))
    return Emitted(values, not_numbers, bad=bad)


def _shown(value: object) -> str:
    if isinstance(value, _Pairs):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        # JSON may contain half a character (a lone surrogate), which cannot be printed.
        return value.encode(errors="replace").decode()
    return json.dumps(value)


def _is_text(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)
