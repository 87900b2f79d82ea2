"""Takes metrics from lines that are JSON objects. The classes of this module have the interface of a search with a regular
expression.

The benchmark writes the lines, so a line may be a megabyte of brackets or contain numbers with a million
digits. Numbers in JSON lines stay texts until their values are needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from bai_agent.job.descriptor.metric_tables import Metric
from bai_agent.job.schema.json_path import JsonPath, last_key, read_json_path, value_at
from bai_agent.metrics.search.number import json_number
from bai_agent.metrics.search.reading import LABEL_LIMIT, LABELS, STEP, MatchFindings

_BLANKS = " \t\r\v\f"
_SHOWN = 400
_LONGEST_NUMBER = 1000
"""Longest JSON number that is read (characters)."""
_KEPT = 64 * 1024
"""Maximum length of a line whose parsed object is cached for the next metric (characters)."""
_AS_WRITTEN = re.compile(r"[ !#-%'-.0-;=?-\[\]-~]+").fullmatch
"""Matches keys that every program writes without escapes in JSON objects. Other keys may be written with escapes."""


class _Number(str):
    """A JSON number as the benchmark wrote it."""

    __slots__ = ()


class _NotFinite(str):
    """`NaN`, `Infinity` or `-Infinity`, which Python writes although these words are not valid JSON."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_float=_Number, parse_int=_Number, parse_constant=_NotFinite)


class JsonLines:
    """Parses lines as JSON objects. Each line is parsed only once for all metrics."""

    def __init__(self) -> None:
        self._line: str | None = None
        self._object: dict[str, Any] | None = None

    def read(self, line: str) -> dict[str, Any] | None:
        """Return the object in `line` (bytes decoded as Latin-1); None if the line is not a JSON object. If a
        key occurs several times, its last value is used."""
        if line is self._line:
            return self._object
        found = _object(line)
        self._line, self._object = (line, found) if len(line) <= _KEPT else (None, None)
        return found


def _object(line: str) -> dict[str, Any] | None:
    text = line.strip(_BLANKS)
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        value = _DECODER.decode(text if text.isascii() else text.encode("latin-1").decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class JsonMatch:
    """The content of one JSON line for one metric, with the interface of `re.Match`."""

    __slots__ = ("extra", "length", "value")

    def __init__(self, value: Any, extra: str, length: int) -> None:
        self.value = value
        self.extra = extra
        """Further members of the record, as JSON, each beginning with a comma."""
        self.length = length

    def end(self) -> int:
        return self.length

    def span(self, _group: int) -> tuple[int, int]:
        return 0, self.length


class JsonSearch:
    """The search for one metric's value."""

    def __init__(self, index: int, metric: Metric, lines: JsonLines) -> None:
        assert metric.json is not None
        self._index = index
        self._lines = lines
        self._path = read_json_path(metric.json)
        self._step = read_json_path(metric.json_step) if metric.json_step else None
        self._labels = [(last_key(path), path) for path in map(read_json_path, metric.json_labels)]
        self._required = required_text(metric.json)

    def search(self, line: str, start: int = 0) -> JsonMatch | None:
        """Return the match in `line`. A JSON line has at most one match, which begins at the line's
        beginning."""
        if start or self._required not in line:
            return None
        found = self._lines.read(line)
        if found is None:
            return None
        try:
            value = value_at(found, self._path)
        except LookupError:
            return None
        return JsonMatch(value, self._extra(found), len(line))

    def search_all(self, line: str) -> Iterator[JsonMatch]:
        match = self.search(line)
        return iter(() if match is None else (match,))

    def read(self, _line: str, match: JsonMatch, findings: MatchFindings) -> tuple[str | None, int]:
        """Return the value for a record, or None if the value is not a finite number. The second returned
        item is always 0, because a JSON match consumes no part of the line."""
        number = _number(match.value)
        if number is None:
            findings.not_a_number(self._index, _shown(match.value))
        return number, 0

    def _extra(self, found: dict[str, Any]) -> str:
        step = _number(_value_or_none(found, self._step)) if self._step else None
        extra = f"{STEP}{step}" if step else ""
        labels = {}
        for name, path in self._labels:
            label = _label(_value_or_none(found, path))
            if label is not None:
                labels[name] = label
        return f"{extra}{LABELS}{json.dumps(labels)}" if labels else extra


def required_text(path: str) -> str:
    """Return the text that each line with a value at the path contains: the path's last key in quotes. Return
    "" if the key may be escaped."""
    key = last_key(read_json_path(path))
    return f'"{key}"' if _AS_WRITTEN(key) else ""


def label_names(paths: Sequence[str]) -> list[str]:
    """Return the names of labels whose values are taken from `paths`."""
    return [last_key(read_json_path(path)) for path in paths]


def _value_or_none(found: dict[str, Any], path: JsonPath) -> Any:
    try:
        return value_at(found, path)
    except LookupError:
        return None


def _number(value: Any) -> str | None:
    return json_number(value) if isinstance(value, _Number) and len(value) <= _LONGEST_NUMBER else None


def _label(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return None
    # Lone surrogates and control characters are replaced, because tables and messages cannot show them.
    text = value[:LABEL_LIMIT].encode("utf-8", "replace").decode()
    return "".join(each if each.isprintable() else " " for each in text).strip()


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return value[:_SHOWN].encode("utf-8", "replace").decode()
    return json.dumps(value)
