"""Numbers, times and foreign text, as they appear on a screen."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import IO

from bai_agent.job.source_schemes import file_path, source_name
from bai_agent.metrics.terminal import on_screen

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-=+*#@"
_BYTES = {"B": "", "bytes": "", "Bytes": "", "B/s": "/s", "bytes/s": "/s", "Bytes/Second": "/s"}
"""Units that are shown as sizes, and what follows those."""
_LARGEST_SIZE = 99.9 * 2**40
_WHOLE = re.compile(r"-?[0-9][0-9,]*")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# CSI, OSC and other string sequences (with their ends), two-byte escapes; then any other control character.
_INVISIBLE = (
    r"\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # the direction of writing
    r"\u200b\u2028\u2029\u2060-\u2064\u206a-\u206f\ufeff\U000e0000-\U000e007f"  # other line ends; what has no width
)
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
    rf"|[{_INVISIBLE}]"
)
_UNSEEN = re.compile(rf"(?![\n\t])[{_INVISIBLE}]")


def number(value: float) -> str:
    """Return `value` in at most 10 characters or so: four significant digits, whole numbers in full."""
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    size = abs(value)
    if size >= 1e7 or size < 1e-4:
        return f"{value:.3e}"
    if size >= 1000:
        return f"{value:,.0f}" if size >= 1e5 else f"{value:,.1f}"
    digits = 3 if size >= 1 else 4
    return f"{value:.{digits}f}" if size >= 0.01 else f"{value:.4g}"


def quantity(value: float, units: str) -> tuple[str, str]:
    """Return a metric's value for reading, and the units that are still to be named: bytes, and bytes a second, say theirs."""
    per = _BYTES.get(units)
    if per is None or abs(value) >= _LARGEST_SIZE:
        return number(value), units
    return f"{'-' if value < 0 else ''}{size(abs(value))}{per}", ""


def aligned(texts: Sequence[str]) -> list[str]:
    """Return numbers with spaces behind them, so that at the right edge of a column their decimal points stand in line."""
    ends = [match.end() if (match := _WHOLE.match(text)) else 0 for text in texts]
    longest = max((len(text) - end for text, end in zip(texts, ends, strict=True) if end), default=0)
    return [
        text + " " * (longest - (len(text) - end)) if end else text
        for text, end in zip(texts, ends, strict=True)
    ]


def seconds(value: float) -> str:
    """Return a time span for reading: "0.3 s", "1 min 05 s", "2 h 03 min"."""
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
    """Return a number of bytes for reading: "512 B", "3.4 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def place(url: str) -> str:
    """Return a source's address as a person would write it: a file of this machine by its path."""
    return source_name(url) if file_path(url) is not None else url


def clock(milliseconds: int) -> str:
    """Return a moment (ms since the epoch) in this machine's time zone: "2026-11-20 21:31:50"."""
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def sparkline(values: Sequence[float], width: int, *, unicode: bool = True) -> str:
    """Return `values` as a row of at most `width` bars, each the mean of its stretch."""
    if not values or width < 1:
        return ""
    bars = _BARS if unicode else _ASCII_BARS
    count = min(width, len(values))
    edges = [len(values) * i // count for i in range(count + 1)]
    means = [sum(value / (b - a) for value in values[a:b]) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    # Halved first: the distance between two finite numbers need not be finite.
    span = high / 2 - low / 2
    if not span:
        return bars[3] * count
    return "".join(bars[round((each / 2 - low / 2) / span * (len(bars) - 1))] for each in means)


def safe_line(line: str, *, limit: int = 4000) -> str:
    """Return a foreign line fit for a terminal: colours stay, whatever else could move, ring or rewrite goes.

    Of parts between carriage returns the last one stays, as it would on a screen, and what backspaces overwrite goes. At most `limit` characters.
    """
    if "\r" in line:
        line = next((part for part in reversed(line.split("\r")) if part), "")
    if "\x08" in line and "\x1b" not in line:
        line = on_screen(line)
    cut = len(line) - limit
    if cut > 0:
        line = line[:limit]
    if not line.isprintable():
        line = _CONTROL.sub(_keep_colour, line.expandtabs(8))
    return f"{line} … ({cut:,} more characters)" if cut > 0 else line


def plain_text(text: str) -> str:
    """Return foreign words fit to stand in a sentence of ours: on one line, and nothing in them that a terminal obeys."""
    return text if text.isprintable() else _CONTROL.sub("", " ".join(text.expandtabs(1).splitlines()))


def visible(text: str) -> str:
    """Return `text`, of several lines perhaps, with what a terminal would obey or hide as an escape: "\\u001b".

    What is TOML or JSON with all its texts in double quotes means the same afterwards.
    """
    return text if text.isascii() and text.isprintable() else _UNSEEN.sub(_as_escape, text)


def tell(text: str = "", *, end: str = "\n", stream: IO[str] | None = None, flush: bool = False) -> None:
    """Print `text` for a person, made `visible`: the one way to print what may hold somebody else's words."""
    print(visible(text), end=end, file=stream, flush=flush)


def visible_bytes(lines: bytes) -> bytes:
    """Return lines of JSON made `visible`; what is no UTF-8 becomes a question mark."""
    return visible(lines.decode(errors="replace")).encode()


def _as_escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def colourless(line: str) -> str:
    """Return a line that `safe_line` made, for a terminal that knows no colours."""
    return _COLOUR.sub("", line)


def _keep_colour(match: re.Match[str]) -> str:
    return match[0] if _COLOUR.fullmatch(match[0]) else ""


def speaks_unicode(stream: IO[str] | None = None) -> bool:
    """Return whether `stream` (standard output) can show more than ASCII."""
    encoding = getattr(stream or sys.stdout, "encoding", None) or "ascii"
    return encoding.lower().replace("-", "").replace("_", "") in ("utf8", "utf16", "utf32")


def draws_in_place() -> bool:
    """Return whether standard output is a terminal on which what stands there can be drawn again."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown")
