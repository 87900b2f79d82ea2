"""Reads and formats durations: "90s", "1h30m", "250ms"."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)")


def parse_duration(text: str) -> timedelta:
    """Return the duration that is written in `text`, to the millisecond.

    Raises ValueError with a sentence for the user. The units are d, h, m, s and ms. Several parts are added
    ("1h30m").
    """
    cleaned = text.strip().replace(" ", "")
    parts = _PART.findall(cleaned)
    if not parts or "".join(number + unit for number, unit in parts) != cleaned:
        raise ValueError(f'"{text}" is not a duration; write for example "90s", "15m", "2h" or "1h30m"')
    milliseconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    try:
        return timedelta(milliseconds=round(milliseconds))
    except OverflowError:
        raise ValueError(f'"{text}" is longer than any run could be') from None


def format_duration(duration: timedelta) -> str:
    """Return the shortest text that `parse_duration` reads back as `duration` (to the millisecond)."""
    milliseconds = round(duration.total_seconds() * 1000)
    parts = []
    for unit, size in _UNITS.items():
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
