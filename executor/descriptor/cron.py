"""Checks the cron expressions of `info.scheduling`: the five fields of Kubernetes' CronJob, and its @names."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAMED = {"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PART = re.compile(r"(?:(?P<all>[*?])|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>\d+))?")


@dataclass(frozen=True)
class _Field:
    name: str
    lowest: int
    highest: int
    names: tuple[str, ...] = ()

    def number(self, text: str) -> int | None:
        """Return what `text` stands for, or None where it stands for nothing in this field."""
        if text.lower() in self.names:
            return self.names.index(text.lower()) + self.lowest
        if text.isascii() and text.isdigit() and self.lowest <= int(text) <= self.highest:
            return int(text)
        return None


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("weekday", 0, 7, _WEEKDAYS),
)


def cron_problem(text: str) -> str | None:
    """Return what is wrong with the cron expression `text`, or None where it is one."""
    if text.strip() in _NAMED:
        return None
    parts = text.split()
    if len(parts) != len(_FIELDS):
        return f'"{text}" is not a cron expression: {len(parts)} of 5 fields'
    for field, part in zip(_FIELDS, parts, strict=True):
        for item in part.split(","):
            if not _valid(field, item):
                return f'"{text}" is not a cron expression: the {field.name} "{item}" is not within {field.lowest}-{field.highest}'
    return None


def _valid(field: _Field, item: str) -> bool:
    match = _PART.fullmatch(item)
    if not match or match["step"] == "0":
        return False
    if match["all"]:
        return True
    first = field.number(match["first"])
    last = field.number(match["last"]) if match["last"] else first
    return first is not None and last is not None and first <= last
