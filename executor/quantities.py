"""Converts numbers, sizes, times and lists to text for users."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

_BYTES = {"B": "", "bytes": "", "Bytes": "", "B/s": "/s", "bytes/s": "/s", "Bytes/Second": "/s"}
"""Units of metrics that are shown as sizes, each with the text that follows the size."""
_LARGEST_SIZE = 99.9 * 2**40
_WHOLE = re.compile(r"-?[0-9][0-9,]*")


def number(value: float) -> str:
    """Return `value` as text of about 10 characters: four significant digits, or all digits of a whole
    number."""
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    size = abs(value)
    if size >= 1e7 or size < 1e-4:
        return f"{value:.3e}"
    if size >= 1000:
        return f"{value:,.0f}" if size >= 1e5 else f"{value:,.1f}"
    digits = 3 if size >= 1 else 4
    return f"{value:.{digits}f}" if size >= 0.01 else f"{value:.4g}"


def quantity(value: float, units: str, *, floor: float | None = None) -> tuple[str, str]:
    """Return a metric's value as text, and its units. The units are empty if the text contains them, as for
    bytes and bytes per second. floor: smallest value that can be measured; a value up to `floor` is shown as
    "below" `floor`.
    """
    if floor is not None and value <= floor:
        text, rest = quantity(floor, units)
        return f"below {text}", rest
    per = _BYTES.get(units)
    if per is None or abs(value) >= _LARGEST_SIZE:
        return number(value), units
    return f"{'-' if value < 0 else ''}{size(abs(value))}{per}", ""


def amount(value: float, units: str, *, floor: float | None = None) -> str:
    """Return a metric's value with its units as text."""
    return " ".join(quantity(value, units, floor=floor)).strip()


def aligned(texts: Sequence[str]) -> list[str]:
    """Add spaces to the ends of the numbers `texts`, so that their decimal points are aligned in a
    right-aligned column."""
    ends = [match.end() if (match := _WHOLE.match(text)) else 0 for text in texts]
    longest = max((len(text) - end for text, end in zip(texts, ends, strict=True) if end), default=0)
    return [
        text + " " * (longest - (len(text) - end)) if end else text
        for text, end in zip(texts, ends, strict=True)
    ]


def seconds(value: float) -> str:
    """Return a time span as text, for example "0.3 s", "1 min 05 s" or "2 h 03 min"."""
    if value < 59.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = whole // 60
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes // 1440} d {minutes // 60 % 24} h"


def size(count: float) -> str:
    """Return a number of bytes as text, for example "512 B" or "3.4 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def clock(milliseconds: int) -> str:
    """Return a time (ms since the epoch) in this machine's time zone, for example "2026-11-20 21:31:50"."""
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, for example "1 run" or "2,000 runs"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(texts: Sequence[str], most: int) -> str:
    """Return the first `most` texts and the number of those left out, for example "a, b and 3 more"."""
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def percent(share: float, form: str = ".1f") -> str:
    """Return a share as text, for example "12.5 %". form: Python format of the number."""
    return f"{100 * share:{form}} %"
