"""Makes texts of other programs, addresses and sparklines fit for a screen."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from math import fsum
from typing import IO

from bai_agent.job.schema.source_schemes import file_path, source_name
from bai_agent.metrics.search.terminal import on_screen

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-=+*#@"
_LONGEST = 4000
"""Largest length of a line that is shown (characters)."""
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# `_CONTROL` matches CSI, OSC and other string sequences (with their terminators), two-byte escapes, and all
# other control characters.
_INVISIBLE = (
    r"\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # characters that change the writing direction
    # other line ends; invisible characters
    r"\u200b\u2028\u2029\u2060-\u2064\u206a-\u206f\ufeff\U000e0000-\U000e007f"
)
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
    rf"|[{_INVISIBLE}]"
)
_UNSEEN = re.compile(rf"(?![\n\t])[{_INVISIBLE}]")
_FORMULA = ("=", "+", "-", "@")
"""Characters with which formulas in spreadsheets begin."""


def place(url: str) -> str:
    """Return a source's address as a user would write it. A file on this machine is shown by its path."""
    return source_name(url) if file_path(url) is not None else url


def sparkline(values: Sequence[float], width: int, *, unicode: bool = True) -> str:
    """Return a row of at most `width` bars for `values`. Each bar is the mean of an equal part of the
    values."""
    if not values or width < 1:
        return ""
    bars = _BARS if unicode else _ASCII_BARS
    count = min(width, len(values))
    edges = [len(values) * i // count for i in range(count + 1)]
    means = [fsum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    span = high - low
    if not span:
        return bars[3] * count
    return "".join(bars[round((each - low) / span * (len(bars) - 1))] for each in means)


def safe_line(line: str) -> str:
    """Return `line`, which can have any content, in a form that is safe for a terminal. Colours are kept, but
    all other control sequences are removed.

    As on a screen, only the text after the last carriage return is kept, and characters that backspaces
    overwrite are removed. The result has at most `_LONGEST` characters.
    """
    if "\r" in line:
        line = next((part for part in reversed(line.split("\r")) if part), "")
    if "\x08" in line and "\x1b" not in line:
        line = on_screen(line)
    cut = len(line) - _LONGEST
    if cut > 0:
        line = line[:_LONGEST]
    if not line.isprintable():
        line = _CONTROL.sub(_keep_colour, line.expandtabs(8))
    return f"{line} … ({cut:,} more characters)" if cut > 0 else line


def plain_text(text: str) -> str:
    """Return `text`, which can have any content, for use within a sentence: one line without control
    characters."""
    return text if text.isprintable() else _CONTROL.sub("", " ".join(text.expandtabs(1).splitlines()))


def as_utf8(text: str) -> str:
    """Return `text` in a form that can be encoded as UTF-8. Lone surrogates, which JSON can contain, become
    question marks."""
    return text.encode(errors="replace").decode()


def spreadsheet_cell(text: str) -> str:
    """Return `text` as a cell of CSV, in one line. If a spreadsheet would evaluate the text, an apostrophe is
    put in front.

    See https://owasp.org/www-community/attacks/CSV_Injection.
    """
    plain = as_utf8(plain_text(text))
    return f"'{plain}" if plain.startswith(_FORMULA) else plain


def visible(text: str) -> str:
    """Return `text` with escapes such as "\\u001b" for characters that a terminal would interpret or hide.
    The text can have several lines.

    The meaning of TOML and JSON does not change if all of their texts are in double quotes.
    """
    return text if text.isascii() and text.isprintable() else _UNSEEN.sub(_as_escape, text)


def tell(text: str = "", *, end: str = "\n", stream: IO[str] | None = None, flush: bool = False) -> None:
    """Print `text` to the user, with the escapes of `visible`. All text that can come from other programs or
    users must be printed by this function."""
    print(visible(text), end=end, file=stream, flush=flush)


def visible_bytes(lines: bytes) -> bytes:
    """Return lines of JSON with the escapes of `visible`. Bytes that are not UTF-8 become question marks."""
    return visible(lines.decode(errors="replace")).encode()


def _as_escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def colourless(line: str) -> str:
    """Return a line that `safe_line` made without its colours, for a terminal that does not support
    colours."""
    return _COLOUR.sub("", line)


def _keep_colour(match: re.Match[str]) -> str:
    return match[0] if _COLOUR.fullmatch(match[0]) else ""


def speaks_unicode(stream: IO[str] | None = None) -> bool:
    """Return whether `stream` (standard output) can show more than ASCII."""
    encoding = getattr(stream or sys.stdout, "encoding", None) or "ascii"
    return encoding.lower().replace("-", "").replace("_", "") in ("utf8", "utf16", "utf32")


def draws_in_place() -> bool:
    """Return whether standard output is a terminal that allows lines to be redrawn."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown")


def shortened(name: str, width: int, *, unicode: bool = True) -> str:
    """Shorten `name` in the middle, because long names often differ at their ends."""
    if len(name) <= width:
        return name
    end = width // 2
    return name[: width - end - 1] + ("…" if unicode else "~") + name[-end:]
